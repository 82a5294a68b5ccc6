"""The check that ended jobs and their tasks have the rows that their events in the journal describe.

A `CellState` has no ended jobs, so the comparison of states does not see their rows. This module compares them in
PostgreSQL, with two statements for any number of rows. A job that has ended never changes again.
"""

from __future__ import annotations

import datetime as dt

from scheduling.journal.sql import query

_JOBS = """
WITH ended AS (
    SELECT DISTINCT ON (job_id) job_id, data->>'how' AS how FROM scheduling_event
    WHERE cell_id = %(cell)s AND revision > %(after)s AND kind = 'job.ended' ORDER BY job_id, revision DESC
), stored AS (
    SELECT id, name, state, outcome FROM scheduling_job WHERE id IN (SELECT job_id FROM ended)
    UNION SELECT id, name, state, outcome FROM scheduling_job
    WHERE cell_id = %(cell)s AND ended_at > %(since)s
)
SELECT coalesce(j.name, e.job_id::text), e.how, j.state, j.outcome
FROM ended AS e FULL JOIN stored AS j ON j.id = e.job_id
WHERE (j.state, j.outcome) IS DISTINCT FROM ('dead', e.how)
AND (j.id IS NOT NULL OR NOT EXISTS (SELECT FROM scheduling_archivedjob AS a WHERE a.id = e.job_id)
    AND NOT EXISTS (SELECT FROM scheduling_archivefile AS f WHERE f.cell_id = %(cell)s AND f.table = 'ended_jobs'
        AND f.state = 'deleted' AND e.job_id BETWEEN f.first AND f.last))
ORDER BY 1"""
_TASKS = """
WITH ended AS (
    SELECT DISTINCT ON (job_id, task_index) job_id, task_index, data->>'how' AS how,
        (data->>'incarnation')::integer AS incarnation
    FROM scheduling_event WHERE cell_id = %(cell)s AND revision > %(after)s AND kind = 'task.ended'
    ORDER BY job_id, task_index, revision DESC, seq DESC
)
SELECT j.name, e.task_index, e.how, e.incarnation, t.state, t.outcome, t.incarnation
FROM ended AS e JOIN scheduling_job AS j ON j.id = e.job_id AND j.state = 'dead'
LEFT JOIN scheduling_task AS t ON t.job_id = e.job_id AND t.index = e.task_index
WHERE (t.state, t.outcome, t.incarnation) IS DISTINCT FROM ('dead', e.how, e.incarnation)
ORDER BY 1, 2"""


def ended_since(cell_id: int, *, after: int) -> dt.datetime:
    """Return a time: of the jobs that ended later, PostgreSQL has the event. It is the time of the first event after
    the revision `after`, or the end of time if there is none.
    """
    rows = query(
        "SELECT time FROM scheduling_event WHERE cell_id = %s AND revision > %s ORDER BY revision, seq LIMIT 1",
        [cell_id, after],
    )
    return rows[0][0] if rows else dt.datetime.max.replace(tzinfo=dt.UTC)


def differences(cell_id: int, *, after: int) -> list[str]:
    """Return one sentence for each ended job, and for each task of an ended job, whose row differs from its last event
    in PostgreSQL after the revision `after`. Jobs that are only in the archive are left out, and
    jobs whose file in the archive has expired.
    """
    values = {"cell": cell_id, "after": after, "since": ended_since(cell_id, after=after)}
    wrong = []
    for name, how, state, outcome in query(_JOBS, values):
        if state is None:
            wrong.append(f"job {name} ended ({how}), but its row is missing, and the archive does not contain it")
        elif how is None:
            wrong.append(f"the row of job {name} says that it ended ({outcome}), but the journal has no such event")
        else:
            wrong.append(f"job {name} ended ({how}), but its row says {state} ({outcome})")
    for name, index, how, incarnation, *row in query(_TASKS, values):
        event = f"task {index} of ended job {name} ended ({how}) in incarnation {incarnation}"
        found = "is missing" if row[0] is None else f"says {row[0]} ({row[1]}), incarnation {row[2]}"
        wrong.append(f"{event}, but its row {found}")
    return wrong
