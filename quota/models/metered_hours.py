"""Metered hours in PostgreSQL and in the archive, as one relation for SQL.

    recent hours: quota_meteredhour ─────────────┐
    archived hours ─► COPY ─► temporary table ───┴─► `metered_hours`: the SQL of a relation with both

This package does not import `scheduling`, which writes the archive. So the setting QUOTA_ARCHIVED_HOURS names the
function that reads archived hours.

Each metered hour is either in PostgreSQL or in the archive. The archiver deletes rows in the transaction that records
their file, under an exclusive lock. Readers hold this lock shared (`held`), so that no hour moves while they read. The
archiver does not queue for the lock, because PostgreSQL makes new readers wait behind a queue.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from django.conf import settings
from django.db import connection, transaction
from django.utils.module_loading import import_string

from quota import clock
from quota.vocabulary import months
from quota.vocabulary.months import LEAST_METERED_DAYS

_TABLE, _ARCHIVED = "quota_meteredhour", "quota_archivedhour"
_LOCK = "quota_meteredhour"
# The time that the archiver waits for a moment without readers, and the time between two of its attempts.
LONGEST_WAIT_S = 60.0
_RETRY_S = 0.05
# For fewer archived hours, statistics of the temporary table take more time than they save.
_LEAST_ANALYZED = 10_000


class HoursInUse(Exception):
    """Raised if the archiver finds no moment in which nobody reads metered hours."""


@dataclass(frozen=True, slots=True)
class HoursWanted:
    """A selection of metered hours. `columns`: the columns of `MeteredHour` to read. `since`: the first hour; `until`:
    the end, or None. `tenants`: ids; `cell`: a name; `job_uid`: without hyphens; None selects all.
    """

    columns: Sequence[str]
    since: dt.datetime
    until: dt.datetime | None = None
    tenants: Collection[int] | None = None
    cell: str | None = None
    job_uid: str | None = None


class ArchivedHours(Protocol):
    """The interface of a function that yields archived hours as rows of CSV, in the order of `HoursWanted.columns`. It
    yields nothing if no hour is archived. It raises `Rejected` if the archive cannot be read.
    """

    def __call__(self, wanted: HoursWanted) -> Iterator[bytes]: ...


@contextmanager
def metered_hours(wanted: HoursWanted) -> Iterator[str]:
    """Yield the SQL of a relation for FROM that has the wanted columns of all metered hours in PostgreSQL and of the
    wanted archived hours. The SQL that reads it repeats the conditions of `wanted`.

    Makes no query if no wanted hour can be in the archive. Otherwise opens a transaction until the block ends, and the
    block must not contain another such block, because the temporary table has a fixed name. Raises `Rejected` with
    status 503 if the archive cannot be read, so that no sum lacks hours.
    """
    with archived_hours(wanted) as archived:
        if archived is None:
            yield _TABLE
        else:
            columns = _quoted(wanted.columns)
            yield f"(SELECT {columns} FROM {_TABLE} UNION ALL SELECT {columns} FROM {archived})"


@contextmanager
def archived_hours(wanted: HoursWanted) -> Iterator[str | None]:
    """Yield the name of a temporary table with the wanted archived hours, or None if there are none. No other hour is
    archived before the block ends. Raises `Rejected` if the archive cannot be read.
    """
    with archived_parts(wanted) as parts:
        first = next(parts, None)
        if first is None:
            yield None
            return
        columns = _quoted(wanted.columns)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TEMPORARY TABLE {_ARCHIVED} AS SELECT {columns} FROM {_TABLE} WITH NO DATA")
            # One COPY per part: the time limit of a statement must not include the time to read all files.
            rows = 0
            for part in itertools.chain([first], parts):
                with cursor.copy(f"COPY {_ARCHIVED} FROM STDIN (FORMAT csv)") as copy:
                    copy.write(part)
                rows += cursor.rowcount
            if rows >= _LEAST_ANALYZED:
                cursor.execute(f"ANALYZE {_ARCHIVED}")
            yield _ARCHIVED
            cursor.execute(f"DROP TABLE {_ARCHIVED}")


@contextmanager
def archived_parts(wanted: HoursWanted) -> Iterator[Iterator[bytes]]:
    """Yield the wanted archived hours as an iterator of CSV texts (`ArchivedHours`). No other hour is archived before
    the block ends. Makes no query if no wanted hour can be in the archive.
    """
    if wanted.since >= months.begin_of(kept_since(clock.now()), "UTC"):
        yield iter(())
        return
    read: ArchivedHours = import_string(settings.QUOTA_ARCHIVED_HOURS)
    with held():
        yield read(wanted)


def kept_since(now: dt.datetime) -> dt.date:
    """Return the first month (UTC) whose hours are all in PostgreSQL."""
    return (now - dt.timedelta(days=LEAST_METERED_DAYS)).astimezone(dt.UTC).date().replace(day=1)


@contextmanager
def held() -> Iterator[None]:
    """Open a transaction in which no other process moves metered hours to the archive."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock_shared(hashtext(%s))", [_LOCK])
        yield


@contextmanager
def held_by_archiver() -> Iterator[None]:
    """Open a transaction in which no other process reads metered hours through `held`, so that the archiver may move
    them. Tries again until a moment without readers, and raises `HoursInUse` if there is none in `LONGEST_WAIT_S`
    seconds.
    """
    deadline = time.monotonic() + LONGEST_WAIT_S
    while True:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext(%s))", [_LOCK])
            if cursor.fetchone() == (True,):
                yield
                return
        if time.monotonic() >= deadline:
            raise HoursInUse
        time.sleep(_RETRY_S)


def _quoted(columns: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in columns)
