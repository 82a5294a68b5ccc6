"""Finds the earliest time at which a number of equal tasks fit together, if running tasks end at known times. Compiled.

The arrays of machines are copies. The kernel removes the tasks that end from these copies, one by one in the order of
their ends, and counts how many of the wanted tasks each machine could hold. The tasks fit together as soon as the sum
over all machines is large enough. This is exact because the tasks are equal, whichever machine takes which of them.
"""

from __future__ import annotations

from typing import NamedTuple

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import inlined, kernel
from scheduling.core.kernels.cores import cores_of, hold_cores
from scheduling.core.kernels.devices import WHOLE, hold_devices, share_of
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats, Ints, MachineArrays, Running


class Wanted(NamedTuple):
    """The tasks that have to fit together. P is the number of machines, R the number of resources.

    `limit` [R]: what each task asks for. `allowed` [P]: the machines that may hold a task. `most` [P]: how many of the
    tasks each machine may hold with regard to the job's maximum per machine. `cores`: how many whole cores each task
    reserves; 0 if it shares cores, -1 for a batch task. `sharing`: 1 if some tasks of the job share cores and others
    reserve some. `rack`, `power` [P]: the group of each machine in `rack_most` and `power_most`, which contain how many
    tasks each group may hold. A rack belongs to one power domain.
    """

    number: int
    limit: Ints
    by_limit: bool
    cores: int
    sharing: int
    allowed: Bools
    most: Ints
    rack: Ints
    power: Ints
    rack_most: Ints
    power_most: Ints


class Sums(NamedTuple):
    """How many of the tasks fit: on each machine [P], in each rack and in each power domain, without the maximum of
    the rack or power domain itself. `total` [1]: how many fit into the cell.
    """

    room: Ints
    rack: Ints
    power: Ints
    total: Ints


@inlined
def _room(machines: MachineArrays, wanted: Wanted, m: int) -> int:
    """Return how many of the wanted tasks machine `m` could hold."""
    if not machines.up[m] or not wanted.allowed[m]:
        return 0
    room = min(wanted.number, wanted.most[m])
    for r in range(wanted.limit.shape[0]):
        want = wanted.limit[r]
        if want <= 0:
            continue
        used = machines.reserved[m, r]
        if wanted.by_limit:
            used = max(used, machines.prod_limit[m, r])
        left = machines.capacity[m, r] - used
        if r == PORTS:
            left = min(left, machines.ports_free[m])
        room = min(room, left // want if left > 0 else 0)
    if wanted.limit[ACCELERATORS] > 0 and room > 0:
        want, parts, whole = wanted.limit[ACCELERATORS], 0, 0
        for d in range(machines.devices.shape[1]):
            free = machines.devices[m, d]
            parts += free // want if free > 0 else 0
            whole += 1 if free == WHOLE else 0
        room = min(room, parts if want < WHOLE else whole // ((want + WHOLE - 1) // WHOLE))
    if wanted.cores == 0 and machines.owned[m] > 0 and machines.owned[m] >= machines.cores[m]:
        room = 0
    elif wanted.cores > 0:
        shared = 1 if machines.sharing[m] > 0 else wanted.sharing
        left = machines.cores[m] - machines.owned[m] - shared
        room = min(room, left // wanted.cores if left > 0 else 0)
    return int(room)


@inlined
def _count(machines: MachineArrays, wanted: Wanted, sums: Sums, m: int) -> None:
    """Count again how many tasks machine `m` could hold, and update the sums."""
    room = _room(machines, wanted, m)
    change = room - sums.room[m]
    if change == 0:
        return
    sums.room[m] = room
    rack, power = wanted.rack[m], wanted.power[m]
    before = min(sums.rack[rack], wanted.rack_most[rack])
    sums.rack[rack] += change
    change = min(sums.rack[rack], wanted.rack_most[rack]) - before
    before = min(sums.power[power], wanted.power_most[power])
    sums.power[power] += change
    sums.total[0] += min(sums.power[power], wanted.power_most[power]) - before


@inlined
def _remove(machines: MachineArrays, running: Running, t: int, m: int) -> None:
    """Subtract the resources of task `t` from the used resources of machine `m`."""
    for r in range(machines.capacity.shape[1]):
        machines.reserved[m, r] -= running.reservation[t, r]
        if running.job_by_limit[running.job[t]]:
            machines.prod_limit[m, r] -= running.shape_limit[running.shape[t], r]
    if running.devices[t] != 0:
        hold_devices(machines, m, running.devices[t], share_of(running.shape_limit[running.shape[t], ACCELERATORS]))
    hold_cores(machines, m, cores_of(running, t), -1)


@kernel
def earliest_fit(
    machines: MachineArrays,
    running: Running,
    wanted: Wanted,
    evictable: Ints,
    evictable_on: Ints,
    ending: Ints,
    ending_on: Ints,
    ends: Floats,
    sums: Sums,
) -> float:
    """Return the earliest time at which all wanted tasks fit, in the unit of `ends`. Return -inf if they fit now, and
    inf if they do not fit even after the last end.

    `evictable` [E], `evictable_on` [E]: the slots of tasks that the wanted tasks may preempt, and the positions of
    their machines. `ending`, `ending_on`, `ends` [N]: the same for other running tasks, and when they end, in this
    order. Afterwards, `machines` and `sums` contain the cell as it will be at the returned time.
    """
    for i in range(evictable.shape[0]):
        _remove(machines, running, evictable[i], evictable_on[i])
    for m in range(sums.room.shape[0]):
        _count(machines, wanted, sums, m)
    if sums.total[0] >= wanted.number:
        return -float("inf")
    i = 0
    number = ending.shape[0]
    while i < number:
        time = ends[i]
        while i < number and ends[i] == time:
            t, m = ending[i], ending_on[i]
            _remove(machines, running, t, m)
            machines.ports_free[m] += running.shape_limit[running.shape[t], PORTS]
            _count(machines, wanted, sums, m)
            i += 1
        if sums.total[0] >= wanted.number:
            return float(time)
    return float("inf")


@kernel
def choose(wanted: Wanted, sums: Sums, order: Ints, taken: Ints) -> int:
    """Distribute the wanted tasks over the machines in the given `order`, with as many as possible on each. Write the
    number of tasks per machine into `taken` [P], and return how many tasks have a machine.
    """
    left = wanted.number
    for m in order:
        if left == 0:
            break
        rack, power = wanted.rack[m], wanted.power[m]
        some = min(left, sums.room[m], wanted.rack_most[rack], wanted.power_most[power])
        if some > 0:
            taken[m] = some
            wanted.rack_most[rack] -= some
            wanted.power_most[power] -= some
            left -= some
    return int(wanted.number - left)
