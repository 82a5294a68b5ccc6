"""The number of pending tasks per priority, and how long they have waited. This shows starvation (§2.5)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from scheduling.journal.sql import query
from scheduling.tasks import held_tasks

_QUEUES = f"""
    SELECT q.cell_id, min(q.band), q.priority, count(*), sum(q.tasks)::bigint, min(q.since),
        greatest(0, extract(epoch FROM clock_timestamp() - min(q.since)))::float8, (array_agg(q.id ORDER BY q.since))[1]
    FROM (SELECT t.cell_id, j.id, j.band, j.priority, min({held_tasks.SINCE}) AS since,
            CASE WHEN j.max_running > 0 THEN least(count(*), j.max_running - j.tasks_running) ELSE count(*) END AS tasks
        FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id
        WHERE t.state = 'pending' AND {held_tasks.MAY_START} AND (%s::bigint IS NULL OR t.cell_id = %s)
        GROUP BY t.cell_id, j.id) AS q
    GROUP BY q.cell_id, q.priority ORDER BY q.cell_id, q.priority DESC"""


@dataclass(frozen=True, slots=True)
class PendingQueue:
    """The number of pending tasks of one priority in a cell. `since`: the time since which the oldest of these tasks
    has been pending. `oldest_job`: the id of the job of this task.
    """

    cell_id: int
    band: str
    priority: int
    jobs: int
    tasks: int
    since: dt.datetime
    oldest_s: float
    oldest_job: int


def queues(cell_id: int | None = None) -> list[PendingQueue]:
    """Return the pending tasks of one cell, or of all cells, per priority. They are sorted by cell and then by
    priority, highest first. Tasks that their own job holds back (`held_tasks`) are left out. Makes one query.
    """
    return [PendingQueue(*row) for row in query(_QUEUES, [cell_id, cell_id])]
