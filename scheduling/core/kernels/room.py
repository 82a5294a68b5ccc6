"""The free capacity of machines per level. A level is a pair: the priority below which tasks may be preempted, and
whether tasks are placed by limit or by reservation (§5.5).
"""

from __future__ import annotations

from quota.vocabulary.resources import PORTS
from scheduling.core.kernels.compiled import compiled
from scheduling.core.vocabulary.layout import Bools, Ints, Levels, MachineArrays, Running


@compiled
def room(machines: MachineArrays, running: Running, levels: Levels, m: int, asked: Bools, sums: Ints) -> None:
    """Write into `levels.left` the free capacity of machine `m` at each level, for the resources that `asked` [R]
    marks.

    The result may be negative if the machine shrank. `sums` [L, 2, R]: memory for intermediate sums.
    """
    axis = machines.capacity.shape[1]
    number = levels.ceiling.shape[0]
    for level in range(number):
        for r in range(axis):
            sums[level, 0, r] = sums[level, 1, r] = 0
    t = machines.head[m]
    while t >= 0:
        if not running.gone[t]:
            job = running.job[t]
            for level in range(number):
                if running.job_priority[job] < levels.ceiling[level]:
                    for r in range(axis):
                        sums[level, 0, r] += running.reservation[t, r]
                    if running.job_by_limit[job]:
                        for r in range(axis):
                            sums[level, 1, r] += running.shape_limit[running.shape[t], r]
        t = running.next[t]
    for level in range(number):
        for r in range(axis):
            if not asked[r]:
                continue
            left = machines.capacity[m, r] - machines.reserved[m, r] + sums[level, 0, r]
            if levels.by_limit[level]:
                left = min(left, machines.capacity[m, r] - machines.prod_limit[m, r] + sums[level, 1, r])
            levels.left[level, r, m] = left
        levels.left[level, PORTS, m] = min(levels.left[level, PORTS, m], machines.ports_free[m])


@compiled
def count_room(
    machines: MachineArrays, running: Running, levels: Levels, positions: Ints, asked: Bools, sums: Ints
) -> None:
    for m in positions:
        room(machines, running, levels, m, asked, sums)
