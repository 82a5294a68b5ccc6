"""Which machines a maintenance window covers, and which of their tasks end by themselves before it starts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable

from django.db.models import Q, QuerySet

from scheduling.journal.sql import query
from scheduling.models import Machine, MaintenanceWindow
from scheduling.models.machines import REMOVED

_PAIRS = """
        SELECT w.id AS window_id, m.id AS machine_id FROM scheduling_maintenancewindow AS w {names}
        JOIN scheduling_machine AS m ON m.cell_id = w.cell_id AND {same}
        WHERE w.state IN ('planned', 'draining')"""
# Joins the machines `m` that belong to an open window `w`. PostgreSQL would compare each machine with each window if
# one condition contained all three cases.
JOIN_COVERED = f"""
    JOIN ({
    " UNION ".join(
        [
            _PAIRS.format(names="CROSS JOIN unnest(w.machines) AS n(name)", same="m.hostname = n.name"),
            _PAIRS.format(names="", same="m.rack = w.rack AND w.rack <> ''"),
            _PAIRS.format(names="", same="m.power_domain = w.power_domain AND w.power_domain <> ''"),
        ]
    )
}) AS c ON c.window_id = w.id
    JOIN scheduling_machine AS m ON m.id = c.machine_id AND m.state <> 'removed' AND m.id <> ALL(w.returned)"""
# The condition that the run of a task `t` of a job `j` certainly ends before a time. It has no certain end if the task
# may start again on its machine.
ENDS_BEFORE = """
    t.up AND t.alloc_id IS NULL AND coalesce(j.ends_within_s, 0) > 0
    AND t.since + make_interval(secs => j.ends_within_s) <= """
_STAYING = f"""
    SELECT t.id FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id
    WHERE t.machine_id = ANY(%s) AND t.state = 'running' AND {ENDS_BEFORE} %s"""


def covers(window: MaintenanceWindow) -> Q:
    """Return the condition that a machine of the cell belongs to the window. A machine that a person has returned
    early does not belong to it any more.
    """
    if window.machines:
        condition = Q(hostname__in=window.machines)
    else:
        condition = Q(rack=window.rack) if window.rack else Q(power_domain=window.power_domain)
    return condition & ~Q(pk__in=window.returned) if window.returned else condition


def is_covered(window: MaintenanceWindow, machine: Machine) -> bool:
    """Return whether a machine of the same cell belongs to the window, also if a person has returned it early."""
    if window.machines:
        return machine.hostname in window.machines
    return machine.rack == window.rack if window.rack else machine.power_domain == window.power_domain


def machines_of(windows: Iterable[MaintenanceWindow]) -> QuerySet[Machine]:
    """Return the machines that any of the windows covers, by id. All windows belong to one cell."""
    rows = list(windows)
    if not rows:
        return Machine.objects.none()
    condition = Q()
    for window in rows:
        condition |= covers(window)
    return Machine.objects.filter(condition, cell_id=rows[0].cell_id).exclude(state=REMOVED).order_by("id")


def tasks_ending_before(machine_ids: Collection[int], moment: dt.datetime) -> set[int]:
    """Return the ids of the running tasks on the machines whose runs certainly end before `moment`, by their time
    limits. Tasks inside allocs are left out.
    """
    return {task for (task,) in query(_STAYING, [sorted(machine_ids), moment])}
