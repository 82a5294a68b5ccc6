"""Usage in windows of five minutes, stored in PostgreSQL for Infrastore and for pages. Windows are written in batches.

    Report.windows ─► the shard finds their tasks ─► store ─► partitions by the hour ─► the archive
                                                                  └─► pages, REST

A window that arrives twice is stored once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from django.db import connection, transaction
from django.db.models import QuerySet

from borglet.messages import UsageWindow
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.journal.sql import execute, query
from scheduling.models import InstanceUsage, Task

TABLE = InstanceUsage._meta.db_table
# Machines keep the windows of one hour, and their clocks may be wrong.
OLDEST_S, NEWEST_S = 2 * 3600, 600
_LEAST_KEPT_HOURS = 3  # machines may still report these windows
_SPANS_S = range(10, 3601)
_QUANTILES, _TAIL = 11, 9
_MOST_INT32, _MOST_INT64 = 2**31 - 1, 2**53
_COLUMNS = ", ".join(field.attname for field in InstanceUsage._meta.concrete_fields)
_known: set[int] = set()  # hours since the epoch whose partition exists


class TaskWindow(NamedTuple):
    """A usage window from a Borglet, together with the ids of its cell, machine and task."""

    cell_id: int
    machine_id: int
    task_id: int
    window: UsageWindow


def sensible(window: UsageWindow, now: float) -> bool:
    """Return whether the times and amounts of a window are possible. `now`: seconds since the epoch."""
    return (
        window.span_s in _SPANS_S
        and now - OLDEST_S <= window.start <= now + NEWEST_S
        and 0 < window.samples <= 10 * window.span_s
        and len(window.cpu_distribution) == _QUANTILES
        and len(window.cpu_tail) == _TAIL
        and 0 < window.key.incarnation <= _MOST_INT32
    )


def store(many: Sequence[TaskWindow]) -> None:
    """Write the windows that are not stored yet. Makes three statements, and two more for each new hour."""
    if not many:
        return
    _ensure_partitions({one.window.start // 3600 for one in many})
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE IF NOT EXISTS usage_in (LIKE {TABLE}) ON COMMIT DELETE ROWS")
        with cursor.copy(f"COPY usage_in ({_COLUMNS}) FROM STDIN") as copy:
            copy.write("".join([_line(one) for one in many]))
        cursor.execute(f"INSERT INTO {TABLE} ({_COLUMNS}) SELECT {_COLUMNS} FROM usage_in ON CONFLICT DO NOTHING")


def _line(one: TaskWindow) -> str:
    """Return a window as a line of text for PostgreSQL's COPY, with the columns in the order of the model."""
    window = one.window
    job_id, index = split_task_id(one.task_id)
    start = dt.datetime.fromtimestamp(window.start, dt.UTC)
    end = start + dt.timedelta(seconds=window.span_s)
    return (
        f"{job_id}\t{index}\t{start.isoformat()}\t{end.isoformat()}\t{window.key.incarnation}\t{one.cell_id}"
        f"\t{one.machine_id}\t{_cores(window.cpu_milli)}\t{_amount(window.ram_bytes)}"
        f"\t{_cores(window.most_cpu_milli)}\t{_amount(window.most_ram_bytes)}\t{_cores(window.random_cpu_milli)}"
        f"\t{_cores(window.limit_cpu_milli)}\t{_amount(window.limit_ram_bytes)}\t{_amount(window.cached_bytes)}"
        f"\t{window.samples / window.span_s:.4g}\t{_array(window.cpu_distribution)}\t{_array(window.cpu_tail)}"
        f"\t{_cores(window.throttled_milli)}\t{_amount(window.disk_bytes)}\t{_amount(window.read_bytes_s)}"
        f"\t{_amount(window.written_bytes_s)}\t{_amount(window.received_bytes_s)}\t{_amount(window.sent_bytes_s)}"
        f"\t{_amount(window.most_threads, _MOST_INT32)}\t{_amount(window.oom_kills, _MOST_INT32)}\n"
    )


def _amount(value: int, most: int = _MOST_INT64) -> int:
    return min(max(value, 0), most)


def _cores(milli: int) -> float:
    return _amount(milli, _MOST_INT32) / 1000


def _array(values: Iterable[int]) -> str:
    return "{" + ",".join([str(_cores(value)) for value in values]) + "}"


def _ensure_partitions(hours: set[int]) -> None:
    for hour in sorted(hours - _known):
        first = dt.datetime.fromtimestamp(hour * 3600, dt.UTC)
        with transaction.atomic():
            # Two transactions that create the same partition at once would fail.
            execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [TABLE])
            execute(
                f"CREATE TABLE IF NOT EXISTS {partition(hour)} PARTITION OF {TABLE} FOR VALUES FROM"
                f" ('{first.isoformat()}') TO ('{(first + dt.timedelta(hours=1)).isoformat()}')"
            )
        transaction.on_commit(partial(_known.add, hour))


def stored_hours() -> list[int]:
    """Return the hours for which the usage table has a partition, oldest first, as hours since the epoch."""
    rows = query(
        "SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid"
        " WHERE inhparent = %s::regclass",
        [TABLE],
    )
    return sorted(int(name.rpartition("_")[2]) for (name,) in rows)


def old_hours(*, keep_hours: int, now: dt.datetime) -> list[int]:
    """Return the hours, as hours since the epoch, whose partitions of the usage table are old: all windows in them
    began more than `keep_hours` hours ago. Oldest first.
    """
    oldest = int(now.timestamp()) // 3600 - max(keep_hours, _LEAST_KEPT_HOURS)
    return [hour for hour in stored_hours() if hour < oldest]


def of_task(task: Task, *, since: dt.datetime) -> QuerySet[InstanceUsage]:
    """Return the usage windows of a task that began at `since` or later, for all its incarnations, oldest first."""
    return InstanceUsage.objects.filter(
        collection_id=task.job_id, instance_index=task.index, start_time__gte=since
    ).order_by("start_time", "incarnation")


def partition(hour: int) -> str:
    """Return the name of the partition of the usage table for an hour. `hour`: hours since the epoch."""
    return f"{TABLE}_{hour}"
