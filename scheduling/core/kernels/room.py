"""What machines have left, by whom a task may preempt and how it is placed (§5.5)."""

from __future__ import annotations

from quota.resources import PORTS
from scheduling.core.kernels.compiled import compiled
from scheduling.core.layout import Levels, Machines, Running


@compiled
def room(machines: Machines, running: Running, levels: Levels, m: int) -> None:
    """Count what one machine has left, at each level. May be negative where it shrank."""
    axis = machines.capacity.shape[1]
    for level in range(levels.ceiling.shape[0]):
        for r in range(axis):
            free = machines.capacity[m, r] - machines.reserved[m, r]
            free_by_limit = machines.capacity[m, r] - machines.prod_limit[m, r]
            if levels.ceiling[level] > 0:
                t = machines.head[m]
                while t >= 0:
                    if not running.gone[t] and running.job_priority[running.job[t]] < levels.ceiling[level]:
                        free += running.reservation[t, r]
                        if running.job_by_limit[running.job[t]]:
                            free_by_limit += running.shape_limit[running.shape[t], r]
                    t = running.next[t]
            if levels.by_limit[level]:
                free = min(free, free_by_limit)
            levels.left[level, m, r] = free
        levels.left[level, m, PORTS] = min(levels.left[level, m, PORTS], machines.ports_free[m])


@compiled
def count_room(machines: Machines, running: Running, levels: Levels) -> None:
    for m in machines.order:
        room(machines, running, levels, m)
