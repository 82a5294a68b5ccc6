"""Chooses the events and usage of a cell that the archiver copies next, and the partitions that PostgreSQL may drop.

A day (UTC) is copied once it is *closed*: no more rows of the day can arrive. The days of a table are copied in order.
Rows leave PostgreSQL only when they are in the archive and older than the cell keeps them.
The module imports no Parquet library, so that web and Celery processes can use it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Max

from scheduling.history.archive.store import EVENTS, METERED, USAGE
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import ArchiveFile, ArchiveState, Cell
from scheduling.policy import cell_settings
from scheduling.usage import usage_windows

TABLES = (EVENTS, USAGE)
# Time after the end of a day in which rows of the day may still be committed. Borglets report usage late.
SETTLED = {EVENTS: dt.timedelta(minutes=10), USAGE: dt.timedelta(hours=3)}
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class DayRange:
    """Rows of one day that become one file. `first`, `last`: revisions (events) or seconds since the epoch (usage)."""

    table: str
    day: dt.date
    first: int
    last: int


def next_range(cell: Cell, table: str, *, now: dt.datetime) -> DayRange | None:
    """Return the oldest closed day of a table that is not in the archive, or None if there is none."""
    day = _oldest_day(cell, table)
    if day is None or _closes(table, day) > now:
        return None
    if table == USAGE:
        first = int(midnight(day).timestamp())
        return DayRange(table, day, first, first + DAY_S - 1)
    after = archived_until(cell, table)
    end = query(
        "SELECT revision FROM scheduling_event WHERE cell_id = %s AND revision > %s AND time >= %s"
        " ORDER BY revision LIMIT 1",
        [cell.id, after, midnight(day) + dt.timedelta(days=1)],
    )
    # Times of events may go back when a clock is set. A file then contains some events of the day before.
    ((first, last),) = query(
        "SELECT min(revision), max(revision) FROM scheduling_event"
        " WHERE cell_id = %s AND revision > %s AND revision < coalesce(%s, 9223372036854775807)",
        [cell.id, after, end[0][0] if end else None],
    )
    return DayRange(table, day, first, last)


def lag_s(cell: Cell, table: str, *, now: dt.datetime) -> float:
    """Return for how many seconds the oldest day that is not in the archive has been closed; 0 if none is closed."""
    day = _oldest_day(cell, table)
    return max((now - _closes(table, day)).total_seconds(), 0.0) if day is not None else 0.0


def lags_s(cells: Sequence[Cell], *, now: dt.datetime) -> dict[tuple[int, str], float]:
    """Return `lag_s` of each cell and each of `TABLES`, by cell id and table. Tables without a closed day that is
    missing in the archive are left out. Makes three queries for any number of cells.
    """
    ids = [cell.id for cell in cells]
    files = ArchiveFile.objects.filter(cell__in=ids, table__in=TABLES).order_by()
    until = {(cell, table): last or 0 for cell, table, last in files.values_list("cell", "table").annotate(Max("last"))}
    oldest = {
        (cell, EVENTS): time.astimezone(dt.UTC).date()
        for cell, time in query(_OLDEST_EVENTS, [ids, [until.get((cell, EVENTS), 0) for cell in ids]])
    }
    hours = usage_windows.stored_hours()
    for cell in ids:
        missing = next((hour for hour in hours if hour * 3600 > until.get((cell, USAGE), 0)), None)
        if missing is not None:
            oldest[cell, USAGE] = dt.datetime.fromtimestamp(missing * 3600, dt.UTC).date()
    found = {one: (now - _closes(one[1], day)).total_seconds() for one, day in oldest.items()}
    return {one: seconds for one, seconds in found.items() if seconds > 0}


_OLDEST_EVENTS = """
    SELECT c.id, e.time FROM unnest(%s::bigint[], %s::bigint[]) AS c(id, after) CROSS JOIN LATERAL (
        SELECT time FROM scheduling_event WHERE cell_id = c.id AND revision > c.after ORDER BY revision LIMIT 1
    ) AS e"""


def archived_until(cell: Cell, table: str) -> int:
    """Return the last revision, or the last second since the epoch, that the archive covers; 0 if it is empty."""
    files = ArchiveFile.objects.filter(cell=cell, table=table).order_by()
    return files.aggregate(last=Max("last"))["last"] or 0


def _oldest_day(cell: Cell, table: str) -> dt.date | None:
    """Return the oldest day with rows that are not in the archive, or None if there is none. A deleted cell has no
    usage after the day of its deletion.
    """
    after = archived_until(cell, table)
    if table == USAGE:
        if cell.deleted_at is not None and after >= cell.deleted_at.timestamp():
            return None
        hours = [hour for hour in usage_windows.stored_hours() if hour * 3600 > after]
        return dt.datetime.fromtimestamp(hours[0] * 3600, dt.UTC).date() if hours else None
    rows = query(
        "SELECT time FROM scheduling_event WHERE cell_id = %s AND revision > %s ORDER BY revision LIMIT 1",
        [cell.id, after],
    )
    return rows[0][0].astimezone(dt.UTC).date() if rows else None


def _closes(table: str, day: dt.date) -> dt.datetime:
    return midnight(day) + dt.timedelta(days=1) + SETTLED[table]


def midnight(day: dt.date) -> dt.datetime:
    """Return the beginning of a day (UTC)."""
    return dt.datetime.combine(day, dt.time(), dt.UTC)


@dataclass(frozen=True, slots=True)
class OldPartition:
    """A partition of PostgreSQL that may be dropped: its rows are all in the archive, and old enough. `first`, `last`:
    the first and the last revision (events) or second since the epoch (usage).
    """

    name: str
    first: int
    last: int


def old_partitions_of_events(cell: Cell, *, now: dt.datetime) -> list[OldPartition]:
    """Return the partitions of the journal that may be dropped, oldest first. The partition with the newest revision
    is never among them.
    """
    keep = dt.timedelta(days=cell_settings.load(cell.settings).journal_keep_days)
    rows = query(
        "SELECT p.name, p.first, p.until, newest.revision, newest.time, p.detaching"
        " FROM scheduling_event_partition AS p LEFT JOIN LATERAL (SELECT revision, time FROM scheduling_event AS e"
        " WHERE e.cell_id = p.cell_id AND e.revision >= p.first AND e.revision < p.until"
        " ORDER BY revision DESC LIMIT 1) AS newest ON true"
        " WHERE p.cell_id = %s AND p.until <= %s ORDER BY p.first",
        [cell.id, journal.newest(cell.id)],
    )
    archived = archived_until(cell, EVENTS)
    found = []
    for name, first, until, revision, time, detaching in rows:
        # A partition that is being detached looks empty, and was found to be old before.
        if not detaching and revision is not None and (revision > archived or time > now - keep):
            break
        found.append(OldPartition(name, first, until - 1))
    return found


def old_partitions_of_usage(*, now: dt.datetime) -> list[OldPartition]:
    """Return the partitions of usage that may be dropped, oldest first: every cell has a file for them, and they are
    older than `BORG_USAGE_KEEP_HOURS`. Deleted cells need files only until the day of their deletion.
    """
    until = query(
        "SELECT coalesce(min(coalesce(f.last, 0)), 0) FROM scheduling_cell AS c LEFT JOIN LATERAL"
        ' (SELECT max(last) AS last FROM scheduling_archivefile WHERE cell_id = c.id AND "table" = %s) AS f ON true'
        " WHERE c.study_of IS NULL"
        " AND (c.deleted_at IS NULL OR coalesce(f.last, 0) < extract(epoch FROM c.deleted_at))",
        [USAGE],
    )[0][0]
    return [
        OldPartition(usage_windows.partition(hour), hour * 3600, hour * 3600 + 3599)
        for hour in usage_windows.old_hours(keep_hours=settings.BORG_USAGE_KEEP_HOURS, now=now)
        if hour * 3600 + 3599 <= until
    ]


def expired_files(cell: Cell, *, now: dt.datetime) -> list[ArchiveFile]:
    """Return the files that are older than the cell's `archive_keep_days`, and whose rows PostgreSQL has dropped. Files
    with metered hours are never among them, because money is kept for ever.
    """
    keep = dt.timedelta(days=cell_settings.load(cell.settings).archive_keep_days)
    old = ArchiveFile.objects.filter(cell=cell, state=ArchiveState.SOLE, day__lt=(now - keep).date())
    old = old.exclude(table=METERED)
    return list(old.select_related("cell").order_by("table", "first"))


def due(*, now: dt.datetime) -> bool:
    """Return whether the archiver has work with events or usage: rows to archive, partitions to drop, or expired files
    to delete.
    """
    return bool(old_partitions_of_usage(now=now)) or any(
        any(lag_s(cell, table, now=now) > 0 for table in TABLES)
        or old_partitions_of_events(cell, now=now)
        or expired_files(cell, now=now)
        for cell in Cell.with_history.order_by("id")
    )
