"""The accelerators that a request takes. A request for less than one device takes a part of one device. A larger
request takes whole devices. Free parts of different devices are never combined.
"""

from __future__ import annotations

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.kernels.compiled import inlined
from scheduling.core.vocabulary.kernel_arrays import Ints, Ints32, MachineArrays, Running

WHOLE = 1000  # milli-units


@inlined
def share_of(want: int) -> int:
    """Return how much of each chosen device a request for `want` takes. Both numbers are in thousandths of a device."""
    return WHOLE if want >= WHOLE else want


@inlined
def pick_devices(free: Ints32, row: int, want: int) -> int:
    """Choose free devices for a request. Return them as a bit mask, or -1 if not enough are free. `free` [N, D]: the
    free thousandths of each device; the devices of one machine or alloc are in `row`. A request for a part of a device
    (`want` < 1,000) gets the device with the least free capacity that is enough, so that other devices stay whole. A
    larger request gets the first devices that are entirely free.
    """
    mask = 0
    if want < WHOLE:
        best = -1
        for d in range(free.shape[1]):
            if free[row, d] >= want and (best < 0 or free[row, d] < free[row, best]):
                best = d
        return 1 << best if best >= 0 else -1
    missing = (want + WHOLE - 1) // WHOLE
    for d in range(free.shape[1]):
        if missing > 0 and free[row, d] == WHOLE:
            mask |= 1 << d
            missing -= 1
    return mask if missing == 0 else -1


@inlined
def devices_suffice(
    machines: MachineArrays, running: Running, m: int, want: int, leaving: Ints, number: int, spared: int
) -> bool:
    """Return whether machine `m` would have enough free devices for `want` (in thousandths of a device) if other tasks
    were preempted. These are the tasks in the slots `leaving[:number]`, without the slot `spared`.
    """
    whole = 0
    for d in range(machines.devices.shape[1]):
        free = machines.devices[m, d]
        for k in range(number):
            t = leaving[k]
            if t != spared and running.devices[t] >> d & 1:
                free += share_of(running.shape_limit[running.shape[t], ACCELERATORS])
        if want < WHOLE and free >= want:
            return True
        if free == WHOLE:
            whole += 1
    return want >= WHOLE and whole * WHOLE >= want


@inlined
def hold_devices(machines: MachineArrays, m: int, mask: int, change: int) -> None:
    for d in range(machines.devices.shape[1]):
        if mask >> d & 1:
            machines.devices[m, d] += change


def set_bits(mask: int) -> tuple[int, ...]:
    """Return the positions of the bits that are 1 in a bit mask, such as the indexes of devices. This function is not
    compiled.
    """
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
