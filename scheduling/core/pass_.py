"""The seam of scheduling (§3.2): one function, and all of a pass is behind it.

pending ─ queue.py ─► order ─ classes.py ─► groups ─ kernels.place ─► machines, victims ─► ports ─► Plan
                                                          └─ groups that are full ─ explain.py ─► Why
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quota.resources import PORTS
from scheduling.core.classes import Sorting, sort_into_groups
from scheduling.core.explain import Explainer
from scheduling.core.kernels.counts import count_all
from scheduling.core.kernels.room import count_room
from scheduling.core.kernels.scorers import PACKINGS, PART_NAMES, PARTS
from scheduling.core.kernels.walk import place
from scheduling.core.layout import Cache, Counts, Knobs, Levels, Machines, Placed, Queue, Running
from scheduling.core.plan import Assignment, PassStats, Plan
from scheduling.core.policy import Policy
from scheduling.core.queue import pending_in_order, pending_of
from scheduling.core.requirement import split_task_id
from scheduling.core.state import CellState
from scheduling.core.tasks import RUNNING


def schedule_pass(
    state: CellState, policy: Policy, *, now: float, rng: np.random.Generator, explainer: Explainer | None = None
) -> Plan:  # fmt: skip
    """Find machines for pending tasks. `now`: seconds since the epoch; `rng` seeds the walks over machines.
    `explainer`: what is known of classes left over before, and how many to examine; without, all of them are.

    The state is not changed: the pass works on copies of what machines have left (three arrays of M × R), and
    marks victims in an array of its own. Equal state, policy, `now` and seed give an equal plan, whatever the
    order in which the state was built. (Bands other than those the state was counted by are taken over into it
    first: `CellState.count_by_limit`.)
    """
    if state.pending == 0:
        return Plan(revision=state.revision)
    state.count_by_limit(policy)
    own = pending_of(state.tasks, policy.workload)
    slots = pending_in_order(state.tasks, own)
    if len(slots) == 0:
        return Plan(revision=state.revision, stats=PassStats(pending=len(own)))
    sorting = sort_into_groups(state, policy, slots, now=now, starts=rng)
    tables = _tables(state, policy, slots, sorting)
    if len(state.machines):
        place(
            tables.machines, tables.running, tables.levels, sorting.groups, tables.queue, tables.counts, tables.cache,
            tables.knobs, tables.placed, int(state.machines.tasks.max(initial=0)),
        )  # fmt: skip
    assignments = _assignments(state, slots, sorting, tables)
    unplaced = (explainer or Explainer()).explain(
        state, sorting, tables.machines, tables.levels, tables.counts, tables.placed.machine,
        now=now, crashed_pair_s=policy.crashed_pair_s,
    )  # fmt: skip
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


class _Tables(NamedTuple):
    machines: Machines
    running: Running
    levels: Levels
    queue: Queue
    counts: Counts
    cache: Cache
    knobs: Knobs
    placed: Placed


def _tables(state: CellState, policy: Policy, slots: NDArray[np.int64], sorting: Sorting) -> _Tables:
    machines, tasks = state.machines, state.tasks
    order = machines.order
    rank = np.zeros(len(machines.id), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    up = machines.up
    tables = Machines(
        order=order,
        rank=rank,
        up=up,
        capacity=machines.capacity,
        reserved=machines.reserved.copy(),
        prod_limit=machines.prod_limit.copy(),
        ports_free=machines.ports_free.copy(),
        rack=machines.rack,
        power=machines.power,
        head=machines.head,
        version=np.zeros(len(machines.id), dtype=np.int32),
    )
    running = Running(
        id=tasks.id,
        next=tasks.next,
        job=tasks.job,
        shape=tasks.shape,
        reservation=tasks.reservation,
        gone=np.zeros(len(tasks.id), dtype=np.bool_),
        job_priority=tasks.job_priority,
        job_by_limit=tasks.job_by_limit,
        shape_limit=tasks.shapes.limit,
    )
    last = np.full(len(slots), -1, dtype=np.int32)
    for position in np.flatnonzero(tasks.last[slots]):
        last[position] = machines.slot.get(int(tasks.last[slots[position]]), -1)
    groups = len(sorting.requirements)
    sample = policy.search.sample if policy.search.randomise else len(order)
    width = max(1, min(sample, len(order)))
    cache = Cache(
        machine=np.zeros((groups, width), dtype=np.int32),
        version=np.zeros((groups, width), dtype=np.int32),
        score=np.zeros((groups, width), dtype=np.float64),
        filled=np.zeros(groups, dtype=np.int32),
        cursor=np.zeros(groups, dtype=np.int32),
        stage=np.zeros(groups, dtype=np.int32),
    )
    placed = Placed(
        machine=np.full(len(slots), -1, dtype=np.int32),
        parts=np.zeros((len(slots), PARTS), dtype=np.float64),
        victims_from=np.zeros(len(slots), dtype=np.int32),
        victims_to=np.zeros(len(slots), dtype=np.int32),
        victims=np.zeros(tasks.running + 1, dtype=np.int32),
        figures=np.zeros(3, dtype=np.int64),
    )
    levels = Levels(
        left=np.zeros((len(sorting.levels), len(machines.id), state.axis), dtype=np.int64),
        ceiling=np.array([ceiling for ceiling, _ in sorting.levels], dtype=np.int64),
        by_limit=np.array([by_limit for _, by_limit in sorting.levels], dtype=np.bool_),
    )
    count_room(tables, running, levels)
    queue = Queue(sorting.of_task, sorting.job, last)
    return _Tables(
        tables, running, levels, queue, _counts(state, slots, sorting, tables), cache,
        _knobs(state, policy, len(order)), placed,
    )  # fmt: skip


def _counts(state: CellState, slots: NDArray[np.int64], sorting: Sorting, machines: Machines) -> Counts:
    """Where the running tasks of the queue's jobs are. Jobs of one task need no counting."""
    size = np.array([int((job.tasks >= 0).sum()) for job in sorting.jobs], dtype=np.int64)
    theirs = [job.tasks[job.tasks >= 0] for job, n in zip(sorting.jobs, size, strict=True) if n > 1]
    number = [n for n, (s) in enumerate(size) if s > 1]
    local = np.repeat(np.array(number, dtype=np.int32), [len(own) for own in theirs])
    all_slots = np.concatenate(theirs) if theirs else np.zeros(0, dtype=np.int32)
    there = (state.tasks.state[all_slots] == RUNNING) & (state.tasks.machine[all_slots] >= 0)
    local, on = local[there], state.tasks.machine[all_slots[there]]
    room = 1 << max(4, math.ceil(math.log2(6 * (len(local) + len(slots)) + 1)))
    counts = Counts(np.full(room, -1, dtype=np.int64), np.zeros(room, dtype=np.int32), size)
    count_all(machines, counts, local.astype(np.int32), on)
    return counts


def _knobs(state: CellState, policy: Policy, machines: int) -> Knobs:
    weights = policy.weights
    resources = np.zeros(state.axis, dtype=np.float64)
    known = policy.resource_weights[: state.axis]
    resources[: len(known)] = known
    total = resources.sum()
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
        step=_step(machines) if policy.search.randomise else 1,
        caching=policy.search.caching,
        most=policy.max_assignments,
    )  # fmt: skip


def _step(machines: int) -> int:
    """A stride that visits every machine once and leaves neighbours, which share racks, far apart."""
    step = max(1, round(machines * 0.6180339887))
    while math.gcd(step, machines) != 1:
        step += 1
    return step


def _assignments(
    state: CellState, slots: NDArray[np.int64], sorting: Sorting, tables: _Tables
) -> tuple[Assignment, ...]:
    """The kernel's answer as values: ids for slots, port numbers, the score by part."""
    placed = tables.placed
    tasks, machines = state.tasks, state.machines
    taken: dict[int, set[int]] = {}
    where = np.flatnonzero(placed.machine >= 0)
    identities = tasks.id[slots[where]].tolist()
    at = placed.machine[where].tolist()
    ids = machines.id[placed.machine[where]].tolist()
    parts = np.round(placed.parts[where], 6).tolist()
    number = sorting.groups.limit[sorting.of_task[where], PORTS].tolist()
    begins, ends = placed.victims_from[where].tolist(), placed.victims_to[where].tolist()
    result = []
    for i, identity in enumerate(identities):
        job_id, index = split_task_id(identity)
        ports: tuple[int, ...] = ()
        if number[i]:
            ports = machines.ports[at[i]].offer(number[i], taken.setdefault(at[i], set()))
        victims = tuple(
            split_task_id(int(tasks.id[victim])) for victim in placed.victims[begins[i] : ends[i]]
        )
        score = {name: value for name, value in zip(PART_NAMES, parts[i], strict=True) if value}
        result.append(Assignment(job_id, index, ids[i], ports, victims, score))
    return tuple(result)
