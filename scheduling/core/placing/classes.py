"""Equivalence classes (§3.4): pending tasks that are examined together, as arrays for the kernels.

A *group* is a class in one pass. Tasks belong to one group if they have the same requirement, the same way of placement
(by limit or by reservation) and may preempt the same priorities. A job with bounds on tasks per machine, rack or power
domain has groups of its own. A task that crashed recently is a group of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import LiveJob
from scheduling.core.placing.device_demand import typical_tasks
from scheduling.core.placing.pass_cache import Level, PassCache
from scheduling.core.placing.walks import walks
from scheduling.core.vocabulary.layout import Groups, Ints, Ints32
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Constraint, Requirement

Rows = NDArray[np.int64]


@dataclass(slots=True)
class GroupedQueue:
    """The queue of pending tasks, with equal tasks in one group.

    The arrays have one element per queue position: the group of the task, and the number that the pass gives to the
    job. `first`: for each group, the queue position of its first task.
    """

    slots: Rows
    of_task: Ints32
    job: Ints32
    jobs: list[LiveJob]
    first: Rows
    shape: Ints32  # by group, as all below
    by_limit: NDArray[np.bool_]
    ceiling: Ints
    own_job: Ints32  # number of the job whose bounds hold, -1: shared by jobs
    avoid: dict[int, tuple[int, ...]]  # slots of machines that the group's one task crashed on
    requirements: list[Requirement]
    cores: Ints32  # as in `Groups`

    @property
    def levels(self) -> list[Level]:
        """Return the levels of free capacity that the groups need: without preemption, and with each set of tasks
        that they may preempt.
        """
        pairs = set(zip(self.ceiling.tolist(), self.by_limit.tolist(), strict=True))
        return sorted(pairs | {(0, by_limit) for _, by_limit in pairs})


def sort_into_groups(state: CellState, policy: Policy, slots: Rows, *, now: float, cores: bool = False) -> GroupedQueue:
    """Return the groups of the queue `slots`, numbered in order of first appearance.

    `cores`: whether some task has or requests whole cores. If so, latency-sensitive tasks and batch tasks form
    different groups.
    """
    tasks = state.tasks
    job_slot = tasks.job[slots]
    job, first_of_job = _numbered(job_slot.astype(np.int64))
    jobs = [tasks.job_at[slot] for slot in job_slot[first_of_job].tolist()]
    priorities, which = np.unique(tasks.job_priority[job_slot], return_inverse=True)
    ceilings = np.array([policy.ceiling(priority) for priority in priorities.tolist()], dtype=np.int64)
    shape = tasks.shape[slots]
    bounded = np.any(tasks.shapes.bounds[shape] > 0, axis=1)
    by_limit = tasks.job_by_limit[job_slot]
    owner = np.where(bounded, job, -1).astype(np.int64)
    alone = _alone(state, policy, slots, now)
    sensitive = tasks.job_sensitive[job_slot] & cores
    way = (by_limit * 2 + sensitive).astype(np.int64)
    keys = (((owner + 1) * len(ceilings) + which) * 4 + way) * (len(tasks.shapes.requirement)) + shape
    if not policy.search.classes:
        keys = np.arange(len(slots))
    elif alone:
        keys[list(alone)] = -1 - np.arange(len(alone))
    of_task, first = _numbered(keys)
    return GroupedQueue(
        slots=slots,
        of_task=of_task,
        job=job,
        jobs=[job for job in jobs if job is not None],
        first=first,
        shape=shape[first],
        by_limit=by_limit[first],
        ceiling=ceilings[which[first]],
        own_job=owner[first].astype(np.int32),
        avoid={int(of_task[place]): machines for place, machines in alone.items()},
        requirements=[tasks.shapes.requirement[row] for row in shape[first].tolist()],
        cores=np.where(sensitive[first], tasks.shapes.cores[shape[first]], -1).astype(np.int32),
    )


def _numbered(keys: Rows) -> tuple[Ints32, Rows]:
    """Return a number for each key, in order of first appearance, and the position where each number appears first."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(first), dtype=np.int32)
    number[order] = np.arange(len(first), dtype=np.int32)
    return number[inverse], first[order]


def _alone(state: CellState, policy: Policy, slots: Rows, now: float) -> dict[int, tuple[int, ...]]:
    """Return the queue positions of the tasks that crashed recently. Each has the slots of the machines on which the
    task crashed.
    """
    if not state.crashed:
        return {}
    result = {}
    for place, identity in enumerate(state.tasks.id[slots].tolist()):
        pairs = state.crashed.get(identity)
        if pairs:
            recent = [
                state.machines.slot[machine]
                for machine, when in sorted(pairs.items())
                if now - when < policy.crashed_pair_s and machine in state.machines.slot
            ]
            if recent:
                result[place] = tuple(recent)
    return result


def arrays(
    state: CellState,
    policy: Policy,
    sorting: GroupedQueue,
    memory: PassCache,
    rows: dict[Level, int],
    rng: np.random.Generator,
) -> Groups:
    """Return the groups of pending tasks as arrays for the kernels. `rows`: for each level of free capacity, its row
    in the cache.
    """
    number = len(sorting.requirements)
    demands = [tuple(c for c in r.constraints if c.hard) for r in sorting.requirements]
    wishes = [tuple(c for c in r.constraints if not c.hard) for r in sorting.requirements]
    hard, soft = _rows(demands), _rows([wish for wish in wishes if wish])
    packages = [requirement.packages for requirement in sorting.requirements]
    named = {distinct: row for row, distinct in enumerate(dict.fromkeys(filter(None, packages)))}
    present = [memory.present(distinct) for distinct in named]
    near = [there for _, there in present]
    near_to = np.cumsum([len(there) for there in near], dtype=np.int32)
    avoided = [[memory.position[slot] for slot in sorting.avoid.get(g, ())] for g in range(number)]
    ends = np.cumsum([len(machines) for machines in avoided], dtype=np.int32)
    machines = len(memory.machines.slot)
    bounds = state.tasks.shapes.bounds[sorting.shape]
    levels = list(zip(sorting.ceiling.tolist(), sorting.by_limit.tolist(), strict=True))
    limit = state.tasks.shapes.limit[sorting.shape]
    typical, popularity = typical_tasks(state)
    start, further = walks(state, policy, limit, sorting.by_limit, sorting.of_task, rng)
    return Groups(
        limit=limit,
        by_limit=sorting.by_limit,
        ceiling=sorting.ceiling,
        direct=np.array([rows[0, by_limit] for _, by_limit in levels], dtype=np.int32),
        level=np.array([rows[level] for level in levels], dtype=np.int32),
        hard=np.array([hard[demand] for demand in demands], dtype=np.int32),
        soft=np.array([soft.get(wish, -1) for wish in wishes], dtype=np.int32),
        max_machine=np.ascontiguousarray(bounds[:, 0]),
        max_rack=np.ascontiguousarray(bounds[:, 1]),
        max_power=np.ascontiguousarray(bounds[:, 2]),
        job=sorting.own_job,
        avoid_from=(ends - [len(machines) for machines in avoided]).astype(np.int32),
        avoid_to=ends,
        avoid=np.array([position for own in avoided for position in own], dtype=np.int32),
        allowed=np.array([memory.allowed(d) for d in hard], dtype=np.bool_).reshape(len(hard), machines),
        liking=np.array([memory.liking(w) for w in soft], dtype=np.float64).reshape(len(soft), machines),
        start=start,
        cores=sorting.cores,
        packages=np.array([named.get(own, -1) for own in packages], dtype=np.int32),
        present=np.array([share for share, _ in present], dtype=np.float64).reshape(len(named), machines),
        near_from=(near_to - [len(there) for there in near]).astype(np.int32),
        near_to=near_to,
        near=np.concatenate((np.zeros(0, dtype=np.int64), *near)),
        further=further,
        typical=typical,
        popularity=popularity,
    )


def _rows(constraints: list[tuple[Constraint, ...]]) -> dict[tuple[Constraint, ...], int]:
    return {distinct: row for row, distinct in enumerate(dict.fromkeys(constraints))}
