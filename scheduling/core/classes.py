"""Equivalence classes (§3.4): pending tasks that are examined together, as the arrays that kernels take.

A *group* is a class in one pass. Tasks of any jobs share one when requirement, way of placement (by limit or by
reservation) and whom they may preempt are equal. What depends on the job itself gives it groups of its own:
bounds on tasks per machine, rack or power domain; a task that crashed somewhere has one for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.core.layout import Bools, Floats, Groups, Ints32
from scheduling.core.policy import Policy
from scheduling.core.requirement import Constraint, Requirement
from scheduling.core.state import CellState
from scheduling.core.tasks import Job
from scheduling.core.walks import beginnings

Key = tuple[int, bool, int, int, int]  # shape, by limit, ceiling, own job, own task


@dataclass(slots=True)
class Sorting:
    """`groups`, and per position of the queue the group and the pass' own number of the job."""

    groups: Groups
    of_task: Ints32
    job: Ints32
    jobs: list[Job]
    requirements: list[Requirement]  # by group
    levels: list[tuple[int, bool]]  # (ceiling, by limit): whose room the groups ask for


def sort_into_groups(
    state: CellState, policy: Policy, slots: NDArray[np.int64], *, now: float, starts: np.random.Generator
) -> Sorting:
    """Groups of the queue `slots`, numbered in order of first appearance, so that no slot matters."""
    tasks = state.tasks
    pair = tasks.shape[slots].astype(np.int64) << 32 | tasks.job[slots]
    _, first, inverse = np.unique(pair, return_index=True, return_inverse=True)
    keys: dict[Key, int] = {}
    members: list[tuple[Key, Requirement]] = []
    of_pair = np.empty(len(first), dtype=np.int32)
    local: dict[int, int] = {}
    jobs: list[Job] = []
    job_of_pair = np.empty(len(first), dtype=np.int32)

    def number(key: Key) -> int:
        if key not in keys:
            keys[key] = len(members)
            members.append((key, tasks.shapes.requirement[key[0]]))
        return keys[key]

    for position in np.argsort(first):
        slot = slots[first[position]]
        job = tasks.job_at[tasks.job[slot]]
        assert job is not None
        if job.slot not in local:
            local[job.slot] = len(jobs)
            jobs.append(job)
        job_of_pair[position] = local[job.slot]
        shape = int(tasks.shape[slot])
        requirement = tasks.shapes.requirement[shape]
        bounded = (
            requirement.max_per_machine > 0
            or requirement.max_per_rack > 0
            or requirement.max_per_power_domain > 0
        )
        own = job.id if bounded else 0
        of_pair[position] = number((shape, job.by_limit, policy.ceiling(job.priority), own, 0))
    of_task = of_pair[inverse].astype(np.int32)
    job_of = job_of_pair[inverse].astype(np.int32)
    alone = _alone(state, policy, slots, now)
    for place in range(len(slots)) if not policy.search.classes else sorted(alone):
        key = members[of_task[place]][0]
        of_task[place] = number((*key[:4], int(tasks.id[slots[place]])))
    avoid = {members[of_task[place]][0]: machines for place, machines in alone.items()}
    levels = sorted({(0, key[1]) for key, _ in members} | {(key[2], key[1]) for key, _ in members})
    locals_ = {job.id: n for n, job in enumerate(jobs)}
    groups = _arrays(state, policy, members, locals_, levels, avoid)
    groups = groups._replace(start=beginnings(state, policy, groups, of_task, starts))
    return Sorting(groups, of_task, job_of, jobs, [requirement for _, requirement in members], levels)


def _alone(
    state: CellState, policy: Policy, slots: NDArray[np.int64], now: float
) -> dict[int, tuple[int, ...]]:
    """Positions of tasks that crashed not long ago, with the slots of the machines they did it on."""
    if not state.crashed:
        return {}
    result = {}
    for place, slot in enumerate(slots):
        pairs = state.crashed.get(int(state.tasks.id[slot]))
        if pairs:
            recent = [
                state.machines.slot[machine]
                for machine, when in sorted(pairs.items())
                if now - when < policy.crashed_pair_s and machine in state.machines.slot
            ]
            if recent:
                result[place] = tuple(recent)
    return result


def _arrays(
    state: CellState, policy: Policy, members: list[tuple[Key, Requirement]], local: dict[int, int],
    levels: list[tuple[int, bool]],
    avoid: dict[Key, tuple[int, ...]]
) -> Groups:  # fmt: skip
    number = len(members)
    hard: dict[tuple[Constraint, ...], Bools] = {}
    soft: dict[tuple[Constraint, ...], Floats] = {}
    rows: dict[tuple[Constraint, ...], int] = {}
    hard_row = np.zeros(number, dtype=np.int32)
    soft_row = np.full(number, -1, dtype=np.int32)
    for g, (_, requirement) in enumerate(members):
        demands = tuple(c for c in requirement.constraints if c.hard)
        wishes = tuple(c for c in requirement.constraints if not c.hard)
        if demands not in hard:
            rows[demands] = len(hard)
            hard[demands] = allowed(state, demands)
        hard_row[g] = rows[demands]
        if wishes and wishes not in soft:
            rows[wishes] = len(soft)
            soft[wishes] = _liking(state, wishes)
        if wishes:
            soft_row[g] = rows[wishes]
    avoided = [avoid.get(key, ()) for key, _ in members]
    ends = np.cumsum([len(machines) for machines in avoided], dtype=np.int32)
    slots = len(state.machines.id)
    shapes = np.array([key[0] for key, _ in members], dtype=np.int64)
    return Groups(
        limit=state.tasks.shapes.limit[shapes],
        by_limit=np.array([key[1] for key, _ in members], dtype=np.bool_),
        ceiling=np.array([key[2] for key, _ in members], dtype=np.int64),
        direct=np.array([levels.index((0, key[1])) for key, _ in members], dtype=np.int32),
        level=np.array([levels.index((key[2], key[1])) for key, _ in members], dtype=np.int32),
        hard=hard_row,
        soft=soft_row,
        max_machine=np.array([r.max_per_machine for _, r in members], dtype=np.int32),
        max_rack=np.array([r.max_per_rack for _, r in members], dtype=np.int32),
        max_power=np.array([r.max_per_power_domain for _, r in members], dtype=np.int32),
        job=np.array([local[key[3]] if key[3] else -1 for key, _ in members], dtype=np.int32),
        avoid_from=(ends - [len(machines) for machines in avoided]).astype(np.int32),
        avoid_to=ends,
        avoid=np.array([slot for machines in avoided for slot in machines], dtype=np.int32),
        allowed=np.array(list(hard.values()), dtype=np.bool_).reshape(len(hard), slots),
        liking=np.array(list(soft.values()), dtype=np.float64).reshape(len(soft), slots),
        start=np.zeros(number, dtype=np.int32),
    )


def allowed(state: CellState, demands: tuple[Constraint, ...]) -> Bools:
    """bool[M]: machines on which all hard constraints hold."""
    result = np.ones(len(state.machines.id), dtype=np.bool_)
    for constraint in demands:
        result &= state.machines.attributes.mask(constraint)
    return result


def _liking(state: CellState, wishes: tuple[Constraint, ...]) -> Floats:
    """float64[M]: the share, by weight, of the soft constraints that hold."""
    total = sum(constraint.weight for constraint in wishes) or 1.0
    result = np.zeros(len(state.machines.id), dtype=np.float64)
    for constraint in wishes:
        result += constraint.weight / total * state.machines.attributes.mask(constraint)
    return result
