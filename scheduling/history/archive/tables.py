"""The tables that the archiver copies: their columns in PostgreSQL and in Parquet, and how rows get from one to the
other.

    COPY … TO STDOUT (CSV) ─► chunks of whole rows ─► Arrow tables of at most `ROWS_PER_GROUP` rows

Times are in UTC without a time zone. Columns have the names of Google's trace of 2019 where they fit. `user` is the
tenant that owns the row; null if none does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from django.db import connection
from psycopg.abc import Buffer
from pyarrow import csv

from scheduling.history.archive.ended import ENDED
from scheduling.history.archive.old_specs import SPECS
from scheduling.history.archive.ranges import EVENTS, USAGE, DayRange

ROWS_PER_GROUP = 65_536
_HOUR_S = 3600
_TIME = pa.timestamp("us")
_FLOATS = pa.list_(pa.float32())


@dataclass(frozen=True, slots=True)
class ArchiveTable:
    """A table of the archive. `version`: of its schema; a change of the columns needs a new version.

    `sources`: columns or expressions of PostgreSQL, by the names of the columns in the file. The columns `user` and
    `time_us` have no source. `place`: the column that the ranges of files count.
    """

    name: str
    version: int
    table: str
    order: str
    place: str
    sources: Mapping[str, str]
    types: Mapping[str, pa.DataType] = field(default_factory=dict)

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


def _table(
    name: str,
    table: str,
    order: str,
    place: str,
    columns: Mapping[str, tuple[str, pa.DataType]],
    **derived: pa.DataType,
) -> ArchiveTable:
    sources = {column: source for column, (source, _) in columns.items()}
    types = {column: kind for column, (_, kind) in columns.items()} | derived
    return ArchiveTable(name, 1, table, order, place, sources, types)


ARCHIVE_TABLES = {
    EVENTS: _table(EVENTS, "scheduling_event", "revision, seq", "revision", _EVENTS, time_us=_I64, user=_TEXT),
    USAGE: _table(
        USAGE,
        "scheduling_instance_usage",
        "start_time, collection_id, instance_index, incarnation",
        "start_time",
        _USAGE,
        user=_TEXT,
    ),
    ENDED: _table(ENDED, "scheduling_job", "", "collection_id", _JOBS, user=_TEXT),
    SPECS: _table(SPECS, "scheduling_jobspec", "", "id", {"id": ("id", _I64), **_JOBS}, user=_TEXT),
}


def rows_of(cell_id: int, wanted: DayRange) -> Iterator[pa.Table]:
    """Yield the rows of a range from PostgreSQL in their order, as tables with the schema of the archive. Raises
    `ValueError` if a row was lost on the way.
    """
    table = ARCHIVE_TABLES[wanted.table]
    return copied(table, (_statement(cell_id, table, first, last) for first, last in _parts(wanted)))


def copied(
    table: ArchiveTable, statements: Iterable[str], *, rows_per_group: int = ROWS_PER_GROUP
) -> Iterator[pa.Table]:
    """Yield the rows that COPY statements return, as tables of at most `rows_per_group` rows with the schema of
    `table`. Raises `ValueError` if a row was lost on the way.
    """
    with closing(_Tenants()) as tenants:
        for statement in statements:
            for rows, text in _chunks(statement, rows_per_group):
                found = _parsed(table, text)
                if found.num_rows != rows:
                    raise ValueError(
                        f"PostgreSQL sent {rows} rows of {table.table}, and {found.num_rows} could be read"
                    )
                yield _completed(table, found, tenants)


def _statement(cell_id: int, table: ArchiveTable, first: int, last: int) -> str:
    condition = (
        f"revision BETWEEN {first} AND {last}"
        if table.name == EVENTS
        else f"start_time >= to_timestamp({first}) AND start_time < to_timestamp({last + 1})"
    )
    return (
        f"COPY (SELECT {', '.join(table.sources.values())} FROM {table.table} WHERE cell_id = {cell_id}"
        f" AND {condition} ORDER BY {table.order}) TO STDOUT (FORMAT csv)"
    )


def _parts(wanted: DayRange) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that are read with one statement each. Usage is sorted per hour, events are sorted."""
    if wanted.table == EVENTS:
        yield wanted.first, wanted.last
    else:
        for first in range(wanted.first, wanted.last, _HOUR_S):
            yield first, first + _HOUR_S - 1


def _chunks(statement: str, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield at most `most` rows as CSV, with their number. PostgreSQL sends one message per row."""
    many: list[Buffer] = []
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in copy:
            many.append(row)
            if len(many) == most:
                yield len(many), b"".join(many)
                many = []
    if many:
        yield len(many), b"".join(many)


def _parsed(table: ArchiveTable, text: bytes) -> pa.Table:
    types = {name: _TEXT if table.types[name] == _FLOATS else table.types[name] for name in table.sources}
    return csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(table.sources)),
        csv.ParseOptions(newlines_in_values=True),
        csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    ).combine_chunks()


class _Tenants:
    """The names of tenants by job id. They are read over a connection of their own, because the rows that are read
    meanwhile occupy the other one.
    """

    def __init__(self) -> None:
        self._connection = connection.copy()
        self._names: dict[int, str | None] = {}

    def of_jobs(self, jobs: pa.Array) -> pa.Array:
        """Return the tenant of each job; null for null and for jobs that no longer exist."""
        if unknown := [job for job in pc.unique(jobs).to_pylist() if job is not None and job not in self._names]:
            self._names |= dict.fromkeys(unknown)
            with self._connection.cursor() as cursor:
                cursor.execute(
                    "SELECT j.id, t.name FROM scheduling_job AS j JOIN quota_tenant AS t ON t.id = j.tenant_id"
                    " WHERE j.id = ANY(%s)",
                    [unknown],
                )
                self._names |= dict(cursor.fetchall())
        names = pa.array(self._names.values(), _TEXT)
        return names.take(pc.index_in(jobs, value_set=pa.array(self._names.keys(), _I64)))

    def close(self) -> None:
        self._connection.close()


def _completed(table: ArchiveTable, found: pa.Table, tenants: _Tenants) -> pa.Table:
    """Return the rows with the derived columns."""
    columns = {name: found[name] for name in found.column_names}
    for name, kind in table.types.items():
        if kind == _FLOATS:
            parts = pc.split_pattern(pc.utf8_trim(found[name].combine_chunks(), "{}"), ",")
            columns[name] = pa.ListArray.from_arrays(parts.offsets, parts.values.cast(pa.float32()))
    if "time_us" in table.types:
        columns["time_us"] = found["time"].cast(_I64)
    columns["user"] = tenants.of_jobs(found["collection_id"].combine_chunks())
    return pa.table([columns[name] for name in table.types], schema=table.schema)
