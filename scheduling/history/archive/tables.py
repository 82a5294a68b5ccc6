"""The tables that the archiver copies: their columns in PostgreSQL and in Parquet, and how rows get from one to the
other.

    COPY … TO STDOUT, columns ─► Arrow tables of at most `ROWS_PER_GROUP` rows

Times are in UTC without a time zone. Columns have the names of Google's trace of 2019 where they fit. `user` is the
tenant that owns the row; null if none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.errors import ProgramLimitExceeded

from scheduling.history.archive.columns import read_columns
from scheduling.history.archive.ended_jobs import ENDED
from scheduling.history.archive.old_specs import SPECS
from scheduling.history.archive.retention import DayRange
from scheduling.history.archive.store import EVENTS, METERED, USAGE
from scheduling.history.infrastore.columns import DERIVED
from scheduling.history.infrastore.tables import SCHEMAS
from scheduling.journal.sql import query

ROWS_PER_GROUP = 65_536
# A page with old events of one job reads all columns of the groups that have some, and few other events with them.
EVENTS_PER_GROUP = 8_192
_STATEMENT_BYTES = 128 << 20  # what one statement should read at most
_WINDOW_S = 300
_TIME = pa.timestamp("us")
_FLOATS = pa.list_(pa.float32())


@dataclass(frozen=True, slots=True)
class ArchiveTable:
    """A table of the archive. `table`: the table of PostgreSQL. `order`: the columns by which rows are sorted.
    `version`: the version of its schema, which a change of the columns increases.

    `sources`: columns or expressions of PostgreSQL, by the names of the columns in the file. The columns `user` and
    `time_us` have no source. `place`: the column whose smallest and largest value a file records as its range.
    `dictionaries`: the columns with few different values. Tables that are derived from the journal have no rows in
    PostgreSQL.
    """

    name: str
    version: int
    table: str
    order: str
    place: str
    sources: Mapping[str, str]
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    dictionaries: Sequence[str] = ()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.types.items()))


_I64, _I32, _F32, _TEXT = pa.int64(), pa.int32(), pa.float32(), pa.string()
_EVENTS = {
    "id": ("id", _I64),
    "revision": ("revision", _I64),
    "seq": ("seq", _I32),
    "time": ("time AT TIME ZONE 'UTC'", _TIME),
    "kind": ("kind", _TEXT),
    "version": ("version", pa.int16()),
    "collection_id": ("job_id", _I64),
    "instance_index": ("task_index", _I32),
    "machine_id": ("machine_id", _I64),
    "actor": ("actor", _TEXT),
    "request_id": ("request_id", _TEXT),
    "caused_by_revision": ("caused_by_revision", _I64),
    "caused_by_seq": ("caused_by_seq", _I32),
    "data": ("data", _TEXT),
}
_JOBS = {
    "collection_id": ("collection_id", _I64),
    "kind": ("kind", _TEXT),
    "number": ("number", _I32),
    "time": ("time AT TIME ZONE 'UTC'", _TIME),
    "actor": ("actor", _TEXT),
    "data": ("data", _TEXT),
}
_FEW_OF_JOBS = ("collection_id", "kind", "number", "actor", "user")
_USAGE = {
    "start_time": ("start_time AT TIME ZONE 'UTC'", _TIME),
    "end_time": ("end_time AT TIME ZONE 'UTC'", _TIME),
    "collection_id": ("collection_id", _I64),
    "instance_index": ("instance_index", _I32),
    "incarnation": ("incarnation", _I32),
    "machine_id": ("machine_id", _I64),
    **{
        name: (name, _F32)
        for name in (
            *("average_usage_cpus", "maximum_usage_cpus", "random_sample_usage_cpus", "assigned_cpus"),
            *("sample_rate", "throttled_cpus"),
        )
    },
    **{
        name: (name, _I64)
        for name in (
            *("average_usage_memory", "maximum_usage_memory", "assigned_memory", "page_cache_memory", "disk_bytes"),
            *("read_bytes_s", "written_bytes_s", "received_bytes_s", "sent_bytes_s"),
        )
    },
    "threads": ("threads", _I32),
    "oom_kills": ("oom_kills", _I32),
    "cpu_usage_distribution": ("cpu_usage_distribution", _FLOATS),
    "tail_cpu_usage_distribution": ("tail_cpu_usage_distribution", _FLOATS),
}
_HOUR_S, _CORE_HOUR = 3600.0, 3_600_000.0
# Vectors are text, because their values may have more than 64 bits. `user` is a name, and `tenant_id` stays the same if
# an erasure replaces the name.
_METERED = {
    "id": ("m.id", _I64),
    "tenant_id": ("m.tenant_id", _I64),
    "band_id": ("m.band_id", _I64),
    "posting_id": ("m.posting_id", _I64),
    "time": ("m.hour AT TIME ZONE 'UTC'", _TIME),
    "user": ("coalesce(e.pseudonym, t.name)", _TEXT),
    "job_uid": ("m.job_uid", _TEXT),
    "collection_name": ("m.job", _TEXT),
    "band": ("coalesce(b.name, 'free')", _TEXT),
    "labels": ("m.labels", pa.map_(_TEXT, _TEXT)),
    **{name: (f'm."{name}"', _TEXT) for name in ("limit", "reserved", "used")},
    **{
        f"{name}_{resource}_hours": (f'm."{name}"[{place}] / {divisor}', pa.float64())
        for name in ("limit", "reserved", "used")
        for resource, place, divisor in (("cpu", 1, _CORE_HOUR), ("memory", 2, _HOUR_S))
    },
    "price_microcredits": ("m.price", _I64),
}


def _table(
    name: str,
    table: str,
    order: str,
    place: str,
    columns: Mapping[str, tuple[str, pa.DataType]],
    dictionaries: Sequence[str],
    **derived: pa.DataType,
) -> ArchiveTable:
    sources = {column: source for column, (source, _) in columns.items()}
    types = {column: kind for column, (_, kind) in columns.items()} | derived
    return ArchiveTable(name, 1, table, order, place, sources, types, dictionaries)


def _derived(name: str) -> ArchiveTable:
    types = {field.name: field.type for field in SCHEMAS[name]}
    few = [column for column in types if column not in ("time", "time_us", "revision", "seq")]
    return ArchiveTable(name, 1, "", "", "revision", {}, types, few)


ARCHIVE_TABLES = {
    EVENTS: _table(
        EVENTS,
        "scheduling_event",
        "revision, seq",
        "revision",
        _EVENTS,
        ("kind", "actor", "user", "version", "machine_id"),
        time_us=_I64,
        user=_TEXT,
    ),
    USAGE: _table(
        USAGE,
        "scheduling_instance_usage",
        "start_time, collection_id, instance_index, incarnation",
        "start_time",
        _USAGE,
        (
            *("start_time", "end_time", "user", "collection_id", "instance_index", "incarnation", "machine_id"),
            *("assigned_cpus", "assigned_memory", "sample_rate", "throttled_cpus", "threads", "oom_kills"),
        ),
        user=_TEXT,
    ),
    ENDED: _table(ENDED, "scheduling_job", "", "collection_id", _JOBS, _FEW_OF_JOBS, user=_TEXT),
    SPECS: _table(SPECS, "scheduling_jobspec", "", "id", {"id": ("id", _I64), **_JOBS}, _FEW_OF_JOBS, user=_TEXT),
    METERED: _table(METERED, "quota_meteredhour", "", "id", _METERED, [name for name in _METERED if name != "id"]),
    **{name: _derived(name) for name in DERIVED},
}


def rows_of(cell_id: int, wanted: DayRange) -> Iterator[pa.Table]:
    """Yield the rows of a range from PostgreSQL in their order, as tables with the schema of the archive and at most
    `EVENTS_PER_GROUP` events or `ROWS_PER_GROUP` other rows. Raises `ValueError` if a row was lost on the way.
    """
    table = ARCHIVE_TABLES[wanted.table]
    select = f"SELECT {', '.join(table.sources.values())} FROM {table.table} WHERE cell_id = {cell_id}"
    if table.name == EVENTS:
        return completed(table, _events(table, select, wanted), rows_per_group=EVENTS_PER_GROUP)
    return completed(table, _usage(table, select, wanted))


def completed(
    table: ArchiveTable, parts: Iterable[pa.Table], *, rows_per_group: int = ROWS_PER_GROUP
) -> Iterator[pa.Table]:
    """Yield the rows of `parts` with the derived columns (`user`, and `time_us` if the table has it), as tables of at
    most `rows_per_group` rows with the schema of `table`.
    """
    tenants = _Tenants()
    for group in _groups(parts, rows_per_group):
        yield _completed(table, group, tenants)


def read_part(table: ArchiveTable, select: str) -> pa.Table:
    """Return the rows of a SELECT whose columns are the sources of `table`, without the derived columns."""
    return read_columns({name: table.types[name] for name in table.sources}, select)


def _events(table: ArchiveTable, select: str, wanted: DayRange) -> Iterator[pa.Table]:
    """Yield the events of a range. A statement reads fewer rows if the events before it were large."""
    place, limit = (wanted.first, -1), ROWS_PER_GROUP
    while True:
        part = f"(revision, seq) > ({place[0]}, {place[1]}) AND revision <= {wanted.last}"
        try:
            found = read_part(table, f"{select} AND {part} ORDER BY {table.order} LIMIT {limit}")
        except ProgramLimitExceeded:  # a column has more than 1 GiB
            if limit == 1:
                raise
            limit = max(limit // 64, 1)
            continue
        if found.num_rows:
            yield found
            place = (found["revision"][-1].as_py(), found["seq"][-1].as_py())
        if found.num_rows < limit:
            return
        limit = max(min(_STATEMENT_BYTES * found.num_rows // found.nbytes, ROWS_PER_GROUP), 1)


def _usage(table: ArchiveTable, select: str, wanted: DayRange) -> Iterator[pa.Table]:
    """Yield the usage of a range. Each statement reads five minutes."""
    for first in range(wanted.first, wanted.last, _WINDOW_S):
        part = f"start_time >= to_timestamp({first}) AND start_time < to_timestamp({first + _WINDOW_S})"
        yield read_part(table, f"{select} AND {part} ORDER BY {table.order}")


def _groups(tables: Iterable[pa.Table], most: int) -> Iterator[pa.Table]:
    """Yield the rows of `tables` in tables of at most `most` rows, which are small only at the end."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        held.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= most or size >= _STATEMENT_BYTES:
            joined = pa.concat_tables(held)
            for begin in range(0, rows, most):
                yield joined.slice(begin, most)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.concat_tables(held)


class _Tenants:
    """The names of tenants by job id."""

    def __init__(self) -> None:
        self._names: dict[int, str | None] = {}

    def of_jobs(self, jobs: pa.Array) -> pa.Array:
        """Return the tenant of each job, or its pseudonym if it was erased; null for null and for jobs that no longer
        exist.
        """
        if unknown := [job for job in pc.unique(jobs).to_pylist() if job is not None and job not in self._names]:
            self._names |= dict.fromkeys(unknown)
            rows = query(
                "SELECT j.id, coalesce(e.pseudonym, t.name) FROM ("
                "SELECT id, tenant_id FROM scheduling_job WHERE id = ANY(%s)"
                " UNION SELECT id, tenant_id FROM scheduling_archivedjob WHERE id = ANY(%s)"
                ") AS j JOIN quota_tenant AS t ON t.id = j.tenant_id"
                " LEFT JOIN scheduling_erasure AS e ON e.tenant_id = t.id",
                [unknown, unknown],
            )
            self._names |= dict(rows)
        names = pa.array(self._names.values(), _TEXT)
        return names.take(pc.index_in(jobs, value_set=pa.array(self._names.keys(), _I64)))


def _completed(table: ArchiveTable, found: pa.Table, tenants: _Tenants) -> pa.Table:
    """Return the rows with the derived columns `user` and, if the table has it, `time_us`."""
    found = found.combine_chunks()
    columns = {name: found[name] for name in found.column_names}
    if "time_us" in table.types:
        columns["time_us"] = found["time"].cast(_I64)
    columns["user"] = tenants.of_jobs(found["collection_id"].combine_chunks())
    return pa.table([columns[name] for name in table.types], schema=table.schema)
