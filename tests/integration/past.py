"""Helpers that write events and usage of earlier days directly into PostgreSQL."""

from __future__ import annotations

import datetime as dt

from django.db import connection
from django.utils import timezone

from borglet.messages import TaskKey, UsageWindow
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.models import Cell
from scheduling.usage import usage_windows
from scheduling.usage.usage_windows import TaskWindow

MIDNIGHT = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)


def ago(days: float) -> dt.datetime:
    return MIDNIGHT - dt.timedelta(days=days)


def happened(cell: Cell, number: int, *, at: dt.datetime, every_s: float = 1.0, job_id: int | None = None) -> None:
    """Write `number` revisions of two events each, the first at the time `at` and then one every `every_s` seconds."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO scheduling_event (cell_id, revision, seq, time, kind, version, job_id, task_index, machine_id,"
            " actor, request_id, caused_by_revision, caused_by_seq, data) SELECT c.id, c.revision + n, seq,"
            " %(at)s + (n - 1) * %(every)s * interval '1 second', 'task.gone', 1, %(job)s,"
            " CASE WHEN %(job)s IS NULL THEN NULL ELSE seq END, n %% 7,"
            " E'who, \"said\"\\n\\\\N ü', '', NULL, NULL,"
            " jsonb_build_object('kind', 'task.gone', 'job_id', coalesce(%(job)s, 9), 'index', seq,"
            " 'machine_id', n %% 7, 'incarnation', n) FROM scheduling_cell AS c, generate_series(1, %(number)s) AS n,"
            " generate_series(0, 1) AS seq WHERE c.id = %(cell)s",
            {"cell": cell.id, "number": number, "at": at, "every": every_s, "job": job_id},
        )
        cursor.execute("UPDATE scheduling_cell SET revision = revision + %s WHERE id = %s", [number, cell.id])
    cell.refresh_from_db()


def skipped_to(cell: Cell, revision: int) -> None:
    """Set the revision of the cell, so that its next revision is `revision` + 1, as after a restore."""
    Cell.objects.filter(pk=cell.pk).update(revision=revision)
    journal.ensure_partitions()
    cell.refresh_from_db()


def used(cell: Cell, tasks: int, *, at: dt.datetime, job_id: int = 5) -> None:
    """Store the usage of the first `tasks` tasks of a job in one window of five minutes that begins at `at`."""
    start = int(at.timestamp())
    usage_windows._known.discard(start // 3600)
    usage_windows.store(
        [
            TaskWindow(
                cell.id,
                3,
                task_id(job_id, index),
                UsageWindow(
                    key=TaskKey("0" * 32, 0, 1),
                    start=start,
                    span_s=300,
                    samples=60,
                    cpu_milli=250 + index,
                    most_cpu_milli=1000,
                    random_cpu_milli=240,
                    cpu_distribution=list(range(0, 1100, 100)),
                    cpu_tail=list(range(910, 1000, 10)),
                    ram_bytes=2**20,
                    most_ram_bytes=2**21,
                    limit_cpu_milli=500,
                    limit_ram_bytes=2**26,
                    cached_bytes=5,
                    most_threads=3,
                ),
            )
            for index in range(tasks)
        ]
    )
