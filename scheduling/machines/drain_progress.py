"""The progress of drains, and the reasons why drains wait. `evacuation` decides which tasks a drain evicts.

The number of queries is the same for any number of drains.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import BooleanField, Count, ExpressionWrapper, QuerySet
from django.utils import timezone

from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.allocs.alloc_sets import KIND
from scheduling.core.vocabulary.states import MachineStatus, TaskState
from scheduling.machines.leaving_tasks import leaves
from scheduling.models import Cell, Departure, Drain, Task
from scheduling.policy import cell_settings
from scheduling.tasks.disruption_budgets import Budgets, DisruptionBudget
from scheduling.tasks.disruption_rates import DisruptionRate

# The name of a job that the caller may not see.
HIDDEN = "another tenant's job"


@dataclass(frozen=True, slots=True)
class WaitingForBudget:
    """A job whose tasks cannot leave a draining machine yet, because of the job's disruption budget. `tasks`: how many
    of its tasks on the machine wait for this reason.

    `down`: how many tasks of the job are down. `may`: how many tasks of the job may be down. `rate`: how many of its
    tasks were disrupted within a window of time; None if the job has no limit for this.
    """

    job: str
    tasks: int
    may: int
    down: int
    rate: DisruptionRate | None = None


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of one drain. `left`: the number of tasks that are still placed on the machine.

    `leaving`: the number of tasks among them that do not wait for a disruption budget. `waiting`: the jobs whose tasks
    wait for a disruption budget. `stopping`: the number of evicted tasks whose processes may still run, for example
    during their notice period. `staying`: the number of tasks among `left` that a re-packing leaves on the machine, or
    that leave in a later step of it. `overdue`: the deadline has passed.
    """

    drain: Drain
    left: int
    leaving: int
    waiting: tuple[WaitingForBudget, ...]
    overdue: bool
    stopping: int = 0
    staying: int = 0

    @property
    def hostname(self) -> str:
        return str(self.drain.machine.hostname)

    @property
    def done(self) -> bool:
        """Return whether no task is left on the machine and no evicted task is still stopping."""
        return self.left == 0 and self.stopping == 0

    @property
    def gone(self) -> int:
        """Return how many tasks have left the machine since the drain began."""
        return max(0, self.drain.tasks - self.left)


def drains_of(cell: Cell) -> QuerySet[Drain]:
    return Drain.objects.filter(machine__cell=cell).select_related("machine").order_by("id")


def progress_of(
    principal: Principal, cell: Cell, drains: Sequence[Drain], *, now: dt.datetime | None = None
) -> list[DrainProgress]:
    """Return the progress of drains. The names of jobs that the caller may not see are hidden. Makes at most eight
    queries.
    """
    now = now or timezone.now()
    machines = [drain.machine_id for drain in drains]
    here = Task.objects.filter(machine__in=machines, state=TaskState.RUNNING.value).order_by()
    goes = ExpressionWrapper(leaves(), output_field=BooleanField())
    kinds = here.annotate(goes=goes).values_list("machine_id", "job_id", "up", "job__kind", "goes")
    counted = kinds.annotate(number=Count("id"))
    stops = Departure.objects.filter(machine__in=machines).order_by().values_list("machine_id")
    stopping = dict(stops.annotate(number=Count("id")))
    left: Counter[int] = Counter()
    staying: Counter[int] = Counter()
    serving: dict[int, Counter[int]] = defaultdict(Counter)
    for machine, job, up, _kind, may_go, number in counted:
        left[machine] += number
        if not may_go:
            staying[machine] += number
        elif up:
            serving[machine][job] += number
    inner: dict[int, set[int]] = defaultdict(set)  # alloc set -> the jobs inside its allocs
    if any(kind == KIND for *_, kind, _, _ in counted):
        lodged = Task.objects.filter(machine__in=machines, alloc__isnull=False).order_by()
        for alloc_set, job in lodged.values_list("alloc__job_id", "job_id").distinct():
            inner[alloc_set].add(job)
    jobs = {job for there in serving.values() for job in there} | {j for many in inner.values() for j in many}
    budgets = _budgets(cell, jobs)
    visible = selectors.jobs_of_tenants(principal, cell).filter(pk__in=jobs)
    names = {
        pk: f"{tenant}/{name}" for pk, tenant, name in visible.order_by().values_list("id", "tenant__name", "name")
    }
    lodgers = {job for many in inner.values() for job in many}
    result = []
    for drain in drains:
        overdue = drain.deadline is not None and drain.deadline <= now
        waiting = []
        if not (overdue and drain.break_budgets) and drain.machine.state == MachineStatus.DRAINING.value:
            for job, number in sorted(serving[drain.machine_id].items()):
                held = next((j for j in (job, *sorted(inner[job])) if _spent(budgets.get(j))), None)
                if held is not None and job not in lodgers:
                    budget = budgets[held]
                    waiting.append(
                        WaitingForBudget(names.get(held, HIDDEN), number, budget.may, budget.down, budget.rate)
                    )
        stuck = sum(one.tasks for one in waiting)
        result.append(
            DrainProgress(
                drain,
                left[drain.machine_id],
                left[drain.machine_id] - stuck - staying[drain.machine_id],
                tuple(waiting),
                overdue,
                stopping.get(drain.machine_id, 0),
                staying[drain.machine_id],
            )
        )
    return result


def _spent(budget: DisruptionBudget | None) -> bool:
    return budget is not None and budget.used_up


def _budgets(cell: Cell, jobs: set[int]) -> dict[int, DisruptionBudget]:
    if not jobs:
        return {}
    settings = cell_settings.load(Cell.objects.values_list("settings", flat=True).get(pk=cell.pk))
    return Budgets(jobs, settings.drain_patience_s).of
