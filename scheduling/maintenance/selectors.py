"""Reads maintenance windows. SREs of the cell see all of them. A tenant sees when the machines of its tasks go into
maintenance.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.journal.sql import query
from scheduling.maintenance.scope import JOIN_COVERED, is_covered, machines_of
from scheduling.models import Cell, Departure, Job, Machine, MaintenanceWindow, Task
from scheduling.tasks import counters

_FACTS = ("id", "hostname", "rack", "power_domain")
_OVERDUE = f"""
    SELECT m.cell_id, count(DISTINCT m.id) FROM scheduling_maintenancewindow AS w {JOIN_COVERED}
    WHERE w.state = 'draining' AND w.starts_at <= now()
        AND (EXISTS (SELECT FROM scheduling_task AS t WHERE t.machine_id = m.id AND t.state = 'running')
            OR EXISTS (SELECT FROM scheduling_departure AS p WHERE p.machine_id = m.id))
    GROUP BY m.cell_id"""


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """A window with its present state. `covered`: how many machines it covers, without those that a person has returned
    early. `busy`: how many of them have tasks, or tasks that are still stopping. `tasks`: how many tasks run there.
    `overdue`: the window has started, and not all machines are empty.
    """

    window: MaintenanceWindow
    covered: int
    busy: int
    tasks: int
    overdue: bool


@dataclass(frozen=True, slots=True)
class ComingMaintenance:
    """A window that interrupts tasks of a job. `tasks`: how many of them run on its machines. `begun`: whether it has
    started.
    """

    starts_at: dt.datetime
    ends_at: dt.datetime
    tasks: int
    begun: bool


def windows_of(principal: Principal, cell: Cell, *, states: Collection[str] = ()) -> QuerySet[MaintenanceWindow]:
    """Return the maintenance windows of a cell by id. `states`: only windows in one of these states."""
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    if unknown := sorted(set(states) - set(MaintenanceWindow.STATES)):
        what = f"{unknown[0][:40]!r} is not a state; give {', '.join(MaintenanceWindow.STATES)}"
        raise invalid("state", what)
    rows = MaintenanceWindow.objects.filter(cell=cell).select_related("cell").order_by("id")
    return rows.filter(state__in=states) if states else rows


def window_named(principal: Principal, cell: Cell, number: int) -> MaintenanceWindow:
    found = windows_of(principal, cell).filter(pk=number).first()
    if found is None:
        raise NotFound("maintenance window", str(number))
    return found


def progress_of(windows: Sequence[MaintenanceWindow], *, now: dt.datetime) -> list[WindowProgress]:
    """Return the windows with their present state. Makes three queries for each cell. A window that has ended has no
    machines.
    """
    machines: dict[int, list[Machine]] = {}
    used: Counter[int] = Counter()
    stopping: set[int] = set()
    for cell in sorted({one.cell_id for one in windows if one.state in MaintenanceWindow.OPEN}):
        own = [one for one in windows if one.cell_id == cell and one.state in MaintenanceWindow.OPEN]
        machines[cell] = list(machines_of(own).only("id", "cell_id", "hostname", "rack", "power_domain"))
        ids = [one.id for one in machines[cell]]
        here = Task.objects.filter(machine__in=ids, state=counters.RUNNING).order_by().values_list("machine_id")
        used.update(dict(here.annotate(number=Count("id"))))
        gone = Departure.objects.filter(machine__in=ids).order_by()
        stopping.update(gone.values_list("machine_id", flat=True).distinct())
    result = []
    for window in windows:
        is_open = window.state in MaintenanceWindow.OPEN
        covered = [one.id for one in machines.get(window.cell_id, []) if is_open and is_covered(window, one)]
        covered = [one for one in covered if one not in window.returned]
        busy = sum(1 for one in covered if used[one] or one in stopping)
        tasks = sum(used[one] for one in covered)
        overdue = window.state == MaintenanceWindow.DRAINING and window.starts_at <= now and busy > 0
        result.append(WindowProgress(window, len(covered), busy, tasks, overdue))
    return result


def maintenance_of(job: Job) -> list[ComingMaintenance]:
    """Return the windows in which machines of the job's running tasks are, or will be, by their start. Makes one query
    if the cell has no open windows, and two more otherwise.
    """
    if not _open_windows(job.cell_id).exists():
        return []
    running = Q(tasks__job=job, tasks__state=counters.RUNNING)
    rows = Machine.objects.filter(running).only(*_FACTS).annotate(number=Count("tasks", filter=running))
    machines = list(rows.order_by("id"))
    found = []
    for window in _windows_of(job.cell_id, machines):
        tasks = sum(one.number for one in machines if _includes(window, one))
        if tasks:
            found.append(ComingMaintenance(window.starts_at, window.ends_at, tasks, _has_begun(window)))
    return found


def windows_of_machines(cell_id: int, machine_ids: Collection[int]) -> dict[int, MaintenanceWindow]:
    """Return the first open window of each machine that has one, by the id of the machine. Each window has `begun`:
    whether it has started. Makes one query if the cell has no open windows, and two more otherwise.
    """
    if not machine_ids or not _open_windows(cell_id).exists():
        return {}
    machines = list(Machine.objects.filter(pk__in=machine_ids).only(*_FACTS).order_by("id"))
    found: dict[int, MaintenanceWindow] = {}
    for window in _windows_of(cell_id, machines):
        window.begun = _has_begun(window)  # type: ignore[attr-defined]
        for machine in machines:
            if machine.id not in found and _includes(window, machine):
                found[machine.id] = window
    return found


def _windows_of(cell_id: int, machines: Sequence[Machine]) -> list[MaintenanceWindow]:
    """Return the open windows that may cover some of the machines, by their start."""
    named = Q(machines__overlap=[one.hostname for one in machines])
    racks = Q(rack__in={one.rack for one in machines if one.rack})
    domains = Q(power_domain__in={one.power_domain for one in machines if one.power_domain})
    rows = _open_windows(cell_id).filter(named | racks | domains) if machines else MaintenanceWindow.objects.none()
    return list(rows.order_by("starts_at", "id"))


def _includes(window: MaintenanceWindow, machine: Machine) -> bool:
    return is_covered(window, machine) and machine.id not in window.returned


def _has_begun(window: MaintenanceWindow) -> bool:
    return window.starts_at <= timezone.now()


def overdue_machines() -> dict[int, int]:
    """Return how many machines of windows that have started are not empty, by the id of the cell. Machines that a
    person has returned early are left out.
    """
    return dict(query(_OVERDUE))


def _open_windows(cell_id: int) -> QuerySet[MaintenanceWindow]:
    return MaintenanceWindow.objects.filter(cell_id=cell_id, state__in=MaintenanceWindow.OPEN)
