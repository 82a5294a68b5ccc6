"""Independent checks of a plan that packed a whole workload from scratch, computed from its events and assignments.

Nothing here calls the scheduler: capacity, limits, constraints and bounds are read from the workload's events.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import PORTS
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.preemption_rule import preemption_ceiling
from scheduling.core.vocabulary.requirement import Constraint, Relation, Requirement
from tests.bench.cells import PROD_FROM, Workload


@dataclass(frozen=True)
class Proof:
    """The result of the checks. `placed`: placed tasks. `prod_unplaced`: production tasks without a machine.

    `fits_left`: pending tasks that would fit on some machine, as it is or by allowed preemptions. `violations`:
    machines over capacity, tasks on machines that break a hard constraint, and tasks beyond their job's bound per
    machine. Both must be 0.
    """

    placed: int
    prod_unplaced: int
    fits_left: int
    violations: int


def prove(workload: Workload, plan: Plan, policy: Policy) -> Proof:
    """Check a plan. Machines must have the ids 1 … M and jobs the ids 1 … J, in order, as in `tests.bench.cells`."""
    count = _Count(workload, plan, policy)
    return Proof(
        placed=len(plan.assignments),
        prod_unplaced=int((count.left & (count.priority >= PROD_FROM)).sum()),
        fits_left=count.fits_left(),
        violations=count.violations(),
    )


class _Count:
    """Arrays with one row per task, ordered by job and index: `job`, `shape`, `priority`, `machine` (-1: pending)."""

    def __init__(self, workload: Workload, plan: Plan, policy: Policy) -> None:
        self.machines = workload.machines
        self.capacity = np.array([machine.capacity for machine in workload.machines], dtype=np.int64)
        self.capacity[:, PORTS] = [machine.port_high - machine.port_low + 1 for machine in workload.machines]
        shapes: dict[Requirement, int] = {}
        jobs, indexes, kinds = [], [], []
        for job in workload.jobs:
            for group in job.groups:
                index = np.concatenate([np.arange(first, last + 1) for first, last in group.ranges])
                indexes.append(index)
                jobs.append(np.full(len(index), job.job_id))
                kinds.append(np.full(len(index), shapes.setdefault(group.requirement, len(shapes))))
        job, index, shape = (np.concatenate(parts) for parts in (jobs, indexes, kinds))
        by = np.lexsort((index, job))
        self.job, self.index, self.shape = job[by], index[by], shape[by]
        self.requirement = list(shapes)
        self.limit = np.array([requirement.limit for requirement in shapes], dtype=np.int64)
        priority = {job.job_id: job.priority for job in workload.jobs}
        self.priority = np.array([priority[each] for each in self.job.tolist()], dtype=np.int64)
        self.ceiling = {p: preemption_ceiling(p, policy.bands) for p in set(priority.values())}
        self.machine = np.full(len(self.job), -1, dtype=np.int64)
        rows = np.searchsorted(
            self.job << 20 | self.index, np.array([a.job_id << 20 | a.index for a in plan.assignments], dtype=np.int64)
        )
        self.machine[rows] = [assignment.machine_id - 1 for assignment in plan.assignments]
        self.left = self.machine < 0

    def _used(self, tasks: NDArray[np.bool_]) -> NDArray[np.int64]:
        used = np.zeros_like(self.capacity)
        np.add.at(used, self.machine[tasks], self.limit[self.shape[tasks]])
        return used

    def _allowed(self, constraints: tuple[Constraint, ...]) -> NDArray[np.bool_]:
        return np.array(
            [all(_holds(c, machine) for c in constraints if c.hard) for machine in self.machines], dtype=np.bool_
        )

    def fits_left(self) -> int:
        room: dict[int, NDArray[np.int64]] = {}
        allowed: dict[tuple[Constraint, ...], NDArray[np.bool_]] = {}
        siblings = self._machines_by_job()
        total = 0
        own = np.array([requirement.max_per_machine > 0 for requirement in self.requirement])
        classes: dict[tuple[int, int, int], int] = defaultdict(int)
        for row in np.flatnonzero(self.left).tolist():
            shape = int(self.shape[row])
            classes[shape, self.ceiling[int(self.priority[row])], int(self.job[row]) if own[shape] else 0] += 1
        for (shape, ceiling, job), tasks in classes.items():
            requirement = self.requirement[shape]
            if ceiling not in room:
                room[ceiling] = self.capacity - self._used(~self.left & (self.priority >= ceiling))
            if requirement.constraints not in allowed:
                allowed[requirement.constraints] = self._allowed(requirement.constraints)
            fits = allowed[requirement.constraints].copy()
            for resource, wanted in enumerate(requirement.limit):
                if wanted:
                    fits &= room[ceiling][:, resource] >= wanted
            if job and fits.any():
                there, number = np.unique(siblings.get(job, np.zeros(0, dtype=np.int64)), return_counts=True)
                fits[there[number >= requirement.max_per_machine]] = False
            total += tasks * bool(fits.any())
        return total

    def _machines_by_job(self) -> dict[int, NDArray[np.int64]]:
        placed = np.flatnonzero(~self.left)
        jobs, starts = np.unique(self.job[placed], return_index=True)
        return dict(zip(jobs.tolist(), np.split(self.machine[placed], starts[1:]), strict=True))

    def violations(self) -> int:
        broken = int((self._used(~self.left) > self.capacity).any(axis=1).sum())
        allowed: dict[tuple[Constraint, ...], NDArray[np.bool_]] = {}
        for shape, requirement in enumerate(self.requirement):
            if requirement.constraints:
                if requirement.constraints not in allowed:
                    allowed[requirement.constraints] = self._allowed(requirement.constraints)
                where = self.machine[~self.left & (self.shape == shape)]
                broken += int((~allowed[requirement.constraints][where]).sum())
        bound = np.array([requirement.max_per_machine for requirement in self.requirement])[self.shape]
        apart = np.flatnonzero(~self.left & (bound > 0))
        pair, first, number = np.unique(
            self.job[apart] << 32 | self.machine[apart], return_index=True, return_counts=True
        )
        return broken + int(np.maximum(0, number - bound[apart][first]).sum()) if len(pair) else broken


def _holds(constraint: Constraint, machine: object) -> bool:
    """Return whether a machine satisfies a constraint with the relation PRESENT or EQUAL.

    Raises `NotImplementedError` for other relations, which the cells of the benches do not use.
    """
    value = getattr(machine, "attributes", {}).get(constraint.attribute) or getattr(machine, constraint.attribute, None)
    if constraint.relation is Relation.PRESENT:
        return value is not None
    if constraint.relation is Relation.EQUAL:
        return value == constraint.value
    raise NotImplementedError(f"the benches' cells ask for no {constraint.relation}")
