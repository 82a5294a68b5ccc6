"""Chooses the tasks to preempt on a machine. These tasks are the victims (§2.5, §3.2)."""

from __future__ import annotations

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import compiled, constant
from scheduling.core.kernels.cores import cores_suffice
from scheduling.core.kernels.devices import devices_suffice
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints, MachineArrays, Running

_NO_BOUND = np.int64(2**62)
_NOBODY, _NONE = constant(-1), constant(0)
# Of a job that any number of tasks may be down of.
NO_BUDGET = 2**30


@compiled
def preemption_cost(running: Running, victims: Ints, number: int) -> float:
    """Return the score of a preemption. It is negative, and nearer to 0 if there are fewer victims and if their
    priorities are lower. `victims[:number]`: the slots of the preempted tasks (victims).
    """
    cost = 0.0
    for k in range(number):
        cost -= 1.0 + running.job_priority[running.job[victims[k]]] / 100.0
    return cost


@compiled
def _fits_without(
    machines: MachineArrays,
    running: Running,
    m: int,
    limit: Ints,
    by_limit: bool,
    cores: int,
    victims: Ints,
    number: int,
    spared: int,
) -> bool:
    """Return whether a task would fit on machine `m` if other tasks were preempted. These are the tasks in the slots
    `victims[:number]`, without the slot `spared`. `limit` [R] and `cores`: what the new task asks for.
    """
    for r in range(limit.shape[0]):
        if limit[r] == 0:
            continue
        free = machines.capacity[m, r] - machines.reserved[m, r]
        free_by_limit = machines.capacity[m, r] - machines.prod_limit[m, r] if by_limit else _NO_BOUND
        for k in range(number):
            t = victims[k]
            if t != spared:
                free += running.reservation[t, r]
                if by_limit and running.job_by_limit[running.job[t]]:
                    free_by_limit += running.shape_limit[running.shape[t], r]
        if min(free, free_by_limit) < limit[r]:
            return False
    if limit[ACCELERATORS] > 0 and not devices_suffice(
        machines, running, m, limit[ACCELERATORS], victims, number, spared
    ):
        return False
    if not cores_suffice(machines, running, m, cores, victims, number, spared):
        return False
    return bool(limit[PORTS] <= machines.ports_free[m])  # a victim holds its ports until it is gone


@compiled
def _in_order(running: Running, victims: Ints, relief: Floats, n: int) -> None:
    """Sort the first `n` victims, and their `relief` in the same way. `relief`: the part of the missing capacity that a
    victim would free. Order: lowest priority first, then largest relief first, then by id.
    """
    for k in range(1, n):
        t, gain = victims[k], relief[k]
        priority = running.job_priority[running.job[t]]
        j = k - 1
        while j >= 0:
            u = victims[j]
            other = running.job_priority[running.job[u]]
            if other < priority or (
                other == priority and (relief[j] > gain or (relief[j] == gain and running.id[u] < running.id[t]))
            ):
                break
            victims[j + 1], relief[j + 1] = u, relief[j]
            j -= 1
        victims[j + 1], relief[j + 1] = t, gain


@compiled
def _within_budgets(running: Running, victims: Ints, n: int) -> int:
    """Check which of the first `n` victims may be preempted within the disruption budgets of their jobs. Move these
    victims to the front of `victims`, in the same order, and return their number.
    """
    kept = 0
    for k in range(n):
        job = running.job[victims[k]]
        down = 0
        for j in range(kept):
            if running.job[victims[j]] == job:
                down += 1
        if down < running.budget[job] and not running.sheltered[victims[k]]:
            victims[kept] = victims[k]
            kept += 1
    return kept


@compiled
def victims_on(
    machines: MachineArrays,
    running: Running,
    m: int,
    limit: Ints,
    by_limit: bool,
    ceiling: int,
    cores: int,
    budgets: bool,
    victims: Ints,
    relief: Floats,
) -> int:
    """Write into `victims` the slots of the tasks to preempt on machine `m`, lowest priority first. Return their
    number, or -1 if the new task does not fit even then.

    `limit` [R] and `cores`: what the new task asks for. `by_limit`: whether it is placed by limit (§5.5). Only tasks
    with a priority below `ceiling` are preempted. `budgets`: whether to respect the disruption budgets of jobs.
    `relief`: memory for intermediate values. Among tasks of equal priority, the one that frees most of the missing
    capacity is chosen first. At the end, victims that are not needed are removed from the list, the highest priority
    first.
    """
    n = 0
    t = machines.head[m]
    while t >= 0:
        if not running.gone[t] and running.job_priority[running.job[t]] < ceiling:
            victims[n] = t
            n += 1
        t = running.next[t]
    if not _fits_without(machines, running, m, limit, by_limit, cores, victims, n, _NOBODY):
        return -1
    for k in range(n):
        relief[k] = 0.0
        for r in range(limit.shape[0]):
            short = machines.reserved[m, r] + limit[r] - machines.capacity[m, r]
            if short > 0 and limit[r] > 0:
                relief[k] += min(short, running.reservation[victims[k], r]) / short
    _in_order(running, victims, relief, n)
    if budgets:
        kept = _within_budgets(running, victims, n)
        if kept < n and not _fits_without(machines, running, m, limit, by_limit, cores, victims, kept, _NOBODY):
            return -1
    needed = _NONE
    while not _fits_without(machines, running, m, limit, by_limit, cores, victims, needed, _NOBODY):
        needed += 1
    k = needed - 1
    while k >= 0:
        if _fits_without(machines, running, m, limit, by_limit, cores, victims, needed, victims[k]):
            for j in range(k, needed - 1):
                victims[j] = victims[j + 1]
            needed -= 1
        k -= 1
    return needed
