"""The pass over the queue: for each task the best of the machines that its group's walk finds.

Each kernel has a slow obvious twin in `tests/unit/core/twins.py`.

    queue ─► group of the task ─► candidates (cached) ─► walk on over machines until the sample is full ─► best
                                         none fit directly ─► the same again, counting what could be preempted
                                         none fit at all ────► the group is full for the rest of the pass

A pass only ever takes room, and victims leave it to a task of higher priority: a machine that was too full
for a group stays so until the pass ends. So each machine is examined once per group, and rooms that a
preemption left over are found by the second walk, which counts zero victims as well.
"""

from __future__ import annotations

import numpy as np

from quota.resources import PORTS
from scheduling.core.kernels.compiled import compiled, inlined
from scheduling.core.kernels.counts import count_in
from scheduling.core.kernels.filters import FREE, lacking, may_hold, spread_excess
from scheduling.core.kernels.room import room
from scheduling.core.kernels.scorers import PACKAGES, PARTS, PREEMPTION, job_score, own_score
from scheduling.core.kernels.victims import preemption_cost, victims_on
from scheduling.core.layout import (
    Cache,
    Counts,
    Floats,
    Groups,
    Ints,
    Ints32,
    Knobs,
    Levels,
    Machines,
    Placed,
    Queue,
    Running,
)

# How far the search of a group has come.
DIRECT, PREEMPTING, FULL = range(3)


@inlined
def _evaluate(
    machines: Machines, running: Running, levels: Levels, groups: Groups, counts: Counts, knobs: Knobs, g: int,
    m: int, stage: int, parts: Floats, victims: Ints32, relief: Floats
) -> float:  # fmt: skip
    """The cached part of the score of a machine for a group; -inf when it can't hold the task."""
    level = groups.direct[g] if stage == DIRECT else groups.level[g]
    if lacking(levels, level, m, groups, g) >= 0 or not may_hold(machines, groups, g, m, counts):
        return -np.inf
    parts[PREEMPTION] = 0.0
    if stage != DIRECT:
        number = victims_on(
            machines, running, m, groups.limit[g], groups.by_limit[g], groups.ceiling[g], victims, relief
        )
        if number < 0:
            return -np.inf
        parts[PREEMPTION] = knobs.weights[PREEMPTION] * preemption_cost(running, victims, number)
    return float(own_score(machines, groups, knobs, g, m, parts) + parts[PREEMPTION])


@compiled
def _candidates(
    machines: Machines, running: Running, levels: Levels, groups: Groups, counts: Counts, cache: Cache, knobs: Knobs,
    g: int,
    parts: Floats, victims: Ints32, relief: Floats, figures: Ints
) -> None:  # fmt: skip
    """Bring the group's candidates up to date, then walk on until there are enough of them."""
    k = 0
    while k < cache.filled[g]:
        m = cache.machine[g, k]
        keep = True
        if cache.version[g, k] != machines.version[m]:
            figures[1] += 1
            score = _evaluate(
                machines, running, levels, groups, counts, knobs, g, m, cache.stage[g], parts, victims, relief
            )
            keep = score != -np.inf
            cache.score[g, k] = score
            cache.version[g, k] = machines.version[m]
        else:
            figures[0] += 1
            # A sibling elsewhere in the rack changes no version.
            keep = spread_excess(machines, groups, g, m, counts) == FREE
        if keep:
            k += 1
        else:
            end = cache.filled[g] - 1
            cache.machine[g, k] = cache.machine[g, end]
            cache.version[g, k] = cache.version[g, end]
            cache.score[g, k] = cache.score[g, end]
            cache.filled[g] = end
    total = machines.order.shape[0]
    while cache.filled[g] < cache.machine.shape[1] and cache.cursor[g] < total:
        m = machines.order[(groups.start[g] + cache.cursor[g] * knobs.step) % total]
        cache.cursor[g] += 1
        figures[1] += 1
        score = _evaluate(
            machines, running, levels, groups, counts, knobs, g, m, cache.stage[g], parts, victims, relief
        )
        if score != -np.inf:
            k = cache.filled[g]
            cache.machine[g, k] = m
            cache.version[g, k] = machines.version[m]
            cache.score[g, k] = score
            cache.filled[g] = k + 1


@compiled
def _best(
    machines: Machines, running: Running, levels: Levels, groups: Groups, counts: Counts, cache: Cache, knobs: Knobs,
    g: int,
    job: int, last: int, parts: Floats, victims: Ints32, relief: Floats
) -> int:  # fmt: skip
    """The machine with the highest score, ties to the lowest machine id; -1 when none can hold the task.

    The machine where the task was before competes whether the walk came to it or not: its packages are there.
    """
    best = -1
    top = -np.inf
    for k in range(cache.filled[g]):
        m = cache.machine[g, k]
        score = cache.score[g, k] + job_score(machines, counts, knobs, job, m, parts)
        if m == last:
            score += knobs.weights[PACKAGES]
        if best < 0 or score > top or (score == top and machines.rank[m] < machines.rank[best]):
            best, top = m, score
    if last >= 0 and best != last and cache.stage[g] == DIRECT:
        score = _evaluate(
            machines, running, levels, groups, counts, knobs, g, last, DIRECT, parts, victims, relief
        )
        if score != -np.inf:
            score += knobs.weights[PACKAGES] + job_score(machines, counts, knobs, job, last, parts)
            if best < 0 or score > top:
                best = last
    return best


@compiled
def _begin(cache: Cache, g: int, stage: int) -> None:
    cache.stage[g], cache.cursor[g], cache.filled[g] = stage, 0, 0


@compiled
def _take(
    machines: Machines, running: Running, levels: Levels, groups: Groups, counts: Counts, g: int, job: int,
    m: int, victims: Ints32, number: int
) -> None:  # fmt: skip
    """Victims leave the machine, the task takes its limit there."""
    for k in range(number):
        t = victims[k]
        running.gone[t] = True
        for r in range(machines.capacity.shape[1]):
            machines.reserved[m, r] -= running.reservation[t, r]
            if running.job_by_limit[running.job[t]]:
                machines.prod_limit[m, r] -= running.shape_limit[running.shape[t], r]
    for r in range(machines.capacity.shape[1]):
        machines.reserved[m, r] += groups.limit[g, r]
        if groups.by_limit[g]:
            machines.prod_limit[m, r] += groups.limit[g, r]
    machines.ports_free[m] -= groups.limit[g, PORTS]
    machines.version[m] += 1
    room(machines, running, levels, m)
    count_in(machines, counts, job, m)


@compiled
def place(
    machines: Machines, running: Running, levels: Levels, groups: Groups, queue: Queue, counts: Counts,
    cache: Cache, knobs: Knobs, placed: Placed, most_on_machine: int
) -> None:  # fmt: skip
    """Decide the whole queue; the answer is in `placed`, the room taken in `machines`."""
    victims = np.empty(most_on_machine + 1, dtype=np.int32)
    relief = np.empty(most_on_machine + 1, dtype=np.float64)
    parts = np.zeros(PARTS, dtype=np.float64)
    preempted = 0
    done = 0
    for i in range(queue.group.shape[0]):
        if done >= knobs.most:
            placed.machine[i] = -2
            continue
        g, job, last = queue.group[i], queue.job[i], queue.last[i]
        if not knobs.caching:
            _begin(cache, g, DIRECT)
        best = -1
        while best < 0 and cache.stage[g] != FULL:
            _candidates(
                machines,
                running,
                levels,
                groups,
                counts,
                cache,
                knobs,
                g,
                parts,
                victims,
                relief,
                placed.figures,
            )
            best = _best(
                machines, running, levels, groups, counts, cache, knobs, g, job, last, parts, victims, relief
            )
            if best < 0:
                _begin(cache, g, cache.stage[g] + 1)
        placed.machine[i] = best
        placed.victims_from[i] = placed.victims_to[i] = preempted
        if best < 0:
            continue
        number = 0
        parts[:] = 0.0
        if cache.stage[g] == PREEMPTING:
            number = victims_on(
                machines,
                running,
                best,
                groups.limit[g],
                groups.by_limit[g],
                groups.ceiling[g],
                victims,
                relief,
            )
            parts[PREEMPTION] = knobs.weights[PREEMPTION] * preemption_cost(running, victims, number)
        own_score(machines, groups, knobs, g, best, parts)
        job_score(machines, counts, knobs, job, best, parts)
        parts[PACKAGES] = knobs.weights[PACKAGES] if best == last else 0.0
        placed.parts[i] = parts
        for k in range(number):
            placed.victims[preempted] = victims[k]
            preempted += 1
        placed.victims_to[i] = preempted
        _take(machines, running, levels, groups, counts, g, job, best, victims, number)
        done += 1
    placed.figures[2] = preempted
