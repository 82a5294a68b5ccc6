"""Tries whether tasks that the cell does not have would be placed now, with the kernels of the scheduling pass.

    TrialJob ─► queue and groups, as of pending tasks ─► kernels/placement.py, with preemption ─► tasks placed

So constraints, spreading, ports, devices, whole cores, and the rules of the bands (§2.5, §5.5) hold as in a pass. The
state of the cell does not change. Capacity that is booked for a gang is left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import msgspec
import numpy as np

from scheduling.core.cell.pools import with_rules
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import LiveJob
from scheduling.core.kernels.placement import place
from scheduling.core.placing.closed_machines import concerns_of
from scheduling.core.placing.equivalence_classes import GroupedQueue
from scheduling.core.placing.kernel_input import tables_of
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.reserved_cores import cores_held
from scheduling.core.vocabulary.kernel_arrays import Ints, QueueArrays, Tables
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.preemption_rule import preemption_ceiling
from scheduling.core.vocabulary.requirement import MAX_TASKS, padded, split_task_id
from scheduling.core.vocabulary.trials import TrialJob, TrialResult

_SEED = 6


class Trial:
    """Tries jobs on one state. It may be used again after the state has changed."""

    def __init__(self, state: CellState, policy: Policy) -> None:
        self.state = state
        self.memory = PassCache()
        self._crashes: tuple[int, int, float, tuple[int, ...]] = (-1, 0, 0.0, ())
        self.follow(policy)

    def follow(self, policy: Policy) -> None:
        """Use another policy from now on, because an SRE has changed the cell's settings."""
        self.policy = replace(policy, max_assignments=MAX_TASKS, workload="")

    def placed(self, job: TrialJob, *, now: float, closed: Collection[int] = ()) -> TrialResult:
        """Return how many tasks of the job would be placed now, and how many tasks they would preempt. Of a gang, all
        tasks are placed or none. `now`: seconds since the epoch. `closed`: the ids of machines on which nothing is
        placed, because their capacity is booked.
        """
        groups = [group for group in job.groups if group.tasks > 0]
        if not groups or not len(self.state.machines):
            return TrialResult("", 0)
        state, policy = self.state, self.policy
        state.count_by_limit(policy)
        none: Ints = np.zeros(0, dtype=np.int64)
        asks_cores = job.latency_sensitive and any(group.requirement.whole_cores for group in groups)
        held = cores_held(state, none, asked=asks_cores)
        sorting = self._queue(job, now=now, cores=held is not None)
        places = len(sorting.slots)
        gang_end = np.zeros(places, dtype=np.int64)
        gang_end[0] = places if job.gang else 0
        queue = QueueArrays(
            group=sorting.of_task.astype(np.int64),
            job=sorting.job.astype(np.int64),
            last=np.full(places, -1, dtype=np.int64),
            gang_end=gang_end,
            books=np.zeros(places, dtype=np.bool_),
            left=np.full(1, MAX_TASKS, dtype=np.int64),
        )
        free, rng = self.memory.sums.follow(state), np.random.default_rng(_SEED)
        tables = tables_of(state, policy, sorting, free, self.memory, rng, held, queue=queue)
        shut = self.memory.position[[state.machines.slot[one] for one in closed if one in state.machines.slot]]
        tables.machines.up[shut] = False
        place(tables, 0)
        found = tables.placed.machine
        self.memory.invalidate(np.concatenate((found[found >= 0], shut.astype(np.int64))))
        return self._result(job, tables)

    def _result(self, job: TrialJob, tables: Tables) -> TrialResult:
        """Return the placements that preempt no task of the job itself. With the changed job, these tasks would have
        the same priority, so they would not be preempted.
        """
        placed, own = tables.placed, self.state.tasks.jobs.get(job.job_id) if job.job_id else None
        number = preempted = 0
        for i in np.flatnonzero(placed.machine >= 0).tolist():
            victims = placed.victims[placed.victims_from[i] : placed.victims_to[i]]
            if own is not None and (self.state.tasks.job[victims] == own.slot).any():
                if job.gang:
                    return TrialResult("", 0)
                continue
            number += 1
            preempted += len(victims)
        return TrialResult("", number, preempted)

    def _queue(self, job: TrialJob, *, now: float, cores: bool) -> GroupedQueue:
        state = self.state
        groups = [group for group in job.groups if group.tasks > 0]
        number = len(groups)
        requirements = [
            msgspec.structs.replace(one.requirement, limit=padded(one.requirement.limit, state.axis)) for one in groups
        ]
        bounds = np.array(
            [(one.max_per_machine, one.max_per_rack, one.max_per_power_domain) for one in requirements], dtype=np.int32
        )
        of_task = np.repeat(np.arange(number, dtype=np.int32), [group.tasks for group in groups])
        own = state.tasks.jobs.get(job.job_id) if job.job_id else None
        rules = state.pools.of_job(own) if own is not None else state.pools.rules_of(job.tenant)
        avoided = self._avoided(job.job_id, now)
        sensitive = cores and job.latency_sensitive
        concerns = concerns_of(state, self.policy, np.array([job.run_s]), np.zeros(number, dtype=np.int64), now)
        return GroupedQueue(
            slots=np.zeros(len(of_task), dtype=np.int64),
            of_task=of_task,
            job=np.zeros(len(of_task), dtype=np.int32),
            jobs=[own or LiveJob(0, tenant_id=0, tenant="", name="", kind="job", alloc_set=0)],
            first=np.searchsorted(of_task, np.arange(number)).astype(np.int64),
            limit=np.array([one.limit for one in requirements], dtype=np.int64),
            bounds=bounds,
            by_limit=np.full(number, self.policy.by_limit(job.priority, job.latency_sensitive), dtype=np.bool_),
            ceiling=np.full(number, preemption_ceiling(job.priority, self.policy.bands), dtype=np.int64),
            own_job=np.where(bounds.any(axis=1), 0, -1).astype(np.int32),
            avoid=dict.fromkeys(range(number), avoided) if avoided else {},
            requirements=[with_rules(one, rules) for one in requirements],
            cores=np.array([one.whole_cores if sensitive else -1 for one in requirements], dtype=np.int32),
            ends_within_s=np.zeros(number),
            gang=np.full(number, job.gang, dtype=np.bool_),
            rounded=False,
            maintenance=concerns.of_groups(np.arange(number)) if concerns is not None else None,
        )

    def _avoided(self, job_id: int, now: float) -> tuple[int, ...]:
        """Return the slots of the machines on which a task of the job crashed recently. No task is tried there. The
        result is kept for the trials of one question.
        """
        if not job_id or not self.state.crashed:
            return ()
        changes, known, at, slots = self._crashes
        if (changes, known, at) == (self.state.changes, job_id, now):
            return slots
        machines = {
            machine
            for task, pairs in self.state.crashed.items()
            if split_task_id(task)[0] == job_id
            for machine, when in pairs.items()
            if now - when < self.policy.crashed_pair_s
        }
        slots = tuple(sorted(self.state.machines.slot[one] for one in machines if one in self.state.machines.slot))
        self._crashes = self.state.changes, job_id, now, slots
        return slots
