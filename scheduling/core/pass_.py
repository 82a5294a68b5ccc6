"""The seam of scheduling (§3.2): one function, and all of a pass is behind it.

pending ─ queue.py ─► order ─ classes.py ─► groups ─ kernels/walk.py ─► machines, victims ─► ports ─► Plan
              └─ who lives in allocs ─ allocs.py ─► allocs ─┘              └─ groups that are full ─ explain.py ─► Why
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quota.resources import PORTS
from scheduling.core.allocs import Taken, place_in_allocs
from scheduling.core.classes import Sorting, arrays, sort_into_groups
from scheduling.core.explain import Explainer
from scheduling.core.kernels.counts import count_all
from scheduling.core.kernels.filters import BLOCK
from scheduling.core.kernels.scorers import PACKINGS, PART_NAMES, PARTS, RUNNERS
from scheduling.core.kernels.victims import NO_BUDGET
from scheduling.core.kernels.walk import place
from scheduling.core.layout import Cache, Counts, Knobs, Placed, Queue, Running, Scratch, Tables
from scheduling.core.memory import Memory
from scheduling.core.plan import Assignment, PassStats, Plan
from scheduling.core.policy import Policy
from scheduling.core.queue import pending_in_order, pending_of
from scheduling.core.requirement import INDEX_BITS, MAX_TASKS, split_task_id
from scheduling.core.state import CellState
from scheduling.core.tasks import RUNNING

Rows = NDArray[np.int64]


def schedule_pass(
    state: CellState,
    policy: Policy,
    *,
    now: float,
    rng: np.random.Generator,
    memory: Memory | None = None,
    explainer: Explainer | None = None,
) -> Plan:
    """Find machines for pending tasks. `now`: seconds since the epoch; `rng` seeds the walks over machines.
    `explainer`: what is known of classes left over before, and how many to examine; without, all of them are.

    The state is not changed. Equal state, policy, `now` and seed give an equal plan, whatever the order in which the
    state was built, and with or without a `memory`, which only saves work: give the same one to every pass over
    a state. (Bands other than those the state was counted by are taken over into it first:
    `CellState.count_by_limit`.)
    """
    if state.pending == 0:
        return Plan(revision=state.revision)
    state.count_by_limit(policy)
    own = pending_of(state.tasks, policy.workload)
    if len(own) == 0:
        return Plan(revision=state.revision)
    inside = state.tasks.job_alloc_set[state.tasks.job[own]] > 0
    slots = pending_in_order(state.tasks, own[~inside])
    sorting = sort_into_groups(state, policy, slots, now=now)
    memory = Memory() if memory is None else memory
    tables = _tables(state, policy, sorting, memory, rng)
    if len(state.machines):
        memory.spoil(np.arange(len(state.machines)))
        place(tables)
        memory.spoil(tables.placed.machine[tables.placed.machine >= 0])
    taken: Taken = {}
    assignments = _assignments(state, sorting, tables, taken)
    unplaced = (explainer or Explainer()).explain(
        state, sorting, tables, now=now, crashed_pair_s=policy.crashed_pair_s
    )
    ports_free = state.machines.ports_free.copy()
    ports_free[tables.machines.slot] = tables.machines.ports_free
    into_allocs, left_out = place_in_allocs(
        state, policy, pending_in_order(state.tasks, own[inside]),
        gone=tables.running.gone, ports_free=ports_free, taken=taken, now=now,
        most=policy.max_assignments - len(assignments),
    )  # fmt: skip
    assignments += tuple(into_allocs)
    unplaced += tuple(left_out)
    return Plan(
        revision=state.revision,
        assignments=assignments,
        unplaced=unplaced,
        stats=PassStats(
            pending=len(own),
            classes=len(sorting.requirements),
            placed=len(assignments),
            preempted=int(tables.placed.figures[2]),
            cache_hits=int(tables.placed.figures[0]),
            cache_misses=int(tables.placed.figures[1]),
        ),
    )


def _tables(
    state: CellState, policy: Policy, sorting: Sorting, memory: Memory, rng: np.random.Generator
) -> Tables:
    tasks = state.tasks
    running = _running(state)
    rows = memory.follow(state, running, sorting.levels)
    machines = memory.machines
    groups = arrays(state, policy, sorting, memory, rows, rng)
    queue = _queue(state, sorting, memory)
    number, places = len(sorting.requirements), len(sorting.slots)
    sample = policy.search.sample if policy.search.randomise else len(machines.slot)
    width = max(1, min(sample, len(machines.slot)))
    axis, longest = state.axis, int(state.machines.tasks.max(initial=0)) + 1
    return Tables(
        machines=machines,
        running=running,
        levels=memory.levels,
        groups=groups,
        queue=queue,
        counts=_counts(state, sorting, memory),
        cache=Cache(
            machine=np.zeros((number, width), dtype=np.int64),
            version=np.zeros((number, width), dtype=np.int32),
            score=np.zeros((number, width), dtype=np.float64),
            filled=np.zeros(number, dtype=np.int64),
            cursor=np.zeros(number, dtype=np.int64),
            stage=np.zeros(number, dtype=np.int64),
        ),
        knobs=_knobs(state, policy, sorting),
        placed=Placed(
            machine=np.full(places, -1, dtype=np.int64),
            parts=np.zeros((places, PARTS), dtype=np.float64),
            devices=np.zeros(places, dtype=np.int64),
            runner=np.full((places, RUNNERS), -1, dtype=np.int64),
            runner_score=np.zeros((places, RUNNERS), dtype=np.float64),
            victims_from=np.zeros(places, dtype=np.int64),
            victims_to=np.zeros(places, dtype=np.int64),
            victims=np.zeros(tasks.running + 1, dtype=np.int64),
            figures=np.zeros(3, dtype=np.int64),
        ),
        scratch=Scratch(
            victims=np.zeros(longest, dtype=np.int64),
            relief=np.zeros(longest, dtype=np.float64),
            parts=np.zeros(PARTS, dtype=np.float64),
            mask=np.zeros(BLOCK, dtype=np.bool_),
            top=np.zeros(RUNNERS + 1, dtype=np.int64),
            top_score=np.zeros(RUNNERS + 1, dtype=np.float64),
            sums=np.zeros((2, axis), dtype=np.int64),
        ),
    )


def _running(state: CellState) -> Running:
    tasks = state.tasks
    return Running(
        id=tasks.id,
        next=tasks.next,
        job=tasks.job,
        shape=tasks.shape,
        reservation=tasks.reservation,
        devices=tasks.devices,
        gone=np.zeros(len(tasks.id), dtype=np.bool_),
        job_priority=tasks.job_priority,
        job_by_limit=tasks.job_by_limit,
        budget=np.where(tasks.job_budget > 0, tasks.job_budget - tasks.job_pending, NO_BUDGET).astype(
            np.int32
        ),
        shape_limit=tasks.shapes.limit,
    )


def _queue(state: CellState, sorting: Sorting, memory: Memory) -> Queue:
    tasks, slots = state.tasks, sorting.slots
    last = np.full(len(slots), -1, dtype=np.int64)
    for at in np.flatnonzero(tasks.last[slots]).tolist():
        machine = state.machines.slot.get(int(tasks.last[slots[at]]))
        if machine is not None:
            last[at] = memory.position[machine]
    gang_end = np.zeros(len(slots), dtype=np.int64)
    ganged = tasks.job_gang[tasks.job[slots]]
    if ganged.any():
        starts = np.flatnonzero(np.diff(sorting.job, prepend=-1) != 0)
        ends = np.append(starts[1:], len(slots))
        own = ganged[starts]
        gang_end[starts[own]] = ends[own]
    return Queue(sorting.of_task.astype(np.int64), sorting.job.astype(np.int64), last, gang_end)


def _counts(state: CellState, sorting: Sorting, memory: Memory) -> Counts:
    """Where the running tasks of the queue's jobs are. Jobs of one task need no counting."""
    tasks = state.tasks
    size = np.array([int((job.tasks >= 0).sum()) for job in sorting.jobs], dtype=np.int64)
    several = np.flatnonzero(size > 1).tolist()
    theirs = [sorting.jobs[number].tasks for number in several]
    local = np.repeat(np.array(several, dtype=np.int32), [len(own) for own in theirs])
    slots = np.concatenate(theirs) if theirs else np.zeros(0, dtype=np.int32)
    there = (slots >= 0) & (tasks.state[slots] == RUNNING) & (tasks.machine[slots] >= 0)
    local, on = local[there], memory.position[tasks.machine[slots[there]]]
    room = 1 << max(4, math.ceil(math.log2(2 * (len(local) + len(sorting.slots)) + 1)))
    row = np.full(len(size), -1, dtype=np.int32)
    row[several] = np.arange(len(several), dtype=np.int32)
    machines = memory.machines
    counts = Counts(
        keys=np.full(room, -1, dtype=np.int64),
        values=np.zeros(room, dtype=np.int32),
        rack=np.zeros((len(several), int(machines.rack.max(initial=-1)) + 1), dtype=np.int32),
        power=np.zeros((len(several), int(machines.power.max(initial=-1)) + 1), dtype=np.int32),
        row=row,
        size=size,
    )
    count_all(machines, counts, local.astype(np.int64), on.astype(np.int64))
    return counts


def _knobs(state: CellState, policy: Policy, sorting: Sorting) -> Knobs:
    limit = state.tasks.shapes.limit[sorting.shape]
    weights = policy.weights
    resources = np.zeros(state.axis, dtype=np.float64)
    known = policy.resource_weights[: state.axis]
    resources[: len(known)] = known
    total = resources.sum()
    highest = int(sorting.ceiling.max(initial=0))
    return Knobs(
        packing=PACKINGS[policy.scorer],
        weights=np.array(
            [
                weights.packing, weights.spread_machine, weights.spread_rack, weights.spread_power_domain,
                weights.soft_constraints, weights.packages, weights.mixing, weights.preemption,
            ],
            dtype=np.float64,
        ),
        resources=resources / total if total > 0 else resources,
        asked=np.any(limit > 0, axis=0),
        preempting=state.running > 0 and any(job.priority < highest for job in state.tasks.jobs.values()),
        budgets=bool((state.tasks.job_budget > 0).any()),
        caching=policy.search.caching,
        most=policy.max_assignments,
    )  # fmt: skip


def _assignments(state: CellState, sorting: Sorting, tables: Tables, taken: Taken) -> tuple[Assignment, ...]:
    """The kernel's answer as values: ids for slots, port numbers, the score by part."""
    placed, tasks, machines = tables.placed, state.tasks, state.machines
    where = np.flatnonzero(placed.machine >= 0)
    identities = tasks.id[sorting.slots[where]]
    at = tables.machines.slot[placed.machine[where]]
    parts = np.round(placed.parts[where], 4).tolist()
    runners = np.where(placed.runner[where] >= 0, machines.id[tables.machines.slot[placed.runner[where]]], 0)
    totals = np.round(placed.runner_score[where], 4).tolist()
    ports = _port_numbers(state, at, tables.groups.limit[sorting.of_task[where], PORTS], taken)
    victims = {
        i: tuple(
            split_task_id(victim)
            for victim in tasks.id[placed.victims[placed.victims_from[q] : placed.victims_to[q]]].tolist()
        )
        for i, q in enumerate(where.tolist())
        if placed.victims_to[q] > placed.victims_from[q]
    } if placed.figures[2] else {}  # fmt: skip
    devices = placed.devices[where].tolist()
    result = []
    for i, (job_id, index, machine_id, own, others, scores, mask) in enumerate(
        zip(
            (identities >> INDEX_BITS).tolist(),
            (identities & (MAX_TASKS - 1)).tolist(),
            machines.id[at].tolist(),
            parts,
            runners.tolist(),
            totals,
            devices,
            strict=True,
        )
    ):
        score = {name: value for name, value in zip(PART_NAMES, own, strict=True) if value}
        if others[-1]:
            runners_up = tuple(zip(others, scores, strict=True))
        else:
            runners_up = tuple(pair for pair in zip(others, scores, strict=True) if pair[0])
        result.append(
            Assignment(
                job_id,
                index,
                machine_id,
                ports.get(i, ()),
                victims.get(i, ()),
                score,
                0,
                _bits(mask) if mask else (),
                runners_up,
            )
        )
    return tuple(result)


def _port_numbers(
    state: CellState, at: NDArray[np.int32], wanted: Rows, taken: Taken
) -> dict[int, tuple[int, ...]]:
    """The numbers for each assignment that wants any; no two of a pass get the same on one machine."""
    return {
        i: state.machines.ports[slot].offer(number, taken.setdefault(slot, set()))
        for i, (slot, number) in enumerate(zip(at.tolist(), wanted.tolist(), strict=True))
        if number
    }


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
