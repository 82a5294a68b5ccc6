"""Removes machines from a cell in a random order, and checks whether its work still fits on the rest (§5.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import PENDING, RUNNING
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.core.vocabulary.task_events import evicted_event, placed_event, preemptions, victims_of
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.reservations import TaskReservations

MAY_STAY_PENDING = 0.002
"""The share of the tasks that may stay pending (§5.1)."""

ROUNDS = 40
"""The largest number of passes in one packing. Each pass uses what the reservations of placed tasks leave free."""


@dataclass(frozen=True, eq=False)
class Packing:
    """The parameters of packing. `policy`: the policy of the scheduler. `reservations`: the reservations of all tasks
    after they have run for a while; None: each task reserves its limit.
    """

    policy: Policy = field(default_factory=lambda: Policy(max_assignments=2**40))
    reservations: TaskReservations | None = None


class ShrinkingCell:
    """A cell from which machines are removed in a random order, which depends on `seed` (§5.1). It has `clones` copies
    of each machine. `machines`: all machines; the last ones are removed first.
    """

    def __init__(self, work: CellWork, packing: Packing, *, seed: int, clones: int = 1) -> None:
        self.seed = seed
        self.work = replace(work, machines=work.cloned(clones))
        self.packing = packing
        order = np.random.default_rng(seed).permutation(len(self.work.machines))
        self.machines = [self.work.machines[number] for number in order]
        self.may_wait = math.floor(MAY_STAY_PENDING * work.tasks)
        self._state: CellState | None = None
        self._there = 0

    def fits(self, number: int) -> bool:
        """Return whether the work fits on the first `number` machines, packed from scratch."""
        state = self._on(number)
        by_limit = self._all_by_limit()
        for round_ in range(ROUNDS):
            plan = schedule_pass(
                state,
                self.packing.policy,
                now=0.0,
                rng=np.random.default_rng(self.seed),
                explainer=Explainer(ExplainBudget(classes=0)),
            )
            victims = sum(len(one.victims) for one in plan.assignments)
            if state.pending - len(plan.assignments) + victims <= self.may_wait:
                return True
            if by_limit or not plan.assignments or (round_ == 0 and self._prod_left(state, plan) > self.may_wait):
                return False
            self._state = None  # the next call packs from scratch
            self._apply(state, plan)
        return False

    def fewest_by_sums(self) -> int:
        """Return a lower bound of the number of machines on which the work fits. It is the number of machines that
        together have the CPU and RAM that the tasks request. Some tasks may stay pending, so the same number of the
        largest tasks is left out.
        """
        tasks = self._on(len(self.machines)).tasks
        slots = np.flatnonzero(tasks.state == PENDING)
        limit = tasks.shapes.limit[tasks.shape[slots]]
        reserved = self.packing.reservations.of(tasks.id[slots]) if self.packing.reservations else limit
        prod = tasks.job_by_limit[tasks.job[slots]]
        capacity = np.cumsum([machine.capacity for machine in self.machines], axis=0)
        fewest = 0
        for resource in (CPU, RAM):
            for amounts in (limit[prod, resource], reserved[:, resource]):
                needed = np.sort(amounts)[: max(0, len(amounts) - self.may_wait)].sum()
                if needed > 0:
                    fewest = max(fewest, int(np.searchsorted(capacity[:, resource], needed)) + 1)
        return fewest

    def _all_by_limit(self) -> bool:
        """Return whether every task is placed by its limit. Then no task uses resources that another task has reserved,
        and one scheduling pass shows whether the work fits.
        """
        policy = self.packing.policy
        return self.packing.reservations is None or all(
            policy.by_limit(job.priority, job.latency_sensitive) for job in self.work.jobs
        )

    def _on(self, number: int) -> CellState:
        """Return a state with the first `number` machines, in which every task is pending."""
        if self._state is None:
            self._state, self._there = self.work.load(), len(self.machines)
            self._state.count_by_limit(self.packing.policy)
        state = self._state
        gone, back = self.machines[number : self._there], self.machines[self._there : number]
        news: list[events.Event] = [events.MachineRemoved(machine_id=machine.machine_id) for machine in gone]
        state.apply_all((event, state.revision + 1, 0.0) for event in (*news, *back))
        self._there = number
        return state

    def _prod_left(self, state: CellState, plan: Plan) -> int:
        """Return how many of the tasks that are placed by limit stay pending after the plan is applied."""
        tasks = state.tasks
        pending = np.flatnonzero(tasks.state == PENDING)
        placed = sum(bool(tasks.jobs[one.job_id].by_limit) for one in plan.assignments)
        return int(tasks.job_by_limit[tasks.job[pending]].sum()) - placed

    def _apply(self, state: CellState, plan: Plan) -> None:
        """Evict the victims of the plan, place its tasks, and give all tasks their reservations."""
        tasks = state.tasks
        news: list[events.Event] = []
        claims = victims_of(plan.assignments)
        where = {victim: _where(state, victim) for victim in claims}
        for eviction in preemptions(claims, where):
            machine_id, incarnation = where[eviction.task_id]
            news.append(evicted_event(replace(eviction, gone=True), machine_id=machine_id, incarnation=incarnation))
        for one in plan.assignments:
            slot = tasks.jobs[one.job_id].tasks.item(one.index)
            news.append(placed_event(one, incarnation=tasks.incarnation.item(slot) + 1))
        state.apply_all((event, state.revision + 1, 0.0) for event in news)
        assert self.packing.reservations is not None
        settled = self.packing.reservations.event(tasks.id[np.flatnonzero(tasks.state == RUNNING)])
        state.apply(settled, revision=state.revision + 1, time=0.0)


def _where(state: CellState, identity: int) -> tuple[int, int]:
    """Return the machine id and the incarnation of a running task."""
    job_id, index = split_task_id(identity)
    slot = state.tasks.jobs[job_id].tasks.item(index)
    return state.machines.id.item(state.tasks.machine.item(slot)), state.tasks.incarnation.item(slot)
