"""What maintenance windows will move, and which disruption budgets decide how long this takes.

The number of queries is the same for any number of windows, machines, tasks and jobs.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.journal.sql import query
from scheduling.machines.drain_progress import HIDDEN
from scheduling.maintenance.lead import LONGEST_LEAD_S, LeavingJob, lead_s
from scheduling.maintenance.scope import ENDS_BEFORE, JOIN_COVERED, machines_of
from scheduling.models import MaintenanceWindow, Task
from scheduling.policy import cell_settings
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import counters
from scheduling.tasks.disruption_budgets import Budgets, DisruptionBudget

_LEAVING = f"""
    SELECT w.id, t.job_id, count(*) FROM scheduling_maintenancewindow AS w {JOIN_COVERED}
    JOIN scheduling_task AS t ON t.machine_id = m.id AND t.state = 'running' JOIN scheduling_job AS j ON j.id = t.job_id
    WHERE w.id = ANY(%s) AND NOT ({ENDS_BEFORE} w.starts_at) GROUP BY w.id, t.job_id"""


@dataclass(frozen=True, slots=True)
class MovingJob:
    """A job whose tasks have to leave the machines of a window. `tasks`: how many. `may`, `down`: how many of its tasks
    may be down at once, and are down now. `needs_s`: how long its tasks need to leave within its budget, in seconds.
    """

    job: str
    tasks: int
    may: int
    down: int
    needs_s: float


@dataclass(frozen=True, slots=True)
class WindowPreview:
    """What an open window will move. `machines`: how many it covers. `tasks`: how many run there. `leaving`: how many
    of them have to move, those inside allocs included; the others end by their time limits before the window starts.
    `jobs`: the jobs that lose tasks, the slowest first. `drains_at`: when the drains begin, or began.
    """

    machines: int
    tasks: int
    leaving: int
    jobs: tuple[MovingJob, ...]
    drains_at: dt.datetime


def leads_of(windows: Sequence[MaintenanceWindow], settings: CellSettings) -> dict[int, float]:
    """Return, by the number of each window, how many seconds before its start its machines should be drained. The
    windows belong to one cell.

    Windows share the budgets of jobs. So the lead of a window counts the tasks of all windows that start before it too.
    """
    leaving = _leaving(windows)
    budgets = _budgets(leaving, settings)
    total: Counter[int] = Counter()
    result = {}
    for window in sorted(windows, key=lambda one: (one.starts_at, one.pk)):
        total.update(leaving[window.pk])
        result[window.pk] = window.lead_s if window.lead_s is not None else _lead_s(total, budgets, settings)
    return result


def least_lead_s(settings: CellSettings) -> float:
    """Return the least lead of a window, in seconds."""
    return min(LONGEST_LEAD_S, settings.maintenance_lead_s)


def preview_of(principal: Principal, window: MaintenanceWindow) -> WindowPreview:
    """Return what an open window will move. The names of jobs that the caller may not see are hidden."""
    settings = cell_settings.load(window.cell.settings)
    earlier = MaintenanceWindow.objects.filter(
        cell_id=window.cell_id, state__in=MaintenanceWindow.OPEN, starts_at__lte=window.starts_at
    )
    windows = [*earlier.exclude(pk=window.pk), window]
    leaving = _leaving([window])[window.pk]
    budgets = _budgets({window.pk: leaving}, settings)
    rows = selectors.jobs_of_tenants(principal, window.cell).filter(pk__in=leaving)
    names = {pk: f"{tenant}/{name}" for pk, tenant, name in rows.order_by().values_list("id", "tenant__name", "name")}
    jobs = [
        MovingJob(
            names.get(job, HIDDEN),
            tasks,
            budgets[job].may,
            budgets[job].down,
            round(lead_s([_leaving_job(tasks, budgets[job])], least_s=0.0, drain_per_s=settings.drain_per_s), 1),
        )
        for job, tasks in sorted(leaving.items())
        if job in budgets
    ]
    lead = leads_of(windows, settings)[window.pk]
    ids = machines_of([window]).values_list("id", flat=True)
    return WindowPreview(
        machines=len(ids),
        tasks=Task.objects.filter(machine__in=list(ids), state=counters.RUNNING).count(),
        leaving=sum(leaving.values()),
        jobs=tuple(sorted(jobs, key=lambda one: (-one.needs_s, -one.tasks, one.job))),
        drains_at=window.drains_at or window.starts_at - dt.timedelta(seconds=lead),
    )


def _leaving(windows: Sequence[MaintenanceWindow]) -> dict[int, Counter[int]]:
    """Return, by window and job, how many tasks have to leave the machines of the window."""
    found: dict[int, Counter[int]] = defaultdict(Counter)
    for window, job, number in query(_LEAVING, [[one.pk for one in windows]]):
        found[window][job] = number
    return found


def _budgets(leaving: Mapping[int, Counter[int]], settings: CellSettings) -> dict[int, DisruptionBudget]:
    jobs = {job for own in leaving.values() for job in own}
    return Budgets(jobs, settings.drain_patience_s).of if jobs else {}


def _lead_s(leaving: Counter[int], budgets: Mapping[int, DisruptionBudget], settings: CellSettings) -> float:
    jobs = [_leaving_job(tasks, budgets[job]) for job, tasks in leaving.items() if job in budgets]
    return lead_s(jobs, least_s=least_lead_s(settings), drain_per_s=settings.drain_per_s)


def _leaving_job(tasks: int, budget: DisruptionBudget) -> LeavingJob:
    rate = budget.rate
    if rate is None:
        return LeavingJob(tasks, budget.may)
    return LeavingJob(tasks, budget.may, rate.most, rate.window_s, rate.left)
