"""The check that ended jobs and their tasks have the rows that their events in the journal describe.

A `CellState` has no ended jobs, so the comparison of states does not see their rows. This module compares them in
PostgreSQL, with the same number of statements for any number of rows. A job that has ended never changes again.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduling.core.cell.comparing import MOST_TOLD
from scheduling.journal.sql import query

# A text that identifies the job `j`. Only names of live jobs are unique.
NAMED = "(SELECT n.name FROM quota_tenant AS n WHERE n.id = j.tenant_id) || '/' || j.name || ' (id ' || j.id || ')'"
# The ids of the jobs that ended after a revision.
ENDED = "SELECT job_id FROM scheduling_event WHERE cell_id = %(cell)s AND revision > %(after)s AND kind = 'job.ended'"

_JOBS = f"""
WITH ended AS (
    SELECT DISTINCT ON (job_id) job_id, data->>'how' AS how FROM scheduling_event
    WHERE cell_id = %(cell)s AND revision > %(after)s AND kind = 'job.ended' ORDER BY job_id, revision DESC
)
SELECT coalesce({NAMED}, 'with id ' || e.job_id), e.how, j.state, j.outcome
FROM ended AS e LEFT JOIN scheduling_job AS j ON j.id = e.job_id
WHERE (j.state, j.outcome) IS DISTINCT FROM ('dead', e.how)
AND (j.id IS NOT NULL OR NOT EXISTS (SELECT FROM scheduling_archivedjob AS a WHERE a.id = e.job_id)
    AND NOT EXISTS (SELECT FROM scheduling_archivefile AS f WHERE f.cell_id = %(cell)s AND f.table = 'ended_jobs'
        AND f.state = 'deleted' AND e.job_id BETWEEN f.first AND f.last))
ORDER BY 1"""
_FIRST_TIME = (
    "SELECT time FROM scheduling_event WHERE cell_id = %(cell)s AND revision > %(after)s ORDER BY revision, seq LIMIT 1"
)
# Times choose the jobs, because no event does. The clock may have been set back, so the event may be older.
_WITHOUT_EVENT = f"""
SELECT {NAMED}, j.outcome FROM scheduling_job AS j
WHERE j.cell_id = %(cell)s AND j.state = 'dead' AND j.ended_at > %(since)s
AND NOT EXISTS (SELECT FROM scheduling_event AS e WHERE e.job_id = j.id AND e.kind = 'job.ended')
ORDER BY 1"""
_TASKS = f"""
WITH ended AS (
    SELECT DISTINCT ON (job_id, task_index) job_id, task_index, data->>'how' AS how,
        (data->>'incarnation')::integer AS incarnation
    FROM scheduling_event WHERE cell_id = %(cell)s AND revision > %(after)s AND kind = 'task.ended'
    ORDER BY job_id, task_index, revision DESC, seq DESC
)
SELECT {NAMED}, e.task_index, e.how, e.incarnation, t.state, t.outcome, t.incarnation
FROM ended AS e JOIN scheduling_job AS j ON j.id = e.job_id AND j.state = 'dead'
LEFT JOIN scheduling_task AS t ON t.job_id = e.job_id AND t.index = e.task_index
WHERE (t.state, t.outcome, t.incarnation) IS DISTINCT FROM ('dead', e.how, e.incarnation)
ORDER BY 1, 2"""
# Indexes serve both parts for any number of ended tasks. A running task has a machine (a constraint).
_LIVE_TASKS = f"""
SELECT {NAMED}, t.index, t.state FROM (
    SELECT job_id, index, state FROM scheduling_task WHERE cell_id = %(cell)s AND state = 'pending'
    UNION ALL SELECT job_id, index, state FROM scheduling_task
    WHERE cell_id = %(cell)s AND state = 'running' AND machine_id IS NOT NULL
) AS t JOIN scheduling_job AS j ON j.id = t.job_id AND j.state = 'dead' ORDER BY 1, 2"""


def differences(cell_id: int, *, after: int) -> list[str]:
    """Return sentences about the rows of ended jobs that differ from the journal, at most `MOST_TOLD` of each kind.

    Compares jobs that ended after the revision `after`, and tasks of ended jobs that ended after it, as long as
    PostgreSQL has their events. Jobs that are only in the archive, or whose file in the archive has expired, are left
    out. Tasks that are not dead are found in every ended job.
    """
    values = {"cell": cell_id, "after": after}
    wrong = _few(
        f"job {name} ended ({how}), but its row is missing, and the archive does not contain it"
        if state is None
        else f"job {name} ended ({how}), but its row says {_state(state, outcome)}"
        for name, how, state, outcome in query(_JOBS, values)
    )
    for (since,) in query(_FIRST_TIME, values):
        wrong += _few(
            f"the row of job {name} says that it ended ({outcome}), but the journal has no such event"
            for name, outcome in query(_WITHOUT_EVENT, values | {"since": since})
        )
    wrong += _few(
        f"task {index} of ended job {name} ended ({how}) in incarnation {incarnation}, but its row "
        + ("is missing" if row[0] is None else f"says {_state(row[0], row[1])}, incarnation {row[2]}")
        for name, index, how, incarnation, *row in query(_TASKS, values)
    )
    wrong += _few(
        f"task {index} of job {name} is {state}, but the job has ended"
        for name, index, state in query(_LIVE_TASKS, values)
    )
    return wrong


def _state(state: str, outcome: str) -> str:
    return f"{state} ({outcome})" if outcome else state


def _few(sentences: Iterable[str]) -> list[str]:
    found = list(sentences)
    more = len(found) - MOST_TOLD
    return found if more <= 0 else [*found[:MOST_TOLD], f"and {more:,} more like the last one"]
