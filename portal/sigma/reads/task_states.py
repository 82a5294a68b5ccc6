"""The states of all tasks of a job in one compact text, for the grid of a job with many tasks."""

from __future__ import annotations

from django.urls import reverse
from django.utils.translation import gettext as _

from portal.parts.state_grids import GridState, StateGrid, state_grid
from scheduling.journal.sql import query
from scheduling.models import Job, Update

# Smaller jobs have no grid, because the table shows all tasks at a glance.
LEAST = 10

# One letter per index. A task with an earlier version of the spec than the open update has an upper-case letter.
_LETTERS = """
SELECT string_agg(CASE
    WHEN t.id IS NULL THEN '.'
    WHEN t.state = 'dead' AND t.outcome = 'failed' THEN 'f'
    WHEN t.state = 'dead' THEN 'd'
    WHEN %(to)s > 0 AND t.spec_version <> %(to)s THEN upper(t.letter) ELSE t.letter END, '' ORDER BY n.number)
FROM generate_series(0, %(last)s) AS n(number) LEFT JOIN (
    SELECT id, index, state, outcome, spec_version, CASE
        WHEN state = 'pending' THEN 'p'
        WHEN phase = 'backoff' THEN 'c'
        WHEN NOT up THEN 's'
        WHEN health = 'unhealthy' THEN 'u'
        ELSE 'r' END AS letter
    FROM scheduling_task WHERE job_id = %(job)s) AS t ON t.index = n.number"""


def task_grid(job: Job, update: Update | None) -> StateGrid | None:
    """Return the grid of the states of a job's tasks, or None if the job has fewer than `LEAST` tasks. `update`: the
    newest update of the job. Makes one query.
    """
    if job.tasks_total < LEAST:
        return None
    is_open = update is not None and update.state == Update.OPEN and not update.restarts
    to = update.to_version if update is not None and is_open else 0
    ((letters,),) = query(_LETTERS, {"job": job.id, "last": job.tasks_total - 1, "to": to})
    page = reverse("sigma:job", args=[job.cell.name, job.tenant.name, job.name])
    return state_grid(
        _("Tasks by state"),
        letters or "",
        known_states(),
        noun=_("Task"),
        before=page,
        after=f"/?uid={job.uid}",
        old=_("still has the earlier version"),
    )


def known_states() -> list[GridState]:
    """Return the states of tasks, in the order of the legend."""
    return [
        GridState("r", _("running"), "good"),
        GridState("s", _("starting"), "wait"),
        GridState("p", _("pending"), "wait"),
        GridState("u", _("unhealthy"), "bad"),
        GridState("c", _("crashing"), "bad"),
        GridState("f", _("failed"), "bad"),
        GridState("d", _("dead"), "plain"),
    ]
