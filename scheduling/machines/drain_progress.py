"""The progress of drains, and the reasons why drains wait. `evacuation` decides which tasks a drain evicts.

The number of queries is the same for any number of drains.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import BooleanField, Count, ExpressionWrapper, Q, QuerySet
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
    tasks were disrupted within a window of time; None if the job has no limit for this, or if the caller may not see
    the job. `needs`: how many tasks of the job leave together, in one alloc.
    """

    job: str
    tasks: int
    may: int
    down: int
    rate: DisruptionRate | None = None
    needs: int = 1

    @property
    def waits_for_rate(self) -> bool:
        """Return whether the tasks wait until disruptions have left the window."""
        return self.rate is not None and self.rate.left < self.needs


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of one drain. `left`: the number of tasks that are still placed on the machine.

    `leaving`: the number of tasks among them that do not wait for a disruption budget. `waiting`: the jobs whose tasks
    wait for a disruption budget. `stopping`: the number of evicted tasks whose processes may still run, for example
    during their notice period. `staying`: the number of tasks among `left` that a re-packing leaves on the machine,
    that leave in a later step of it, or that end before a maintenance window starts. `overdue`: the deadline has
    passed.
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
    # (machine, alloc set) -> for each of its allocs, how many tasks of each job are up inside it
    inner: dict[tuple[int, int], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    lodgers = set()
    if any(kind == KIND for *_, kind, _, _ in counted):
        lodged = Task.objects.filter(machine__in=machines, alloc__isnull=False).order_by()
        lodged_in = lodged.values_list("machine_id", "alloc__job_id", "alloc_id", "job_id")
        for machine, alloc_set, alloc, job, number in lodged_in.annotate(number=Count("id", filter=Q(up=True))):
            inner[machine, alloc_set][alloc][job] = number
            lodgers.add(job)
    jobs = {job for there in serving.values() for job in there} | lodgers
    budgets = _budgets(cell, jobs)
    visible = selectors.jobs_of_tenants(principal, cell).filter(pk__in=jobs)
    names = {
        pk: f"{tenant}/{name}" for pk, tenant, name in visible.order_by().values_list("id", "tenant__name", "name")
    }
    result = []
    for drain in drains:
        overdue = drain.deadline is not None and drain.deadline <= now
        waiting = []
        if not (overdue and drain.break_budgets) and drain.machine.state == MachineStatus.DRAINING.value:
            for job, number in sorted(serving[drain.machine_id].items()):
                if job in lodgers:
                    continue
                allocs = list(inner[drain.machine_id, job].values())
                for held, needs, tasks in _held(job, number, allocs, budgets):
                    name, budget = names.get(held, HIDDEN), budgets[held]
                    # The rate of another tenant's job says too much about it.
                    rate = budget.rate if name != HIDDEN else None
                    waiting.append(WaitingForBudget(name, tasks, budget.may, budget.down, rate, needs))
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


def _held(
    job: int, number: int, allocs: Sequence[Mapping[int, int]], budgets: Mapping[int, DisruptionBudget]
) -> list[tuple[int, int, int]]:
    """Return what holds the tasks of a job on a machine: (job whose budget holds them, how many tasks of that job leave
    together, how many tasks of `job` wait for it). `number`: how many tasks of `job` are up there. `allocs`: if they
    are allocs, how many tasks of each job are up in each alloc that is not empty.
    """
    if job in budgets and budgets[job].used_up:
        return [(job, 1, number)]
    waits: Counter[tuple[int, int]] = Counter()
    for inside in allocs:
        held = next((j for j, up in sorted(inside.items()) if up and j in budgets and not budgets[j].allows(up)), None)
        if held is not None:
            waits[held, inside[held]] += 1
    return [(held, needs, tasks) for (held, needs), tasks in sorted(waits.items())]


def _budgets(cell: Cell, jobs: set[int]) -> dict[int, DisruptionBudget]:
    if not jobs:
        return {}
    settings = cell_settings.load(Cell.objects.values_list("settings", flat=True).get(pk=cell.pk))
    return Budgets(jobs, settings.drain_patience_s).of
