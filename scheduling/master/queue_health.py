"""The number of pending tasks per priority, and how long they have waited. This shows starvation (§2.5)."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from scheduling.journal.sql import query


@dataclass(frozen=True, slots=True)
class PendingQueue:
    """The number of pending tasks of one priority in a cell. `since`: the time since which the oldest of these tasks
    has been pending.
    """

    cell_id: int
    band: str
    priority: int
    jobs: int
    tasks: int
    since: dt.datetime
    oldest_s: float


def queues(cell_id: int | None = None) -> list[PendingQueue]:
    """Return the pending tasks of one cell, or of all cells, per priority. They are sorted by cell and then by
    priority, highest first. Tasks whose job waits for its `start_after` or for other jobs are left out. Makes one
    query.
    """
    rows = query(
        "SELECT t.cell_id, min(j.band), j.priority, count(DISTINCT t.job_id), count(*),"
        " min(w.since), greatest(0, extract(epoch FROM clock_timestamp() - min(w.since)))::float8"
        " FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id,"
        " LATERAL (SELECT greatest(t.since, j.start_after, j.released_at) AS since) AS w"
        " WHERE t.state = 'pending' AND (j.start_after IS NULL OR j.start_after <= clock_timestamp())"
        " AND NOT j.waiting"
        " AND (%s::bigint IS NULL OR t.cell_id = %s)"
        " GROUP BY t.cell_id, j.priority ORDER BY t.cell_id, j.priority DESC",
        [cell_id, cell_id],
    )
    return [PendingQueue(*row) for row in rows]
