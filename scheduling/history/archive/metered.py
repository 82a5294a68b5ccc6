"""Metered hours in the archive: the archiver moves them there, and `quota.models.metered_hours` reads them there.

    month that ended long ago, charged and on a closed invoice ─► file ─► manifest and deletion, one transaction
    HoursWanted ─► manifest: months, tenants ─► files ─► row groups that may contain the hours ─► CSV, temporary table

An hour that cost something moves only after its posting is on a closed invoice, so an hour that is not charged is never
deleted, and drafts of invoices find all their hours in PostgreSQL. Each hour is either in PostgreSQL or in one file of
the manifest. These files never expire, because money is kept for ever. Rows are sorted by tenant and job, so the
statistics of a row group show which tenants and jobs it may contain.

The module imports the Parquet library only to write or read a file, so that web and Celery processes can use it.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db.models import Q

from quota.models.metered_hours import HoursWanted
from quota.vocabulary import months
from quota.vocabulary.errors import Rejected
from scheduling.history.archive.retention import DayRange, midnight
from scheduling.history.archive.store import METERED, local_file
from scheduling.journal.sql import execute, query
from scheduling.models import ArchiveFile, ArchiveState, Cell
from scheduling.policy import cell_settings
from scheduling.storage.files import NotThere, StoreAway

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

# The most hours of one file and of one transaction.
MOST_ROWS = 200_000
# A reader of one job reads few hours of other jobs.
ROWS_PER_GROUP = 16_384


@dataclass(frozen=True, slots=True)
class MeteredHours(DayRange):
    """Metered hours of one month (UTC) that become one file. `day`: the day of the last of them. `first`, `last`: the
    smallest and the largest id of their rows. `ids`: the ids of their rows, in the order of the file. `written_by`: for
    each row, the id of the transaction of PostgreSQL that wrote it. `tenants`: the smallest and the largest id of their
    tenants.
    """

    ids: tuple[int, ...]
    written_by: tuple[str, ...]
    tenants: tuple[int, int]

    @property
    def bounds(self) -> tuple[dt.datetime, dt.datetime]:
        """The start and the end of their month, so that PostgreSQL looks up ids in the partition of the month only."""
        return months.bounds(self.day.replace(day=1), "UTC")


# Hours that cost nothing, or that were charged in a month of the tenant that is closed.
_SETTLED = """(m.price = 0 OR EXISTS (
        SELECT FROM quota_posting AS p JOIN quota_invoice AS i ON i.tenant_id = p.tenant_id
        WHERE p.id = m.posting_id AND i.ends_at > p.occurred_at))"""
_OLDEST = """
    SELECT m.hour FROM quota_meteredhour AS m WHERE m.cell = %(cell)s AND m.hour < %(before)s AND {which}
    ORDER BY m.hour LIMIT 1"""
_NEXT = f"""
    SELECT m.id, m.xmin::text, m.hour, m.tenant_id FROM quota_meteredhour AS m WHERE m.cell = %(cell)s
    AND m.hour >= %(begin)s AND m.hour < %(end)s AND {_SETTLED}
    ORDER BY m.tenant_id, m.job_uid, m.hour, m.id LIMIT %(most)s"""
_ROWS = """
    SELECT {columns} FROM quota_meteredhour AS m JOIN quota_tenant AS t ON t.id = m.tenant_id
    LEFT JOIN quota_priorityband AS b ON b.id = m.band_id LEFT JOIN scheduling_erasure AS e ON e.tenant_id = t.id
    WHERE m.id = ANY('{{{ids}}}'::bigint[]) AND m.hour >= '{begin}' AND m.hour < '{end}'
    ORDER BY m.tenant_id, m.job_uid, m.hour, m.id"""
_DELETE = """
    DELETE FROM quota_meteredhour AS m USING unnest(%s::bigint[], %s::text[]::xid[]) AS moved(id, written_by)
    WHERE m.id = moved.id AND m.xmin = moved.written_by AND m.hour >= %s AND m.hour < %s"""
# For each column of `MeteredHour`, the column of a file. The cell is the cell of the file.
_IN_FILE = {
    **{name: name for name in ("tenant_id", "band_id", "job_uid", "limit", "reserved", "used", "labels", "posting_id")},
    "hour": "time",
    "job": "collection_name",
    "price": "price_microcredits",
}


def next_hours(cell: Cell, *, now: dt.datetime) -> MeteredHours | None:
    """Return the hours of the oldest month that the archiver must move next, at most `MOST_ROWS`, or None if there are
    none.
    """
    oldest = _oldest(cell, now=now)
    if oldest is None:
        return None
    begin, end = months.bounds(oldest.astimezone(dt.UTC).date().replace(day=1), "UTC")
    rows = query(_NEXT, {"cell": cell.recorded_name, "begin": begin, "end": end, "most": MOST_ROWS})
    if not rows:
        return None  # they are no longer there, or no longer settled
    ids, written_by, hours, tenants = zip(*rows, strict=True)
    day = max(hours).astimezone(dt.UTC).date()
    return MeteredHours(METERED, day, min(ids), max(ids), ids, written_by, (tenants[0], tenants[-1]))


def rows_of_hours(wanted: MeteredHours) -> Iterator[pa.Table]:
    """Yield the rows of hours from PostgreSQL in their order, as tables with the schema of the archive and at most
    `ROWS_PER_GROUP` rows. The names of erased tenants are replaced by their pseudonyms.
    """
    from scheduling.history.archive.tables import ARCHIVE_TABLES, read_part

    table = ARCHIVE_TABLES[METERED]
    columns, (begin, end) = ", ".join(table.sources.values()), wanted.bounds
    for first in range(0, len(wanted.ids), ROWS_PER_GROUP):
        ids = ",".join(map(str, wanted.ids[first : first + ROWS_PER_GROUP]))
        found = read_part(table, _ROWS.format(columns=columns, ids=ids, begin=begin, end=end))
        place = found.schema.get_field_index("labels")
        yield found.set_column(place, "labels", _maps(found["labels"].combine_chunks())).cast(table.schema)


def delete(file: ArchiveFile, hours: MeteredHours) -> bool:
    """Delete the rows of these hours from PostgreSQL. Return False if a row was changed since it was chosen; the caller
    then rolls back. The caller holds the lock of the archiver (`held_by_archiver`), and records their file in the same
    transaction.
    """
    gone = execute(_DELETE, [list(hours.ids), list(hours.written_by), *hours.bounds])
    first, last = hours.tenants
    ArchiveFile.objects.filter(pk=file.pk).update(state=ArchiveState.SOLE, tenant_first=first, tenant_last=last)
    return gone == len(hours.ids)


def due(*, now: dt.datetime) -> bool:
    """Return whether metered hours of any cell have to be archived."""
    return any(_oldest(cell, now=now) for cell in Cell.with_history.order_by("id"))


def lag_s(cell: Cell, *, now: dt.datetime) -> float:
    """Return the delay of the archiver with metered hours, in seconds: the time since the month of the oldest ones
    should have been archived. 0 if there are none.
    """
    oldest = _oldest(cell, now=now)
    if oldest is None:
        return 0.0
    _, end = months.bounds(oldest.astimezone(dt.UTC).date().replace(day=1), "UTC")
    return max((now - end - _keep(cell)).total_seconds(), 0.0)


def unsettled_age_s(cell: Cell, *, now: dt.datetime) -> float:
    """Return the age of the oldest metered hour that is due but cannot be archived, in seconds: its usage is not
    charged, or its posting is not on a closed invoice. 0 if there is none.
    """
    oldest = _oldest(cell, now=now, which=f"NOT {_SETTLED}")
    return (now - oldest).total_seconds() if oldest is not None else 0.0


def _oldest(cell: Cell, *, now: dt.datetime, which: str = _SETTLED) -> dt.datetime | None:
    """Return the oldest hour in PostgreSQL of the months that have to be archived, or None. `which`: SQL that selects
    hours `m`, by default those that are settled.
    """
    rows = query(_OLDEST.format(which=which), {"cell": cell.recorded_name, "before": _before(cell, now)})
    return rows[0][0] if rows else None


def _before(cell: Cell, now: dt.datetime) -> dt.datetime:
    """Return the end of the last month that is archived: it ended at least `metered_hours_keep_days` ago."""
    return midnight((now - _keep(cell)).astimezone(dt.UTC).date().replace(day=1))


def _keep(cell: Cell) -> dt.timedelta:
    return dt.timedelta(days=cell_settings.load(cell.settings).metered_hours_keep_days)


def read_hours(wanted: HoursWanted) -> Iterator[bytes]:
    """Yield the archived hours of a selection as rows of CSV with its columns, one text per row group. Makes one query,
    and reads once each file that may contain hours of the months and the tenants of the selection. Raises `Rejected` if
    the archive cannot be read.
    """
    files = ArchiveFile.objects.filter(table=METERED, day__gte=wanted.since.astimezone(dt.UTC).date())
    if wanted.until is not None:
        last_day = months.last_instant(wanted.until.astimezone(dt.UTC)).date()
        files = files.filter(day__lt=months.after(last_day))
    if wanted.cell is not None:
        files = files.filter(Q(cell__name=wanted.cell) | Q(cell__deleted_name=wanted.cell))
    if wanted.tenants is not None:
        first, last = min(wanted.tenants, default=0), max(wanted.tenants, default=0)
        files = files.filter(Q(tenant_first=None) | Q(tenant_first__lte=last, tenant_last__gte=first))
    for file in files.select_related("cell").order_by("day", "id"):
        yield from _read(file, wanted)


def _read(file: ArchiveFile, wanted: HoursWanted) -> Iterator[bytes]:
    import pyarrow as pa  # few processes read the archive

    from scheduling.history.archive.parquet import UnreadableArchive, open_file

    try:
        with local_file(file) as path, open_file(path, name=file.key) as opened:
            for number in _groups(opened, wanted):
                if text := _csv(opened, number, wanted, file.cell.recorded_name):
                    yield text
    except (StoreAway, NotThere, UnreadableArchive, pa.ArrowException, OSError) as error:
        raise Rejected(
            "archive-away",
            f"the costs and usage of {file.day:%Y-%m} are in the file {file.key} of the archive, which cannot be read:"
            f" {error}; try again, or ask an SRE to repair the archive",
            status=503,
        ) from error


def _groups(file: pq.ParquetFile, wanted: HoursWanted) -> Iterator[int]:
    """Yield the row groups that may contain wanted hours, by their statistics."""
    tenants, uids = map(file.schema_arrow.get_field_index, ("tenant_id", "job_uid"))
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        tenant, uid = group.column(tenants).statistics, group.column(uids).statistics
        if wanted.tenants is not None and not any(tenant.min <= one <= tenant.max for one in wanted.tenants):
            continue
        if wanted.job_uid is None or uid.min <= wanted.job_uid <= uid.max:
            yield number


def _csv(file: pq.ParquetFile, number: int, wanted: HoursWanted, cell: str) -> bytes:
    """Return the wanted hours of a row group as CSV. Nulls are empty, and texts have quotation marks."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    names = [_IN_FILE[name] for name in wanted.columns if name != "cell"]
    rows = file.read_row_group(number, columns=[*{*names, "time", "tenant_id", "job_uid"}], use_threads=False)
    mask = pc.greater_equal(rows["time"], _utc(wanted.since))
    if wanted.until is not None:
        mask = pc.and_(mask, pc.less(rows["time"], _utc(wanted.until)))
    if wanted.tenants is not None:
        mask = pc.and_(mask, pc.is_in(rows["tenant_id"], value_set=pa.array(wanted.tenants, pa.int64())))
    if wanted.job_uid is not None:
        mask = pc.and_(mask, pc.equal(rows["job_uid"], wanted.job_uid))
    found = rows.filter(mask)
    if not found.num_rows:
        return b""
    columns = []
    for name in wanted.columns:
        if name == "cell":
            columns.append(pa.repeat(cell, found.num_rows))
        elif name == "labels":
            columns.append(pa.array([json.dumps(dict(one)) for one in found["labels"].to_pylist()], pa.string()))
        else:
            column = found[_IN_FILE[name]]
            columns.append(column.cast(pa.timestamp("us", "UTC")) if name == "hour" else column)
    out = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns, names=list(wanted.columns)), out, csv.WriteOptions(include_header=False))
    return bytes(out.getvalue())


def _utc(moment: dt.datetime) -> Any:
    import pyarrow as pa

    return pa.scalar(moment.astimezone(dt.UTC).replace(tzinfo=None), pa.timestamp("us"))


def _maps(texts: pa.StringArray) -> pa.MapArray:
    """Return JSON objects as maps. Most jobs have the same labels in all hours, so each distinct text is read once."""
    import pyarrow as pa

    known = texts.dictionary_encode()
    maps = [list(json.loads(text).items()) for text in known.dictionary.to_pylist()]
    return pa.array(maps, pa.map_(pa.string(), pa.string())).take(known.indices)
