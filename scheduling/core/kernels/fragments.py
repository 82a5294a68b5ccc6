"""Fragments: free devices that typical tasks could not use. Their expected number measures the fragmentation of a
machine (Weng et al., ATC 2023).

The kernels check for each typical kind of task whether a task of this kind would fit on the machine. If the task would
not fit, all free devices of the machine are fragments. If the task would fit, only the devices that it could not use
are fragments. A placement is better if it adds fewer fragments.
"""

from __future__ import annotations

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.kernels.compiled import inlined
from scheduling.core.kernels.devices import WHOLE, pick_devices, share_of
from scheduling.core.vocabulary.kernel_arrays import Groups, MachineArrays


@inlined
def free_devices(machines: MachineArrays, m: int) -> float:
    """Return how many devices of machine `m` are free. A device that is partly free counts as a fraction."""
    total = 0
    for d in range(machines.devices.shape[1]):
        total += max(0, machines.devices[m, d])
    return total / WHOLE


@inlined
def fragments(machines: MachineArrays, groups: Groups, g: int, m: int, mask: int) -> float:
    """Return the expected number of free devices on machine `m` that a typical task could not use. If `mask` is not 0,
    a new task of group `g` counts as placed on the machine. `mask`: bit mask of the devices that the new task takes.
    """
    result = 0.0
    devices = machines.devices.shape[1]
    taken = share_of(groups.limit[g, ACCELERATORS])
    for i in range(groups.typical.shape[0]):
        enough = True
        for r in range(groups.limit.shape[1]):
            if r == ACCELERATORS or groups.typical[i, r] == 0:
                continue
            used = machines.prod_limit[m, r] if groups.by_limit[g] else machines.reserved[m, r]
            left = machines.capacity[m, r] - used - (groups.limit[g, r] if mask > 0 else 0)
            enough = enough and left >= groups.typical[i, r]
        want = groups.typical[i, ACCELERATORS]
        each = share_of(want)
        free = usable = useful = 0
        for d in range(devices):
            left = machines.devices[m, d] - (taken if mask >> d & 1 else 0)
            if left > 0:
                free += left
                if left >= each:
                    usable += 1
                    useful += left
        if enough and usable * each >= want:
            free -= useful
        result += groups.popularity[i] * free
    return result / WHOLE


@inlined
def added_fragments(machines: MachineArrays, groups: Groups, g: int, m: int) -> float:
    """Return how many fragments a task of group `g` adds on machine `m`, divided by the number of devices that the task
    asks for (at least 1).
    """
    want = groups.limit[g, ACCELERATORS]
    mask = pick_devices(machines.devices, m, want)
    if mask < 0:
        return 0.0
    change = fragments(machines, groups, g, m, mask) - fragments(machines, groups, g, m, 0)
    return float(change / max(1.0, want / WHOLE))
