"""Chooses the ended jobs that the archiver copies next, and deletes their rows from PostgreSQL.

    ended, and old enough ─► file in the manifest, entries of the index ─► rows deleted, in bounded transactions

A job is archived with its tasks, the versions of its spec, its updates and its verdict (the last explanation why its
tasks were pending). An entry of the index (`ArchivedJob`) exists exactly for the jobs that are in a file of the
manifest, so no job gets into two files. The module imports no Parquet library, so that web and Celery processes can use
it.

The archiver does not delete events, usage and costs here, because they have files or tables of their own. It also keeps
jobs that other rows still need (`_FREE`).
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from scheduling.history.archive.retention import DayRange, midnight
from scheduling.journal.sql import execute, query
from scheduling.models import ArchivedJob, ArchiveFile, Cell
from scheduling.policy import cell_settings

ENDED = "ended_jobs"
# A file has at most about this many tasks and jobs, so that a reader of one job need not fetch a large file.
MOST_ROWS = 200_000
# About this many tasks and jobs are deleted in one transaction.
MOST_DELETED = 5_000
# How long the rows of a job that somebody opened stay in PostgreSQL.
RECALLED = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class EndedJobs(DayRange):
    """Ended jobs that become one file. `day`: the day (UTC) on which the last of them ended. `first`, `last`: their
    smallest and their largest id. `jobs`: their ids.
    """

    jobs: tuple[int, ...]


# Jobs that no other row needs: a machine need not stop one of their tasks any more, no job of PostgreSQL runs in the
# alloc set, no folder of an alloc is kept, no job waits for their end, no record of a shell (an audit record, which
# stays) names the job, and no start of a service brings the job back.
_FREE = """
    NOT EXISTS (SELECT FROM scheduling_departure AS d JOIN scheduling_task AS t ON t.id = d.task_id
                WHERE t.job_id = j.id)
    AND NOT EXISTS (SELECT FROM scheduling_job AS i WHERE i.alloc_set_id = j.id)
    AND NOT EXISTS (SELECT FROM scheduling_keptalloc AS k WHERE k.job_id = j.id)
    AND NOT EXISTS (SELECT FROM scheduling_jobdependency AS w JOIN scheduling_job AS i ON i.id = w.job_id
                    WHERE w.on_id = j.id AND w.open AND i.waiting AND i.ended_at IS NULL)
    AND NOT EXISTS (SELECT FROM scheduling_shellsession AS s WHERE s.job_id = j.id)
    AND NOT EXISTS (SELECT FROM scheduling_stoppedjob AS s WHERE s.job_id = j.id
                    AND NOT EXISTS (SELECT FROM scheduling_job AS l WHERE l.cell_id = j.cell_id
                                    AND l.tenant_id = j.tenant_id AND l.name = j.name AND l.id > j.id))"""
# A job may have a shorter time than its cell. It is counted in whole days, too. Both sides of OR have an index.
_OLD = f"""
    j.cell_id = %(cell)s AND j.state = 'dead' AND (j.ended_at < %(before)s OR j.ended_at IS NOT NULL
        AND j.ttl_after_end_s IS NOT NULL AND j.ended_at + make_interval(secs => j.ttl_after_end_s) < %(today)s)
    AND {_FREE}"""
_NEXT = f"""
    SELECT id, ended_at FROM (
        SELECT j.id, j.ended_at, sum(j.tasks_total + 1) OVER (ORDER BY j.ended_at, j.id) - j.tasks_total AS rows
        FROM (
            SELECT j.id, j.ended_at, j.tasks_total FROM scheduling_job AS j
            WHERE {_OLD} AND NOT EXISTS (SELECT FROM scheduling_archivedjob AS a WHERE a.id = j.id)
            ORDER BY j.ended_at, j.id LIMIT %(most)s
        ) AS j
    ) AS j WHERE rows <= %(most)s ORDER BY id"""
# The jobs whose rows can go: they are in the archive, and nobody has opened them lately.
_ARCHIVED = f"""
    FROM scheduling_job AS j JOIN scheduling_archivedjob AS a ON a.id = j.id
    WHERE {_OLD} AND (a.recalled_at IS NULL OR a.recalled_at < %(recalled)s)"""
_DELETABLE = f"""
    SELECT id FROM (
        SELECT j.id, sum(j.tasks_total + 1) OVER (ORDER BY j.id DESC) - j.tasks_total AS rows
        FROM (SELECT j.id, j.tasks_total {_ARCHIVED} ORDER BY j.id DESC LIMIT %(most)s) AS j
    ) AS j WHERE rows <= %(most)s"""
_DUE = f"""
    SELECT FROM scheduling_job AS j LEFT JOIN scheduling_archivedjob AS a ON a.id = j.id
    WHERE {_OLD} AND (a.recalled_at IS NULL OR a.recalled_at < %(recalled)s) LIMIT 1"""
_INDEX = """
    INSERT INTO scheduling_archivedjob (id, uid, cell_id, tenant_id, name, kind, alloc_set_id, priority,
        latency_sensitive, labels, outcome, created_at, ended_at, file_id)
    SELECT id, uid, cell_id, tenant_id, name, kind, alloc_set_id, priority, latency_sensitive, labels, outcome,
        created_at, ended_at, %s
    FROM scheduling_job WHERE id = ANY(%s) ON CONFLICT (id) DO NOTHING"""
_DELETIONS = (
    "DELETE FROM scheduling_crashedpair AS c USING scheduling_task AS t WHERE t.id = c.task_id AND t.job_id = ANY(%s)",
    *(
        f"DELETE FROM scheduling_{table} WHERE job_id = ANY(%s)"
        for table in (
            *("task", "jobspec", "update", "pendingverdict", "jobcondition", "jobdependency", "jobautoscaling"),
            *("disruptioncount", "stoppedjob"),
        )
    ),
    # A stopped job whose name a later job has does not come back, also when the later job is only in the archive.
    "DELETE FROM scheduling_stoppedjob AS s USING scheduling_job AS o, scheduling_job AS l WHERE o.id = s.job_id"
    " AND l.id = ANY(%s) AND l.cell_id = o.cell_id AND l.tenant_id = o.tenant_id AND l.name = o.name AND l.id > o.id",
    "UPDATE scheduling_jobdependency SET on_id = NULL WHERE on_id = ANY(%s)",
    "DELETE FROM scheduling_job WHERE id = ANY(%s)",
)


def next_jobs(cell: Cell, *, now: dt.datetime) -> EndedJobs | None:
    """Return the jobs that the archiver copies next: those that ended first, are old enough, and are not in the
    archive. None if there are none.
    """
    rows = query(_NEXT, _values(cell, now) | {"most": MOST_ROWS})
    if not rows:
        return None
    ids = tuple(identity for identity, _ in rows)
    return EndedJobs(ENDED, max(ended for _, ended in rows).astimezone(dt.UTC).date(), ids[0], ids[-1], ids)


def index(file: ArchiveFile, jobs: tuple[int, ...]) -> None:
    """Add the jobs to the index of archived jobs, if they are not in it. `file`: the file that contains them. The
    caller records the file in the same transaction.
    """
    execute(_INDEX, [file.pk, list(jobs)])


def files_to_clear(cell: Cell, *, now: dt.datetime) -> list[ArchiveFile]:
    """Return the files with archived jobs whose rows are still in PostgreSQL and may now be deleted."""
    rows = query(f"SELECT DISTINCT a.file_id {_ARCHIVED}", _values(cell, now))
    return list(ArchiveFile.objects.filter(pk__in=[file for (file,) in rows]).select_related("cell").order_by("id"))


def jobs_of_file(file: ArchiveFile) -> EndedJobs:
    """Return the archived jobs of a file, so that the archiver can write the file again."""
    ids = tuple(ArchivedJob.objects.filter(file=file).order_by("id").values_list("id", flat=True))
    return EndedJobs(ENDED, file.day, file.first, file.last, ids)


def delete_some(cell: Cell, *, now: dt.datetime) -> int:
    """Delete the rows of some archived jobs, in one transaction. Return the number of jobs; 0 if there are no more.

    All rows of a job are deleted in the same transaction, so no reader sees a part of a job.
    """
    with transaction.atomic():
        rows = query(_DELETABLE, _values(cell, now) | {"most": MOST_DELETED})
        if ids := [identity for (identity,) in rows]:
            _delete(ids)
    return len(ids)


def forget(file: ArchiveFile) -> None:
    """Delete the index entries of the jobs in an expired file. Also delete rows of these jobs that `recall` has copied
    back to PostgreSQL, because the archiver would archive them again.

    The caller records in the same transaction that the file is deleted.
    """
    copies = query(
        "SELECT a.id FROM scheduling_archivedjob AS a JOIN scheduling_job AS j ON j.id = a.id WHERE a.file_id = %s",
        [file.pk],
    )
    if ids := [identity for (identity,) in copies]:
        execute("UPDATE scheduling_job SET alloc_set_id = NULL WHERE alloc_set_id = ANY(%s)", [ids])
        _delete(ids)
    ArchivedJob.objects.filter(file=file).delete()


def _delete(ids: list[int]) -> None:
    for statement in _DELETIONS:
        execute(statement, [ids])


def due(*, now: dt.datetime) -> bool:
    """Return whether any cell has ended jobs to archive, or archived jobs whose rows must be deleted."""
    return any(query(_DUE, _values(cell, now)) for cell in Cell.with_history.order_by("id"))


def lag_s(cell: Cell, *, now: dt.datetime) -> float:
    """Return the delay of the archiver with ended jobs, in seconds: the time since the oldest ended job in PostgreSQL
    should have been archived and deleted. 0 if there is no such job. Jobs that `recall` has copied back do not count.
    """
    ((oldest,),) = query(
        "SELECT min(least(j.ended_at + %(keep)s, j.ended_at + make_interval(secs => j.ttl_after_end_s)))"
        f" FROM scheduling_job AS j WHERE {_OLD} AND NOT EXISTS"
        " (SELECT FROM scheduling_archivedjob AS a WHERE a.id = j.id AND a.recalled_at IS NOT NULL)",
        _values(cell, now) | {"keep": keep(cell)},
    )
    if oldest is None:
        return 0.0
    due_at = midnight(oldest.astimezone(dt.UTC).date()) + dt.timedelta(days=1)
    return max((now - due_at).total_seconds(), 0.0)


def _values(cell: Cell, now: dt.datetime) -> dict[str, Any]:
    # Whole days (UTC), so that a day's jobs become one file.
    return {
        "cell": cell.id,
        "before": midnight((now - keep(cell)).date()),
        "today": midnight(now.date()),
        "recalled": now - RECALLED,
    }


def keep(cell: Cell) -> dt.timedelta:
    """Return for how long PostgreSQL keeps ended jobs of a cell."""
    return dt.timedelta(days=cell_settings.load(cell.settings).ended_jobs_keep_days)
