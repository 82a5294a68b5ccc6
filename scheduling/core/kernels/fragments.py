"""Free devices that typical tasks could not use: the expected fragmentation of a machine (Weng et al., ATC 2023).

A task of each typical class is imagined on the machine. If the machine has too little CPU or RAM for it, or too few
devices that it could use, all free devices are fragments. Otherwise the devices that it could not use are. A placement
that adds few fragments is a good one.
"""

from __future__ import annotations

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.kernels.compiled import inlined
from scheduling.core.kernels.devices import WHOLE, pick_devices, share_of
from scheduling.core.vocabulary.layout import Groups, MachineArrays


@inlined
def free_devices(machines: MachineArrays, m: int) -> float:
    """Return the free devices of a machine; parts of devices count as parts."""
    total = 0
    for d in range(machines.devices.shape[1]):
        total += max(0, machines.devices[m, d])
    return total / WHOLE


@inlined
def fragments(machines: MachineArrays, groups: Groups, g: int, m: int, mask: int) -> float:
    """Return the expected fragments, in devices. `mask`: the devices that a task of the group takes; 0: none comes."""
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
    """Return the fragments that a task of the group adds on a machine, per device that it asks for."""
    want = groups.limit[g, ACCELERATORS]
    mask = pick_devices(machines.devices, m, want)
    if mask < 0:
        return 0.0
    change = fragments(machines, groups, g, m, mask) - fragments(machines, groups, g, m, 0)
    return float(change / max(1.0, want / WHOLE))
