"""Equivalence classes (§3.4): pending tasks that are examined together, as arrays for the kernels.

A *group* is an equivalence class in one pass. Tasks are in the same group if they have the same requirement, are placed
in the same way (by limit or by reservation), and may preempt the same priorities. A job that limits its tasks per
machine, rack or power domain shares no group with other jobs. A task that crashed recently is alone in its group.
While a gang is pending, gangs and other tasks are in different groups, and so are tasks with different time limits,
because short tasks may use booked capacity. Tasks that different maintenance windows or machine pools concern are in
different groups. The rules of pools are constraints of the group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.pools import with_rules
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import LiveJob
from scheduling.core.placing.closed_machines import ClosedMachines, concerns_of, run_limit_s
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints, Ints32
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.preemption_rule import preemption_ceiling
from scheduling.core.vocabulary.requirement import Requirement

Rows = NDArray[np.int64]
Level = tuple[int, bool]  # ceiling, by limit
# Up to this many different time limits in the queue are kept exactly.
MOST_TIME_LIMITS = 32
_STEP = 1.25
# For so few keys, a dictionary is faster than an array.
_FEW = 64


@dataclass(slots=True)
class GroupedQueue:
    """The queue of pending tasks, and the groups of equal tasks.

    `slots`, `of_task` and `job` have one element per queue position: the slot of the task, its group, and the index of
    its job in `jobs`. `first`: for each group, the queue position of its first task.
    """

    slots: Rows
    of_task: Ints32
    job: Ints32
    jobs: list[LiveJob]
    first: Rows
    limit: Ints  # [G, R] by group, as all below
    bounds: Ints32  # [G, 3] most tasks of the job per machine, rack and power domain; 0: no bound
    by_limit: NDArray[np.bool_]
    ceiling: Ints
    own_job: Ints32  # number of the job whose bounds hold, -1: shared by jobs
    avoid: dict[int, tuple[int, ...]]  # slots of machines that the group's one task crashed on
    requirements: list[Requirement]
    cores: Ints32  # as in `Groups`
    ends_within_s: Floats  # this long after its start, each run has ended; 0: not known, or no gang is pending
    gang: NDArray[np.bool_]  # its tasks are those of gangs
    rounded: bool  # `ends_within_s` is rounded up
    maintenance: ClosedMachines | None = None  # None: no maintenance window is planned

    @property
    def levels(self) -> list[Level]:
        """Return the levels (ways to count free capacity) that the groups need. On one level, only unused capacity is
        free. On the others, the capacity of tasks below a certain priority is also free, because these tasks can be
        preempted. Groups that are placed by limit have separate levels.
        """
        pairs = set(zip(self.ceiling.tolist(), self.by_limit.tolist(), strict=True))
        return sorted(pairs | {(0, by_limit) for _, by_limit in pairs})


def sort_into_groups(state: CellState, policy: Policy, slots: Rows, *, now: float, cores: bool = False) -> GroupedQueue:
    """Put the tasks of the queue `slots` into groups of tasks with equal requirements. Return the groups, numbered in
    order of first appearance.

    `cores`: whether any task in the cell has or requests whole CPU cores. If true, latency-sensitive tasks and batch
    tasks are in different groups.
    """
    tasks = state.tasks
    job_slot = tasks.job[slots]
    job, first_of_job = numbered(job_slot)
    distinct = job_slot[first_of_job]
    jobs = [tasks.job_at[slot] for slot in distinct.tolist()]
    priority = tasks.job_priority[distinct]
    which, first_of_priority = numbered(priority)
    which = which[job]
    priorities = priority[first_of_priority].tolist()
    ceilings = np.array([preemption_ceiling(p, policy.bands) for p in priorities], dtype=np.int64)
    shape = tasks.shape[slots]
    by_limit = tasks.job_by_limit[job_slot]
    alone = _alone(state, policy, slots, now)
    sensitive = tasks.job_sensitive[job_slot] & cores
    keys: Rows = (which * 4 + (by_limit * np.int64(2) + sensitive)) * len(tasks.shapes.requirement) + shape
    owner = np.full(len(slots), -1, dtype=np.int32)
    if tasks.shapes.any_bounds:
        bounded = (tasks.shapes.bounds[shape] > 0).any(axis=1)
        owner[bounded] = job[bounded]
        keys = keys * (len(jobs) + 1) + owner + 1
    within_s, rounded = np.zeros(len(slots)), False
    gang = tasks.job_gang[job_slot]
    if tasks.gangs and gang.any():
        within_s, rounded = _time_limits(tasks.job_ends_within_s[job_slot])
        limits, which_limit = np.unique(within_s, return_inverse=True)
        keys = (keys * len(limits) + which_limit) * 2 + gang
    concerns = None
    if state.calendar.windows:
        run_s = np.array([run_limit_s(one) if one is not None else 0.0 for one in jobs], dtype=np.float64)
        concerns = concerns_of(state, policy, run_s, job, now)
    if concerns is not None:
        keys = keys * (int(concerns.key.max(initial=0)) + 1) + concerns.key
    kinds, kind = state.pools.of_jobs(jobs)
    if len(kinds) > 1:
        keys = keys * len(kinds) + kind[job]
    if not policy.search.classes:
        keys = np.arange(len(slots))
    elif alone:
        keys[list(alone)] = -1 - np.arange(len(alone))
    of_task, first = numbered(keys)
    return GroupedQueue(
        slots=slots,
        of_task=of_task,
        job=job,
        jobs=[job for job in jobs if job is not None],
        first=first,
        limit=tasks.shapes.limit[shape[first]],
        bounds=tasks.shapes.bounds[shape[first]],
        by_limit=by_limit[first],
        ceiling=ceilings[which[first]],
        own_job=owner[first],
        avoid={int(of_task[place]): machines for place, machines in alone.items()},
        requirements=[
            with_rules(tasks.shapes.requirement[row], kinds[number])
            for row, number in zip(shape[first].tolist(), kind[job[first]].tolist(), strict=True)
        ],
        cores=np.where(sensitive[first], tasks.shapes.cores[shape[first]], -1).astype(np.int32),
        ends_within_s=within_s[first],
        gang=gang[first],
        rounded=rounded,
        maintenance=concerns.of_groups(first) if concerns is not None else None,
    )


def _time_limits(run_s: Floats) -> tuple[Floats, bool]:
    """Return time limits [Q] of which at most a few are different, and whether they are rounded. If there are more,
    they are rounded up, each by at most a quarter, because each different one makes a group of its own.
    """
    limits = np.unique(run_s)
    if len(limits) <= MOST_TIME_LIMITS:
        return run_s, False
    steps = np.ceil(np.log(np.maximum(run_s, 1.0)) / np.log(_STEP) + 1e-9)
    return np.where(run_s > 0.0, _STEP**steps, 0.0), True


def rounded_down(seconds: float) -> float:
    """Return the longest time limit up to `seconds` that the rounding of many time limits makes no longer than
    `seconds`.
    """
    return _STEP ** math.floor(math.log(seconds) / math.log(_STEP) - 1e-9) if seconds >= 1.0 else 0.0


def numbered(keys: Rows | Ints32) -> tuple[Ints32, Rows]:
    """Return a number for each key, in order of first appearance, and the position where each number appears first."""
    if len(keys) <= _FEW:
        places: dict[int, int] = {}
        for place, key in enumerate(keys.tolist()):
            places.setdefault(key, place)
        numbers = {key: number for number, key in enumerate(places)}
        of = [numbers[key] for key in keys.tolist()]
        return np.array(of, dtype=np.int32), np.array([*places.values()], dtype=np.int64)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(first), dtype=np.int32)
    number[order] = np.arange(len(first), dtype=np.int32)
    return number[inverse], first[order]


def _alone(state: CellState, policy: Policy, slots: Rows, now: float) -> dict[int, tuple[int, ...]]:
    """Return the slots of the machines on which each task crashed recently, by the task's position in the queue. Tasks
    without recent crashes are left out.
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
