"""The pass' hot loops, compiled by Numba and cached on disk; private to `scheduling.core`.

All of them live in this one file: Numba's cache notices a change of the file a kernel stands in, not of those
that it calls into. `python -m scheduling.core.kernels` compiles them with the very types used, at installation.
Each has a slow obvious twin in `tests/unit/core/twins.py`.

    queue ─► group of the task ─► candidates (cached) ─► walk on over machines until the sample is full ─► best
                                         none fit directly ─► the same again, counting what could be preempted
                                         none fit at all ────► the group is full for the rest of the pass

A pass only ever takes room, and victims leave it to a task of higher priority: a machine that was too full
for a group stays so until the pass ends. So each machine is examined once per group, and rooms that a
preemption left over are found by the second walk, which counts zero victims as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np

from quota.resources import PORTS
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
    Verdicts,
)  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    return cast(F, numba.njit(cache=True, error_model="numpy")(function))


def _inlined(function: F) -> F:
    """For what is called per machine: handing over tables of arrays would cost more than the work itself."""
    return cast(F, numba.njit(cache=True, error_model="numpy", forceinline=True)(function))


# Parts of a score, by column of `Placed.parts`; each has its weight in `policy.Weights`.
PACKING, SPREAD_MACHINE, SPREAD_RACK, SPREAD_POWER, SOFT, PACKAGES, MIXING, PREEMPTION = range(8)
PART_NAMES = (
    "packing", "spread-machine", "spread-rack", "spread-power-domain", "soft-constraints", "packages",
    "mixing", "preemption",
)  # fmt: skip
PARTS = len(PART_NAMES)
# How `packing` is measured, chosen per cell.
HYBRID, BEST_FIT, E_PVM = range(3)
PACKINGS = {"hybrid": HYBRID, "best-fit": BEST_FIT, "e-pvm": E_PVM}
# How far the search of a group has come.
DIRECT, PREEMPTING, FULL = range(3)
# What `spread_excess` answers.
FREE: int = 0
MACHINE_FULL: int = 1
RACK_FULL: int = 2
POWER_FULL: int = 3

_EPVM_BASE = 10.0
_NO_BOUND = np.int64(2**62)


# --- room ----------------------------------------------------------------------------------------------


@_compiled
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


@_compiled
def count_room(machines: Machines, running: Running, levels: Levels) -> None:
    for m in machines.order:
        room(machines, running, levels, m)


# --- filters -------------------------------------------------------------------------------------------


@_inlined
def satisfies(groups: Groups, g: int, m: int) -> bool:
    """Hard constraints."""
    return bool(groups.allowed[groups.hard[g], m])


@_inlined
def is_up(machines: Machines, m: int) -> bool:
    return bool(machines.up[m])


@_inlined
def lacking(levels: Levels, level: int, m: int, groups: Groups, g: int) -> int:
    """The first resource of which the machine has too little left (§5.5), ports included; -1 when it has all."""
    for r in range(groups.limit.shape[1]):
        if groups.limit[g, r] > 0 and levels.left[level, m, r] < groups.limit[g, r]:
            return r
    return -1


@_inlined
def spread_excess(machines: Machines, groups: Groups, g: int, m: int, counts: Counts) -> int:
    """Which bound on tasks of one job is reached there; FREE when none is."""
    job = groups.job[g]
    if job < 0:
        return FREE
    if groups.max_machine[g] > 0 and count_of(counts, job, 0, m) >= groups.max_machine[g]:
        return MACHINE_FULL
    if groups.max_rack[g] > 0 and count_of(counts, job, 1, machines.rack[m]) >= groups.max_rack[g]:
        return RACK_FULL
    if groups.max_power[g] > 0 and count_of(counts, job, 2, machines.power[m]) >= groups.max_power[g]:
        return POWER_FULL
    return FREE


@_inlined
def has_crashed(groups: Groups, g: int, m: int) -> bool:
    """The task crashed there not long ago (§4)."""
    for k in range(groups.avoid_from[g], groups.avoid_to[g]):  # noqa: SIM110 - compiled: no generators
        if groups.avoid[k] == m:
            return True
    return False


@_inlined
def may_hold(machines: Machines, groups: Groups, g: int, m: int, counts: Counts) -> bool:
    """Every filter but resources."""
    return (
        is_up(machines, m)
        and satisfies(groups, g, m)
        and spread_excess(machines, groups, g, m, counts) == FREE
        and not has_crashed(groups, g, m)
    )


# --- counts of a job's tasks ---------------------------------------------------------------------------


@_inlined
def _find(counts: Counts, key: np.int64) -> int:
    mask = counts.keys.shape[0] - 1
    place = int((key * 0x9E3779B97F4A7C1) >> 17 & mask)
    while counts.keys[place] != key and counts.keys[place] != -1:
        place = (place + 1) & mask
    return place


@_inlined
def count_of(counts: Counts, job: int, kind: int, domain: int) -> int:
    """Tasks of `job` on a machine (kind 0), in a rack (1), in a power domain (2); none where it is unknown."""
    if domain < 0:
        return 0
    place = _find(counts, (np.int64(job) * 4 + kind) << 32 | np.int64(domain))
    return counts.values[place] if counts.keys[place] != -1 else 0


@_compiled
def count_in(machines: Machines, counts: Counts, job: int, m: int) -> None:
    """A task of the job is on the machine."""
    if counts.size[job] <= 1:
        return
    for kind in range(3):
        domain = m if kind == 0 else (machines.rack[m] if kind == 1 else machines.power[m])
        if domain < 0:
            continue
        key = (np.int64(job) * 4 + kind) << 32 | np.int64(domain)
        place = _find(counts, key)
        counts.keys[place] = key
        counts.values[place] += 1


@_compiled
def count_all(machines: Machines, counts: Counts, jobs: Ints32, slots: Ints32) -> None:
    for i in range(jobs.shape[0]):
        count_in(machines, counts, jobs[i], slots[i])


# --- scorers: each answers a number where more is better, about -1 to 1 ----------------------------------


@_inlined
def packing(machines: Machines, knobs: Knobs, m: int, groups: Groups, g: int) -> float:
    """How well the machine's room is used after the task: by limits for prod, by reservations otherwise."""
    left = 0.0
    least = 1.0
    cost = 0.0
    for r in range(groups.limit.shape[1]):
        weight = knobs.resources[r]
        capacity = machines.capacity[m, r]
        if weight == 0.0 or capacity == 0:
            continue
        used = machines.prod_limit[m, r] if groups.by_limit[g] else machines.reserved[m, r]
        after = max(0.0, (capacity - used - groups.limit[g, r]) / capacity)
        left += weight * after
        least = min(least, after)
        if knobs.packing == E_PVM:
            cost += weight * (_EPVM_BASE ** (1.0 - after) - _EPVM_BASE ** min(1.0, used / capacity))
    if knobs.packing == E_PVM:
        return -cost / _EPVM_BASE  # one cost over all resources: spreads load over machines (§3.2)
    if knobs.packing == BEST_FIT:
        return -left  # the tightest machine
    return -(0.5 * left + (left - least))  # what is left, and what of it is stranded by the scarcest one


@_inlined
def spread(counts: Counts, job: int, kind: int, domain: int) -> float:
    """The share of the job that would fail with this machine, rack or power domain (§4)."""
    size = counts.size[job]
    if size <= 1:
        return 0.0
    return float(-count_of(counts, job, kind, domain) / size)


@_inlined
def liking(groups: Groups, g: int, m: int) -> float:
    """The share of soft constraints that hold."""
    return groups.liking[groups.soft[g], m] if groups.soft[g] >= 0 else 0.0


@_inlined
def mixing(machines: Machines, knobs: Knobs, m: int, by_limit: bool) -> float:
    """High and low priority share machines, so that the high may expand in a spike of load (§3.2)."""
    share = 0.0
    for r in range(machines.capacity.shape[1]):
        capacity = machines.capacity[m, r]
        if knobs.resources[r] > 0.0 and capacity > 0:
            prod = machines.prod_limit[m, r]
            mine = prod if by_limit else max(0, machines.reserved[m, r] - prod)
            share += knobs.resources[r] * min(1.0, mine / capacity)
    return -share


@_compiled
def preemption_cost(running: Running, victims: Ints32, number: int) -> float:
    """Fewest victims, and of the lowest priority."""
    cost = 0.0
    for k in range(number):
        cost -= 1.0 + running.job_priority[running.job[victims[k]]] / 100.0
    return cost


@_inlined
def _own_score(machines: Machines, groups: Groups, knobs: Knobs, g: int, m: int, parts: Floats) -> float:
    """The parts that depend on class and machine alone: they are what is cached."""
    parts[PACKING] = knobs.weights[PACKING] * packing(machines, knobs, m, groups, g)
    parts[SOFT] = knobs.weights[SOFT] * liking(groups, g, m)
    parts[MIXING] = knobs.weights[MIXING] * mixing(machines, knobs, m, groups.by_limit[g])
    return float(parts[PACKING] + parts[SOFT] + parts[MIXING])


@_inlined
def _job_score(machines: Machines, counts: Counts, knobs: Knobs, job: int, m: int, parts: Floats) -> float:
    """The overlay of the job: never cached."""
    if counts.size[job] <= 1:
        parts[SPREAD_MACHINE] = parts[SPREAD_RACK] = parts[SPREAD_POWER] = 0.0
        return 0.0
    parts[SPREAD_MACHINE] = knobs.weights[SPREAD_MACHINE] * spread(counts, job, 0, m)
    parts[SPREAD_RACK] = knobs.weights[SPREAD_RACK] * spread(counts, job, 1, machines.rack[m])
    parts[SPREAD_POWER] = knobs.weights[SPREAD_POWER] * spread(counts, job, 2, machines.power[m])
    return float(parts[SPREAD_MACHINE] + parts[SPREAD_RACK] + parts[SPREAD_POWER])


# --- preemption ----------------------------------------------------------------------------------------


@_compiled
def _fits_without(
    machines: Machines, running: Running, m: int, limit: Ints, by_limit: bool, victims: Ints32, number: int, spared: int
) -> bool:  # fmt: skip
    """Whether it fits when `victims[:number]`, but not `spared`, have left."""
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
    return bool(limit[PORTS] <= machines.ports_free[m])  # a victim holds its ports until it is gone


@_compiled
def victims_on(
    machines: Machines, running: Running, m: int, limit: Ints, by_limit: bool, ceiling: int, victims: Ints32,
    relief: Floats
) -> int:  # fmt: skip
    """Fill `victims` with whom to preempt there, lowest priority first; their number, or -1 if it can't fit.

    Of equal priority whoever relieves most of the shortage goes first; who turns out unnecessary is spared,
    the highest priority first.
    """
    n = 0
    t = machines.head[m]
    while t >= 0:
        if not running.gone[t] and running.job_priority[running.job[t]] < ceiling:
            victims[n] = t
            n += 1
        t = running.next[t]
    if not _fits_without(machines, running, m, limit, by_limit, victims, n, -1):
        return -1
    for k in range(n):
        relief[k] = 0.0
        for r in range(limit.shape[0]):
            short = machines.reserved[m, r] + limit[r] - machines.capacity[m, r]
            if short > 0 and limit[r] > 0:
                relief[k] += min(short, running.reservation[victims[k], r]) / short
    for k in range(1, n):
        t, gain = victims[k], relief[k]
        priority = running.job_priority[running.job[t]]
        j = k - 1
        while j >= 0:
            u = victims[j]
            other = running.job_priority[running.job[u]]
            if other < priority or (
                other == priority
                and (relief[j] > gain or (relief[j] == gain and running.id[u] < running.id[t]))
            ):
                break
            victims[j + 1], relief[j + 1] = u, relief[j]
            j -= 1
        victims[j + 1], relief[j + 1] = t, gain
    needed = 0
    while not _fits_without(machines, running, m, limit, by_limit, victims, needed, -1):
        needed += 1
    k = needed - 1
    while k >= 0:
        if _fits_without(machines, running, m, limit, by_limit, victims, needed, victims[k]):
            for j in range(k, needed - 1):
                victims[j] = victims[j + 1]
            needed -= 1
        k -= 1
    return needed


# --- the walk ------------------------------------------------------------------------------------------


@_inlined
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
    return float(_own_score(machines, groups, knobs, g, m, parts) + parts[PREEMPTION])


@_compiled
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


@_compiled
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
        score = cache.score[g, k] + _job_score(machines, counts, knobs, job, m, parts)
        if m == last:
            score += knobs.weights[PACKAGES]
        if best < 0 or score > top or (score == top and machines.rank[m] < machines.rank[best]):
            best, top = m, score
    if last >= 0 and best != last and cache.stage[g] == DIRECT:
        score = _evaluate(
            machines, running, levels, groups, counts, knobs, g, last, DIRECT, parts, victims, relief
        )
        if score != -np.inf:
            score += knobs.weights[PACKAGES] + _job_score(machines, counts, knobs, job, last, parts)
            if best < 0 or score > top:
                best = last
    return best


@_compiled
def _begin(cache: Cache, g: int, stage: int) -> None:
    cache.stage[g], cache.cursor[g], cache.filled[g] = stage, 0, 0


@_compiled
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


@_compiled
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
        _own_score(machines, groups, knobs, g, best, parts)
        _job_score(machines, counts, knobs, job, best, parts)
        parts[PACKAGES] = knobs.weights[PACKAGES] if best == last else 0.0
        placed.parts[i] = parts
        for k in range(number):
            placed.victims[preempted] = victims[k]
            preempted += 1
        placed.victims_to[i] = preempted
        _take(machines, running, levels, groups, counts, g, job, best, victims, number)
        done += 1
    placed.figures[2] = preempted


# --- why not -------------------------------------------------------------------------------------------


@_compiled
def rule_out(
    machines: Machines, levels: Levels, groups: Groups, g: int, counts: Counts, failed: Ints32, failures: Ints32,
    verdicts: Verdicts
) -> None:  # fmt: skip
    """Give each machine its verdict. `failed`: its first hard constraint that fails, -1; `failures`: how many do."""
    limit = groups.limit[g]
    left = levels.left[groups.level[g]]
    axis = limit.shape[0]
    hard = verdicts.constraint.shape[0]
    for m in machines.order:
        lacks = -1
        lacked = 0
        hold = failures[m] == 0
        for r in range(axis):
            if limit[r] == 0:
                continue
            if left[m, r] < limit[r]:
                lacked += 1
                if lacks < 0:
                    lacks = r
            if machines.capacity[m, r] < limit[r]:
                hold = False
        excess = spread_excess(machines, groups, g, m, counts)
        crashed = has_crashed(groups, g, m)
        if hold:
            verdicts.fits[1] += 1
        if failures[m] > 0:
            verdicts.constraint[failed[m]] += 1
        elif not machines.up[m]:
            verdicts.state[0] += 1
        elif lacked > 0:
            verdicts.resource[lacks] += 1
            verdicts.largest[lacks] = max(verdicts.largest[lacks], left[m, lacks])
        elif excess != FREE:
            verdicts.spread[excess] += 1
        elif crashed:
            verdicts.crashed[0] += 1
        else:
            verdicts.fits[0] += 1
        if not machines.up[m] or crashed or failures[m] + lacked + (1 if excess != FREE else 0) != 1:
            continue
        if failures[m] == 1:
            verdicts.only[failed[m], 1] += 1
        elif lacked == 1:
            _keep_best(verdicts.only, hard + lacks, left[m, lacks])
        else:
            job = groups.job[g]
            if excess == MACHINE_FULL:
                there = count_of(counts, job, 0, m)
            elif excess == RACK_FULL:
                there = count_of(counts, job, 1, machines.rack[m])
            else:
                there = count_of(counts, job, 2, machines.power[m])
            # The bound that stops it first may hide another one: only promise what is sure.
            if _only_bound(machines, groups, g, m, counts, excess):
                _keep_best(verdicts.only, hard + axis + excess, -(there + 1))


@_compiled
def _only_bound(machines: Machines, groups: Groups, g: int, m: int, counts: Counts, excess: int) -> bool:
    job = groups.job[g]
    rack = groups.max_rack[g] > 0 and count_of(counts, job, 1, machines.rack[m]) >= groups.max_rack[g]
    power = groups.max_power[g] > 0 and count_of(counts, job, 2, machines.power[m]) >= groups.max_power[g]
    if excess == MACHINE_FULL:
        return not rack and not power
    return excess == POWER_FULL or not power


@_compiled
def _keep_best(only: Ints, row: int, value: int) -> None:
    """The greatest value, and how many machines offer it."""
    if only[row, 1] == 0 or value > only[row, 0]:
        only[row, 0], only[row, 1] = value, 1
    elif value == only[row, 0]:
        only[row, 1] += 1


def compile_all() -> None:
    """Compile every kernel, or load it from the cache, with the very types that a pass uses."""
    from scheduling.core.warm import compile_kernels

    compile_kernels()


if __name__ == "__main__":
    # As the module of its name, not as __main__: that is what the cache knows it by.
    from scheduling.core.warm import compile_kernels

    compile_kernels()
