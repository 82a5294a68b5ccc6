"""One scheduling pass (§3.2): pending tasks and machines in, a plan out. Pure.

    pending ─► priority high to low ─► tenants in turn ─► class ─► feasible machines ─► best score ─► Assignment
                                                            └─ none ─► preempt lower priorities ─► none ─► Why

The state is read, never written: what the pass takes is noted in a `Ledger` of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduling.core import kernels
from scheduling.core.explain import explain
from scheduling.core.feasibility import Bools, EquivalenceClass, Ledger
from scheduling.core.plan import Assignment, PassStats, Plan
from scheduling.core.policy import Policy
from scheduling.core.preemption import victims_on
from scheduling.core.reasons import Why
from scheduling.core.state import CellState, Ints, JobRecord, TaskRecord

# Machines that a preempting task looks at closely: the best by a rough score.
_CLOSE_LOOK = 8


def schedule_pass(state: CellState, policy: Policy, *, now: float, rng: np.random.Generator) -> Plan:
    """Place what can be placed.

    `now`: seconds since the epoch, for what runs out. Equal state, policy, time and seed give an equal plan,
    whatever the order in which the state came to be. At most `policy.max_assignments` are decided.
    """
    return _Pass(state, policy, now, rng).run()


@dataclass(slots=True)
class _Run:
    """A stretch of one job's pending tasks of one class, in order of index."""

    job: JobRecord
    wanted: EquivalenceClass
    tasks: deque[TaskRecord]


@dataclass(slots=True)
class _Unplaced:
    tasks: dict[int, int] = field(default_factory=dict)  # job id -> number
    ahead: int = 0


class _Pass:
    def __init__(self, state: CellState, policy: Policy, now: float, rng: np.random.Generator) -> None:
        self.state, self.policy, self.now, self.rng = state, policy, now, rng
        self.ledger = Ledger(state, policy)
        self.scorer = kernels.SCORERS[policy.scorer]
        self.assignments: list[Assignment] = []
        self.unplaced: dict[tuple[EquivalenceClass, int], _Unplaced] = {}
        self.hopeless: set[tuple[EquivalenceClass, int]] = set()
        self.preempted: set[int] = set()
        self.done = 0

    def run(self) -> Plan:
        pending = len(self.state.pending)
        classes: set[EquivalenceClass] = set()
        for run in self._queue():
            classes.add(run.wanted)
            if len(self.assignments) >= self.policy.max_assignments:
                break
            self._next(run)
        return Plan(
            revision=self.state.revision,
            assignments=tuple(self.assignments),
            unplaced=tuple(self._whys()),
            stats=PassStats(
                pending=pending,
                classes=len(classes),
                placed=len(self.assignments),
                preempted=len(self.preempted),
                cache_hits=self.ledger.hits,
                cache_misses=self.ledger.misses,
            ),
        )

    def _queue(self) -> Iterator[_Run]:
        """Runs in the order of §3.2, one task each: by priority, and in turn over the tenants of a priority."""
        levels: dict[int, dict[int, list[_Run]]] = {}
        for job_id, tasks in _by_job(self.state):
            job = self.state.jobs[job_id]
            tenants = levels.setdefault(job.priority, {})
            runs = tenants.setdefault(job.tenant_id, [])
            for task in tasks:
                wanted = self.ledger.class_of(job, task.requirement)
                if not runs or runs[-1].job is not job or runs[-1].wanted is not wanted:
                    runs.append(_Run(job, wanted, deque()))
                runs[-1].tasks.append(task)
        for priority in sorted(levels, reverse=True):
            turn = deque(deque(levels[priority][tenant]) for tenant in sorted(levels[priority]))
            while turn:
                theirs = turn.popleft()
                while theirs and not theirs[0].tasks:
                    theirs.popleft()
                if theirs:
                    yield theirs[0]
                    turn.append(theirs)

    def _next(self, run: _Run) -> None:
        """Decide the first task of a run; where its whole class can't be placed, all of them."""
        task = run.tasks[0]
        key = (run.wanted, run.job.job_id if run.wanted.per_job else 0)
        if key in self.hopeless:
            self._leave(run, key, len(run.tasks))
            return
        assignment = self._place(run, task)
        if assignment is not None:
            run.tasks.popleft()
            self.done += 1
            self.assignments.append(assignment)
            return
        if task.crashed:
            self._leave(run, key, 1)  # others of the class may still fit where this one crashed
            return
        self.hopeless.add(key)
        self._leave(run, key, len(run.tasks))

    def _leave(self, run: _Run, key: tuple[EquivalenceClass, int], number: int) -> None:
        left = self.unplaced.setdefault(key, _Unplaced(ahead=self.done))
        left.tasks[run.job.job_id] = left.tasks.get(run.job.job_id, 0) + number
        for _ in range(number):
            run.tasks.popleft()
        self.done += number

    def _place(self, run: _Run, task: TaskRecord) -> Assignment | None:
        wanted, ledger, policy = run.wanted, self.ledger, self.policy
        allowed, bonus = ledger.statics(wanted.requirement)
        if task.crashed:
            allowed = self._without_crashed(allowed, task)
        overlay = ledger.overlay(run.job)
        need = ledger.need(wanted.requirement)
        last = self.state.machines.get(task.last_machine)
        size = len(allowed)
        start = int(self.rng.integers(size)) if size else 0
        requirement = wanted.requirement
        arguments = (
            bonus, *overlay.counts, self.state.rack, self.state.domain,
            requirement.max_per_machine, requirement.max_per_rack, requirement.max_per_power_domain,
            policy.spread_weight, start, policy.enough, self.scorer, last.slot if last else -1, policy.stay_bonus,
        )  # fmt: skip
        left = ledger.left(wanted.by_limit)
        slot, score = kernels.choose(allowed, left, need, ledger.capacity, *arguments)
        victims: tuple[TaskRecord, ...] = ()
        if slot < 0:
            slot, score, victims = self._preempting(wanted, allowed, need, arguments)
            if slot < 0:
                return None
        return self._take(run, task, slot, score, victims)

    def _preempting(
        self, wanted: EquivalenceClass, allowed: Bools, need: Ints, arguments: tuple[Any, ...]
    ) -> tuple[int, float, tuple[TaskRecord, ...]]:
        """The machine whose victims are fewest and lowest (§3.2), among the best few by packing."""
        evictable = self.ledger.left_if_preempted(wanted)
        if evictable is None:
            return -1, 0.0, ()
        best: tuple[tuple[int, int, float, int], float, tuple[TaskRecord, ...]] | None = None
        candidates = allowed.copy()
        for _ in range(_CLOSE_LOOK):
            slot, score = kernels.choose(candidates, evictable, need, self.ledger.capacity, *arguments)
            if slot < 0:
                break
            candidates[slot] = False
            victims = victims_on(self.state, self.ledger, self.policy, wanted, slot, need, self.preempted)
            if victims is None:
                continue
            rank = (
                max((self.state.jobs[v.job_id].priority for v in victims), default=-1),
                len(victims),
                -score,
                slot,
            )
            if best is None or rank < best[0]:
                best = (rank, score, victims)
        if best is None:
            return -1, 0.0, ()
        return best[0][3], best[1], best[2]

    def _without_crashed(self, allowed: Bools, task: TaskRecord) -> Bools:
        kept = allowed.copy()
        for machine_id, when in (task.crashed or {}).items():
            machine = self.state.machines.get(machine_id)
            if machine is not None and self.now - when < self.policy.crashed_pair_s:
                kept[machine.slot] = False
        return kept

    def _take(
        self, run: _Run, task: TaskRecord, slot: int, score: float, victims: tuple[TaskRecord, ...]
    ) -> Assignment:
        machine = self.state.machines[self.state.machine_id(slot)]
        for victim in victims:
            self.ledger.evict(victim)
            self.preempted.add(victim.task_id)
        ports = self.ledger.take_ports(machine, len(run.job.port_names))
        self.ledger.place(run.job, run.wanted, slot)
        return Assignment(
            job_id=task.job_id,
            index=task.index,
            machine_id=machine.machine_id,
            ports=ports,
            victims=tuple((victim.job_id, victim.index) for victim in victims),
            score={"total": round(score, 6), "victims": float(len(victims))},
        )

    def _whys(self) -> Iterator[Why]:
        for (wanted, job_id), left in self.unplaced.items():
            yield explain(
                self.state,
                self.ledger,
                wanted,
                tuple(sorted(left.tasks.items())),
                ahead=left.ahead,
                job_id=job_id,
            )


def _by_job(state: CellState) -> list[tuple[int, list[TaskRecord]]]:
    jobs: dict[int, list[TaskRecord]] = {}
    for identity in sorted(state.pending):
        task = state.tasks[identity]
        jobs.setdefault(task.job_id, []).append(task)
    return list(jobs.items())
