"""Partitions of the table of metered hours: one per month (UTC).

    `ensure`: report of an hour ─► its month and the next two have partitions ─► row
    `drop`:   month is archived ─► its partition has no row ─► DROP TABLE

Rows leave a month in several transactions, cell by cell, and some stay until an invoice is closed. So the archiver
deletes rows and not months, and drops a partition without rows. That returns all its disk space at once.

Only a report of an hour before `kept_since` can meet a partition that is dropped. Such a report holds the lock `held`,
and `drop` takes the same lock for itself. So a partition that `ensure` has found is there until the report is stored.

In an installation that is older than the partitions, the old table is the partition `quota_meteredhour_until_YYYYMM`.
It contains all hours before that month, and is dropped like the others.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

from quota.models.metered_hours import HoursInUse, held_by_archiver, kept_since
from quota.vocabulary import months

_TABLE = "quota_meteredhour"
AHEAD = 2
# The longest time that `drop` waits for other readers, while new readers wait behind it. After one second, PostgreSQL
# cancels an autovacuum of the partition.
_LONGEST_LOCK_MS = 1_500


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition with the hours from month `begin` (None: from the first hour) to before month `end`."""

    name: str
    begin: dt.date | None
    end: dt.date

    def contains(self, month: dt.date) -> bool:
        return (self.begin is None or self.begin <= month) and month < self.end


def ensure(hour: dt.datetime) -> list[str]:
    """Create the missing partitions for the month of `hour` and for the `AHEAD` months after it. Return their names.

    Makes one query if no partition is missing. Otherwise writers of tenants, bands and postings wait until the caller's
    transaction ends, because a new partition has foreign keys. Readers and writers of metered hours do not wait.
    """
    month = hour.astimezone(dt.UTC).date().replace(day=1)
    wanted = [month]
    for _ in range(AHEAD):
        wanted.append(months.after(wanted[-1]))
    if not _missing(wanted):
        return []
    with transaction.atomic(), connection.cursor() as cursor:
        # Two transactions that create the same partition at once would fail.
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"{_TABLE} partitions"])
        # ATTACH PARTITION takes these locks too. Transactions that write a tenant and its postings take them in this
        # order.
        cursor.execute("LOCK TABLE quota_tenant, quota_priorityband, quota_posting IN SHARE ROW EXCLUSIVE MODE")
        made = []
        for one in _missing(wanted):  # again, because another process may have created them
            name, (begin, end) = f"{_TABLE}_{one:%Y%m}", months.bounds(one, "UTC")
            cursor.execute(f"CREATE TABLE {name} (LIKE {_TABLE} INCLUDING DEFAULTS, PRIMARY KEY (id))")
            # Unlike CREATE TABLE … PARTITION OF, this does not wait for readers and writers.
            cursor.execute(
                f"ALTER TABLE {_TABLE} ATTACH PARTITION {name}"
                f" FOR VALUES FROM ('{begin.isoformat()}') TO ('{end.isoformat()}')"
            )
            made.append(name)
    return made


def empty_months(*, now: dt.datetime) -> list[str]:
    """Return the names of the partitions without rows whose hours may all be in the archive."""
    end = kept_since(now)
    return [one.name for one in _partitions() if one.end <= end and _is_empty(one.name)]


def drop(name: str) -> bool:
    """Drop a partition, unless it has rows or others use the table of metered hours. Return whether it was dropped. The
    caller is the only process that drops partitions.
    """
    try:
        with held_by_archiver(), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{_LONGEST_LOCK_MS}ms"])
            cursor.execute(f"LOCK TABLE ONLY {_TABLE} IN ACCESS EXCLUSIVE MODE")
            if not _is_empty(name):
                return False
            cursor.execute(f"DROP TABLE {name}")
            return True
    except HoursInUse:
        return False
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            return False
        raise


def _missing(wanted: list[dt.date]) -> list[dt.date]:
    there = _partitions()
    return [month for month in wanted if not any(one.contains(month) for one in there)]


def _partitions() -> list[_Partition]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT child.relname FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid"
            " WHERE inhparent = %s::regclass ORDER BY child.relname",
            [_TABLE],
        )
        return [_partition(name) for (name,) in cursor.fetchall()]


def _partition(name: str) -> _Partition:
    kind, _, digits = name.removeprefix(f"{_TABLE}_").rpartition("_")
    month = dt.date(int(digits[:4]), int(digits[4:]), 1)
    return _Partition(name, None, month) if kind else _Partition(name, month, months.after(month))


def _is_empty(name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT NOT EXISTS (SELECT FROM {name})")
        return bool(cursor.fetchone()[0])
