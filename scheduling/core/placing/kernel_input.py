"""Converts the cell's state and the queue to arrays, the input of the kernels (compiled functions) of a pass."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.pools import PoolRule
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING, TaskTable
from scheduling.core.kernels.counts import count_all
from scheduling.core.kernels.filters import BLOCK
from scheduling.core.kernels.scorers import PACKINGS, PARTS, RUNNERS
from scheduling.core.kernels.victims import NO_BUDGET
from scheduling.core.placing.closed_machines import AVOIDED
from scheduling.core.placing.device_demand import typical_tasks
from scheduling.core.placing.equivalence_classes import GroupedQueue, Level
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.queue import first_gangs, may_start
from scheduling.core.placing.reserved_cores import Held
from scheduling.core.placing.search_start import walks
from scheduling.core.placing.total_free_capacity import FreeCapacity
from scheduling.core.vocabulary.kernel_arrays import (
    Bookings,
    Bools,
    Cache,
    Floats,
    Groups,
    Ints,
    Ints32,
    Placed,
    QueueArrays,
    Running,
    Scratch,
    SearchParams,
    Tables,
    TaskCounts,
)
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Constraint, Requirement

# Constraints, and how many maintenance windows count like a further one.
Demand = tuple[tuple[Constraint, ...], int]
# Largest number of bookings of one pass: each is for the first gang that does not fit in its band.
MOST_BOOKINGS = 2


def tables_of(
    state: CellState,
    policy: Policy,
    sorting: GroupedQueue,
    free: FreeCapacity,
    memory: PassCache,
    rng: np.random.Generator,
    held: Held | None = None,
    *,
    moving: bool = False,
    queue: QueueArrays | None = None,
) -> Tables:
    """Return the arrays that the kernels need for one pass. `sorting`: the queue and its groups.

    `free`: the free capacity of the machines. `memory`: the cache, which this call updates from the state. `rng`
    chooses the machine at which the search of each group begins. `held`: how many whole CPU cores tasks have reserved
    on each machine. `moving`: the tasks of the queue run on machines that they leave (`core/repacking`). So they do not
    count there as tasks of their jobs. `queue`: the queue, if its tasks are not in the state
    (`core/trials`).
    """
    tasks = state.tasks
    running = _running(state)
    limit = sorting.limit
    asked: Bools = np.logical_or.reduce(limit > 0)
    rows = memory.follow(state, running, sorting.levels, asked)
    memory.hold_cores(held)
    machines = memory.machines
    groups = _groups(state, policy, sorting, limit, free, memory, rows, rng)
    queue = _queue(state, sorting, memory) if queue is None else queue
    number, places = len(sorting.requirements), len(sorting.slots)
    sample = policy.search.sample if policy.search.randomise else len(machines.slot)
    width = max(1, min(sample, len(machines.slot)))
    bookings = min(MOST_BOOKINGS, int(np.count_nonzero(queue.books)))
    axis, longest = state.axis, int(state.machines.tasks.max(initial=0)) + 1
    return Tables(
        machines=machines,
        running=running,
        levels=memory.levels,
        groups=groups,
        queue=queue,
        bookings=Bookings(
            made=np.zeros(1, dtype=np.int64),
            extra=np.zeros((bookings, len(machines.slot), axis), dtype=np.int64),
            bound=np.zeros((bookings, number), dtype=np.bool_),
        ),
        counts=_counts(state, sorting, memory, moving=moving),
        cache=Cache(
            machine=np.zeros((number, width), dtype=np.int64),
            version=np.zeros((number, width), dtype=np.int32),
            score=np.zeros((number, width), dtype=np.float64),
            filled=np.zeros(number, dtype=np.int64),
            cursor=np.zeros(number, dtype=np.int64),
            stage=np.zeros(number, dtype=np.int64),
            offered=np.zeros(number, dtype=np.int64),
            near=np.zeros(number, dtype=np.int64),
            passed_over=np.zeros(number, dtype=np.bool_),
        ),
        knobs=_knobs(state, policy, sorting, asked),
        placed=Placed(
            machine=np.full(places, -1, dtype=np.int64),
            parts=np.zeros((places, PARTS), dtype=np.float64),
            devices=np.zeros(places, dtype=np.int64),
            runner=np.full((places, RUNNERS), -1, dtype=np.int64),
            runner_score=np.zeros((places, RUNNERS), dtype=np.float64),
            victims_from=np.zeros(places, dtype=np.int64),
            victims_to=np.zeros(places, dtype=np.int64),
            victims=np.zeros(tasks.running + 1, dtype=np.int64),
            emptied=np.zeros(places, dtype=np.int64),
            figures=np.zeros(5, dtype=np.int64),
        ),
        scratch=Scratch(
            victims=np.zeros(longest, dtype=np.int64),
            relief=np.zeros(longest, dtype=np.float64),
            parts=np.zeros(PARTS, dtype=np.float64),
            mask=np.zeros(BLOCK, dtype=np.bool_),
            top=np.zeros(RUNNERS + 1, dtype=np.int64),
            top_score=np.zeros(RUNNERS + 1, dtype=np.float64),
            sums=np.zeros((len(memory.levels.ceiling), 2, axis), dtype=np.int64),
        ),
    )


def _running(state: CellState) -> Running:
    tasks = state.tasks
    budget = _budgets(tasks)
    return Running(
        id=tasks.id,
        next=tasks.next,
        job=tasks.job,
        shape=tasks.shape,
        reservation=tasks.reservation,
        devices=tasks.devices,
        gone=np.zeros(len(tasks.id), dtype=np.bool_),
        sheltered=_sheltered(tasks, budget),
        job_priority=tasks.job_priority,
        job_by_limit=tasks.job_by_limit,
        job_sensitive=tasks.job_sensitive,
        budget=budget,
        shape_limit=tasks.shapes.limit,
        shape_cores=tasks.shapes.cores,
    )


def _budgets(tasks: TaskTable) -> Ints32:
    """Return an array [J]: how many more tasks of each job may be preempted within its disruption budget."""
    budget: Ints32 = np.full(len(tasks.job_budget), NO_BUDGET, dtype=np.int32)
    if tasks.budgets:
        own = np.flatnonzero(tasks.job_budget > 0)
        budget[own] = tasks.job_budget[own] - tasks.down(own)
    for job_id, left in tasks.disruptions_left.items():
        job = tasks.jobs.get(job_id)
        if job is not None:
            budget[job.slot] = min(int(budget[job.slot]), left)
    return budget


def _sheltered(tasks: TaskTable, budget: Ints32) -> NDArray[np.bool_]:
    """Return an array [T]: whether each task is an alloc that must not be evicted, because its eviction would exceed a
    disruption budget. This is so if the tasks of one job inside the alloc are more than the job's budget now allows to
    be down, or if they are more than is left after the allocs in earlier slots, because a pass may preempt several
    allocs. `budget`: as `_budgets` returns it.
    """
    result = np.zeros(len(tasks.id), dtype=np.bool_)
    if not (tasks.budgets or tasks.disruptions_left):
        return result
    inside = np.flatnonzero((tasks.state == RUNNING) & (tasks.alloc >= 0))
    inside = inside[budget[tasks.job[inside]] != NO_BUDGET]
    pairs, number = np.unique(tasks.alloc[inside].astype(np.int64) << 32 | tasks.job[inside], return_counts=True)
    alloc, job = pairs >> 32, pairs & 0xFFFFFFFF
    alone = number <= budget[job]
    result[alloc[~alone]] = True
    order = np.flatnonzero(alone)[np.argsort(job[alone], kind="stable")]
    total = np.cumsum(number[order])
    first = np.diff(job[order], prepend=-1) != 0
    before = (total - number[order])[first][np.cumsum(first) - 1] if len(order) else total
    result[alloc[order][total - before > budget[job[order]]]] = True
    return result


def _queue(state: CellState, sorting: GroupedQueue, memory: PassCache) -> QueueArrays:
    tasks, slots = state.tasks, sorting.slots
    last = np.full(len(slots), -1, dtype=np.int64)
    for at in tasks.last[slots].nonzero()[0].tolist():
        machine = state.machines.slot.get(int(tasks.last[slots[at]]))
        # For tasks with packages, the machines' reports count instead.
        named = sorting.requirements[sorting.of_task[at]].packages
        if machine is not None and not named:
            last[at] = memory.position[machine]
    gang_end = np.zeros(len(slots), dtype=np.int64)
    books = np.zeros(len(slots), dtype=np.bool_)
    if tasks.gangs:
        books = first_gangs(tasks, slots)
        ganged = tasks.job_gang[tasks.job[slots]]
        starts = np.flatnonzero(np.diff(sorting.job, prepend=-1) != 0)
        ends = np.append(starts[1:], len(slots))
        own = ganged[starts]
        gang_end[starts[own]] = ends[own]
    return QueueArrays(
        sorting.of_task.astype(np.int64),
        sorting.job.astype(np.int64),
        last,
        gang_end,
        books,
        may_start(tasks, np.array([job.slot for job in sorting.jobs], dtype=np.int64)),
    )


def _counts(state: CellState, sorting: GroupedQueue, memory: PassCache, *, moving: bool) -> TaskCounts:
    """Return how many tasks of each job in the queue run on each machine, in each rack and in each power domain. Jobs
    that have only one task are not counted. `moving`: as in `tables_of`.
    """
    tasks = state.tasks
    size = np.array([np.count_nonzero(job.tasks >= 0) for job in sorting.jobs], dtype=np.int64)
    size = np.maximum(size, np.bincount(sorting.job, minlength=len(size)))  # the state has no tasks of a job on trial
    several = (size > 1).nonzero()[0].tolist()
    local = on = np.zeros(0, dtype=np.int32)
    if several:
        theirs = [sorting.jobs[number].tasks for number in several]
        slots = np.concatenate(theirs)
        there = (slots >= 0) & (tasks.state[slots] == RUNNING) & (tasks.machine[slots] >= 0)
        if moving:
            there &= ~np.isin(slots, sorting.slots)
        local = np.repeat(np.array(several, dtype=np.int32), [len(own) for own in theirs])[there]
        on = memory.position[tasks.machine[slots[there]]]
    room = 1 << max(4, math.ceil(math.log2(2 * (len(local) + len(sorting.slots)) + 1)))
    row = np.full(len(size), -1, dtype=np.int32)
    row[several] = np.arange(len(several), dtype=np.int32)
    machines = memory.machines
    racks, domains = (int(one.max(initial=-1)) + 1 if several else 0 for one in (machines.rack, machines.power))
    counts = TaskCounts(
        keys=np.full(room, -1, dtype=np.int64),
        values=np.zeros(room, dtype=np.int32),
        rack=np.zeros((len(several), racks), dtype=np.int32),
        power=np.zeros((len(several), domains), dtype=np.int32),
        row=row,
        size=size,
    )
    if len(on):
        count_all(machines, counts, local.astype(np.int64), on.astype(np.int64))
    return counts


def _knobs(state: CellState, policy: Policy, sorting: GroupedQueue, asked: NDArray[np.bool_]) -> SearchParams:
    weights, tasks = policy.weights, state.tasks
    highest = int(sorting.ceiling.max(initial=0))
    return SearchParams(
        packing=PACKINGS[policy.scorer],
        weights=np.array(
            [
                weights.packing,
                weights.spread_machine,
                weights.spread_rack,
                weights.spread_power_domain,
                weights.soft_constraints,
                weights.packages,
                weights.mixing,
                weights.preemption,
            ],
            dtype=np.float64,
        ),
        resources=_resource_shares(policy.resource_weights, state.axis),
        asked=asked,
        preempting=state.running > 0 and bool((tasks.job_there & (tasks.job_priority < highest)).any()),
        budgets=tasks.budgets > 0 or bool(tasks.disruptions_left),
        caching=policy.search.caching,
        most=policy.max_assignments,
    )


@lru_cache
def _resource_shares(weights: tuple[float, ...], axis: int) -> Floats:
    """Return how much each resource counts for packing, as shares of 1. `weights`: of the resources, as in `Policy`.
    `axis`: how many resources the cell has. Callers must not write to the array.
    """
    known = weights[:axis]
    resources = np.array((*known, *[0.0] * (axis - len(known))), dtype=np.float64)
    total = resources.sum()
    return resources / total if total > 0 else resources


def _groups(
    state: CellState,
    policy: Policy,
    sorting: GroupedQueue,
    limit: Ints,
    free: FreeCapacity,
    memory: PassCache,
    rows: dict[Level, int],
    rng: np.random.Generator,
) -> Groups:
    """Return the groups of pending tasks as arrays for the kernels. `limit` [G, R]: the request of each group. `rows`:
    for each level (way to count free capacity), its row in `memory.levels`.
    """
    number = len(sorting.requirements)
    demands = [tuple(c for c in r.constraints if c.hard) for r in sorting.requirements]
    wishes = [tuple(c for c in r.constraints if not c.hard) for r in sorting.requirements]
    closed, avoided = _windows(sorting)
    demanded = list(zip(demands, closed, strict=True))
    wished = [(wish, far if far > near else 0) for wish, far, near in zip(wishes, avoided, closed, strict=True)]
    hard, soft = _rows(demanded), _rows([one for one in wished if any(one)])
    offered = [(requirement.packages, _preferred(requirement)) for requirement in sorting.requirements]
    named = {distinct: row for row, distinct in enumerate(dict.fromkeys(filter(any, offered)))}
    present = [memory.offered(*distinct) for distinct in named]
    near_from, near_to = _spans([there for _, there in present])
    crashed = [sorting.avoid.get(g, ()) for g in range(number)]
    avoid_from, avoid_to = _spans(crashed)
    machines = len(memory.machines.slot)
    bounds = sorting.bounds
    levels = list(zip(sorting.ceiling.tolist(), sorting.by_limit.tolist(), strict=True))
    typical, popularity = typical_tasks(state)
    start, further = walks(state, policy, limit, sorting.by_limit, sorting.of_task, free, rng)
    return Groups(
        limit=limit,
        by_limit=sorting.by_limit,
        ceiling=sorting.ceiling,
        direct=np.array([rows[0, by_limit] for _, by_limit in levels], dtype=np.int32),
        level=np.array([rows[level] for level in levels], dtype=np.int32),
        hard=np.array([hard[demand] for demand in demanded], dtype=np.int32),
        soft=np.array([soft.get(wish, -1) for wish in wished], dtype=np.int32),
        max_machine=np.ascontiguousarray(bounds[:, 0]),
        max_rack=np.ascontiguousarray(bounds[:, 1]),
        max_power=np.ascontiguousarray(bounds[:, 2]),
        job=sorting.own_job,
        avoid_from=avoid_from,
        avoid_to=avoid_to,
        avoid=memory.position[[slot for own in crashed for slot in own]],
        allowed=np.array([_allowed(memory, sorting, *d) for d in hard], dtype=np.bool_).reshape(len(hard), machines),
        liking=np.array([_liking(memory, sorting, *w) for w in soft], dtype=np.float64).reshape(len(soft), machines),
        start=start,
        cores=sorting.cores,
        packages=np.array([named.get(own, -1) for own in offered], dtype=np.int32),
        present=np.array([share for share, _ in present], dtype=np.float64).reshape(len(named), machines),
        near_from=near_from,
        near_to=near_to,
        near=np.concatenate((np.zeros(0, dtype=np.int64), *(there for _, there in present))),
        further=further,
        typical=typical,
        popularity=popularity,
    )


def _preferred(requirement: Requirement) -> tuple[Constraint, ...]:
    """Return the rules of the pools that tasks with the requirement prefer."""
    return tuple(one for one in requirement.constraints if isinstance(one, PoolRule) and not one.hard)


def _windows(sorting: GroupedQueue) -> tuple[list[int], list[int]]:
    """Return how many planned maintenance windows close machines to each group, and how many each group avoids."""
    concerns = sorting.maintenance
    if concerns is None:
        none = [0] * len(sorting.requirements)
        return none, none
    return concerns.closed.tolist(), concerns.avoided.tolist()


def _allowed(memory: PassCache, sorting: GroupedQueue, demands: tuple[Constraint, ...], closed: int) -> Bools:
    """Return an array [P]: whether each machine satisfies the hard constraints `demands`, and is in none of the first
    `closed` maintenance windows.
    """
    allowed = memory.allowed(demands)
    if not closed:
        return allowed
    assert sorting.maintenance is not None
    result: Bools = allowed & ~sorting.maintenance.planned.covered(closed)[memory.machines.slot]
    return result


def _liking(memory: PassCache, sorting: GroupedQueue, wishes: tuple[Constraint, ...], avoided: int) -> Floats:
    """Return an array [P]: the share of the soft constraints `wishes` that each machine satisfies. It is lower by
    `AVOIDED` for machines in one of the first `avoided` maintenance windows.
    """
    liking = memory.liking(wishes)
    if not avoided:
        return liking
    assert sorting.maintenance is not None
    return liking - AVOIDED * sorting.maintenance.planned.covered(avoided)[memory.machines.slot]


def _spans(parts: Sequence[Collection[object]]) -> tuple[Ints32, Ints32]:
    """Return where each of `parts` begins and ends in an array that contains all of them, one after the other."""
    bounds = np.array([0, *accumulate(map(len, parts))], dtype=np.int32)
    return bounds[:-1], bounds[1:]


def _rows(demands: list[Demand]) -> dict[Demand, int]:
    return {distinct: row for row, distinct in enumerate(dict.fromkeys(demands))}
