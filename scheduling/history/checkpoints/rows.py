"""Reads the sections of a checkpoint from the rows of a cell, with about ten statements for any number of tasks.

    rows ── one array per column ──► arrays ──► {section: table} ──► file, or `tables.state_of`

`scheduling.master.snapshot` reads the same rows as events, for readers that follow events. Tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np
import psycopg
from django.db import connection, transaction
from numpy.typing import NDArray
from psycopg.pq.abc import PGresult

from quota.vocabulary.resources import SIZE
from scheduling.core.cell.tasks import DEAD, PENDING, RUNNING
from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Requirement, padded
from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.specs import SpecRequirements, specs_of
from scheduling.history.checkpoints.tables import Tables, pools_table, schema, state_of, windows_table
from scheduling.journal.row_events import maintenance_event, pool_event
from scheduling.journal.sql import execute, query
from scheduling.models import MaintenanceWindow, Pool

if TYPE_CHECKING:
    import pyarrow

_NUMBERS = (
    ("id", "id"),
    ("state", f"CASE state WHEN 'pending' THEN {PENDING} WHEN 'running' THEN {RUNNING} ELSE {DEAD} END"),
    ("machine_id", "coalesce(machine_id, 0)"),
    ("incarnation", "incarnation"),
    ("alloc", "coalesce(alloc_id, 0)"),
    ("spec_version", "spec_version"),
    ("since_us", "extract(epoch FROM since) * 1000000"),
    ("up", "CASE WHEN up AND state = 'running' THEN 1 ELSE 0 END"),
    ("ports", "cardinality(ports)"),
    ("port", "coalesce(ports[1], 0)"),
    ("devices", "cardinality(devices)"),
)
# An array of PostgreSQL in binary format: the bytes before the first element, and each element that is not null.
_HEADER, _ELEMENT = 20, np.dtype([("length", ">i4"), ("value", ">i8")])


class _Requested(NamedTuple):
    """The requirements of tasks. `all`: the different requirements, sorted. `number`: for each task, the position of
    its requirement in `all`.
    """

    all: list[Requirement]
    number: NDArray[np.int32]


def read_cell(cell_id: int) -> tuple[Header, Tables]:
    """Return the header and the tables of a cell at its present revision. Reads one repeatable-read snapshot and takes
    no lock, so no writer waits. Raises `LookupError` if there is no such cell.
    """
    with transaction.atomic():
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return read_here(cell_id)


def read_here(cell_id: int) -> tuple[Header, Tables]:
    """Return the header and the tables of a cell, read in the present transaction. The caller must make sure that the
    rows do not change between the statements; `read_cell` uses a snapshot for this.
    """
    with collection_paused():
        header = header_of(cell_id)
        tables = {"machines": _machines(cell_id), "packages": _packages(cell_id), "windows": _windows(cell_id)}
        tables["pools"] = pools_table(map(pool_event, Pool.objects.filter(cell_id=cell_id).order_by("name")))
        tables["jobs"] = _jobs(cell_id)
        ids = tables["jobs"]["job_id"].to_pylist()
        tables["specs"] = specs = specs_of(ids)
        tables |= _tasks(cell_id, ids, SpecRequirements(specs, header.extra_resources))
        tables["departures"] = _departures(cell_id)
        tables["crashes"] = _crashes(cell_id)
        tables["updates"] = _updates(cell_id)
    return header, tables


def load_recorded(cell_id: int) -> RecordedState:
    """Return the state of a cell, read from its rows. Faster than `scheduling.master.snapshot.load_state`."""
    header, tables = read_cell(cell_id)
    return state_of(tables, extra_resources=header.extra_resources, revision=header.revision)


def header_of(cell_id: int) -> Header:
    """Return the header, without sections, of a checkpoint of the cell at its present revision. Raises `LookupError`
    if there is no such cell.
    """
    rows = query(
        "SELECT coalesce(nullif(deleted_name, ''), name), revision, extract(epoch FROM clock_timestamp())::float8,"
        " history_id::text, extra_resources, settings::text FROM scheduling_cell WHERE id = %s",
        [cell_id],
    )
    if not rows:
        raise LookupError(f"there is no cell with id {cell_id}; it may have been deleted")
    name, revision, taken_at, history, extra, settings = rows[0]
    return Header(
        cell=name,
        revision=revision,
        taken_at=taken_at,
        history=history,
        extra_resources=tuple(extra),
        settings=msgspec.json.decode(settings),
    )


def _machines(cell_id: int) -> pyarrow.Table:
    rows = query(
        "SELECT id, hostname, host(address), capacity, attributes::text, platform, rack, power_domain, port_low,"
        " port_high, state, kept FROM scheduling_machine WHERE cell_id = %s AND state <> 'removed' ORDER BY id",
        [cell_id],
    )
    # Kept allocs hold a part of the capacity (`scheduling.journal.row_events`).
    kept = [(place, row[3], row[11]) for place, row in enumerate(rows) if any(row[11])]
    columns = list(zip(*(row[:11] for row in rows), strict=True)) or [()] * 11
    capacities = list(columns[3])
    for place, capacity, held in kept:
        full = [*held, *[0] * (len(capacity) - len(held))]
        capacities[place] = [max(0, has - part) for has, part in zip(capacity, full, strict=False)]
    return _table("machines", [*columns[:3], capacities, *columns[4:]])


def _packages(cell_id: int) -> pyarrow.Table:
    rows = query(
        "SELECT p.digest, array_agg(m.id ORDER BY m.id) FROM scheduling_machine AS m, unnest(m.packages) AS p(digest)"
        " WHERE m.cell_id = %s AND m.state <> 'removed' GROUP BY 1 ORDER BY 1",
        [cell_id],
    )
    return _rows_table("packages", rows)


def _windows(cell_id: int) -> pyarrow.Table:
    rows = MaintenanceWindow.objects.filter(cell_id=cell_id, state__in=MaintenanceWindow.OPEN).order_by("id")
    return windows_table(maintenance_event(row) for row in rows)


def _jobs(cell_id: int) -> pyarrow.Table:
    """Return the live jobs, and ended jobs that still have incarnations on machines."""
    rows = query(
        "SELECT j.id, replace(j.uid::text, '-', ''), j.tenant_id, n.name, j.name, j.kind, j.priority,"
        " j.latency_sensitive, j.spec_version, j.labels::text, j.port_names, coalesce(j.alloc_set_id, 0), j.gang,"
        " j.disruption_budget, j.max_running, coalesce(extract(epoch FROM j.start_after), 0)::float8, j.waiting,"
        " coalesce(j.max_run_s, 0),"
        " coalesce(j.ends_within_s, 0),"
        " j.published::text,"
        " extract(epoch FROM j.created_at)::float8, j.state = 'dead'"
        " FROM scheduling_job AS j JOIN quota_tenant AS n ON n.id = j.tenant_id WHERE j.cell_id = %(cell)s"
        # by the index on the state, so that ended jobs are not read
        " AND j.id IN (SELECT id FROM scheduling_job WHERE cell_id = %(cell)s AND state IN ('pending', 'running')"
        " UNION ALL SELECT t.job_id FROM scheduling_departure AS d"
        " JOIN scheduling_task AS t ON t.id = d.task_id WHERE t.cell_id = %(cell)s) ORDER BY j.id",
        {"cell": cell_id},
    )
    return _rows_table("jobs", rows)


def _tasks(cell_id: int, job_ids: Sequence[int], requirements: SpecRequirements) -> Tables:
    import pyarrow as pa

    axis = SIZE + len(requirements.extra)
    reserved = [(f"r{r}", f"coalesce(reservation[{r + 1}], 0)") for r in range(axis)]
    rows = _numbers([*_NUMBERS, *reserved], f"scheduling_task WHERE job_id = ANY('{{{','.join(map(str, job_ids))}}}')")
    ids = rows["id"]
    requested = _requested(ids, rows["spec_version"], requirements)
    devices = np.zeros(len(ids), dtype=np.int64)
    special = ids[(rows["ports"] > 1) | (rows["devices"] > 0)].tolist()
    several: dict[int, list[int]] = {}
    if special:
        found = query("SELECT id, ports, devices FROM scheduling_task WHERE id = ANY(%s) ORDER BY id", [special])
        several = {identity: ports for identity, ports, _ in found if len(ports) > 1}
        devices[np.searchsorted(ids, special)] = [sum(1 << d for d in each) for _, _, each in found]
    table = pa.table(
        {
            "id": ids,
            "state": rows["state"].astype(np.int8),
            "requirement": requested.number,
            "machine_id": rows["machine_id"],
            "last": np.zeros(len(ids), dtype=np.int64),
            "incarnation": rows["incarnation"].astype(np.int32),
            "alloc": rows["alloc"],
            "devices": devices,
            "spec_version": rows["spec_version"].astype(np.int32),
            "since": rows["since_us"] / 1e6,
            "up": rows["up"] > 0,
            "ports": _ports(ids, rows, several),
        }
    )
    texts = [msgspec.json.encode(one).decode() for one in requested.all]
    reservation = np.stack([rows[f"r{r}"] for r in range(axis)], axis=1)
    limits = np.array([padded(one.limit, axis) for one in requested.all], dtype=np.int64).reshape(-1, axis)
    differing = rows["state"] == RUNNING
    if len(ids):
        differing &= (reservation != limits[requested.number]).any(axis=1)
    changed = {"id": ids[differing], **{f"r{r}": reservation[differing, r] for r in range(axis)}}
    return {
        "requirements": pa.table({"requirement": pa.array(texts, pa.string())}),
        "tasks": table,
        "reservations": pa.table(changed),
    }


def _requested(ids: NDArray[np.int64], version: NDArray[np.int64], specs: SpecRequirements) -> _Requested:
    """Return the requirements of tasks, which depend on the job, the version of its spec and the index."""
    number = np.zeros(len(ids), dtype=np.int32)
    known: dict[Requirement, int] = {}
    starts = np.flatnonzero(np.diff(ids >> INDEX_BITS, prepend=-1) | np.diff(version, prepend=-1))
    for begin, end in zip(starts.tolist(), [*starts.tolist()[1:], len(ids)], strict=False):
        firsts, wanted = specs.of(int(ids[begin]) >> INDEX_BITS, int(version[begin]))
        numbers = np.array([known.setdefault(one, len(known)) for one in wanted], dtype=np.int32)
        if len(numbers) == 1:
            number[begin:end] = numbers[0]
        else:
            index = ids[begin:end] & (MAX_TASKS - 1)
            number[begin:end] = numbers[np.searchsorted(firsts, index, side="right") - 1]
    everything = list(known)
    # In the order of their text, as in `tables_of`: equal states give equal tables.
    used = np.flatnonzero(np.bincount(number, minlength=len(everything))) if len(ids) else np.zeros(0, np.int64)
    order = sorted(used.tolist(), key=lambda place: msgspec.json.encode(everything[place]).decode())
    place = np.zeros(len(everything), dtype=np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return _Requested([everything[one] for one in order], place[number] if len(ids) else number)


def _ports(ids: NDArray[np.int64], rows: NDArray[Any], several: dict[int, list[int]]) -> pyarrow.Array:
    import pyarrow as pa

    lengths = rows["ports"].astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    values = np.zeros(int(offsets[-1]), dtype=np.int32)
    one = lengths == 1
    values[offsets[:-1][one]] = rows["port"][one]
    for place, ports in zip(np.searchsorted(ids, list(several)).tolist(), several.values(), strict=True):
        values[offsets[place] : offsets[place + 1]] = ports
    return pa.ListArray.from_arrays(offsets, values)


def _departures(cell_id: int) -> pyarrow.Table:
    rows = query(
        "SELECT d.task_id, d.incarnation, d.machine_id, d.ports FROM scheduling_departure AS d"
        " JOIN scheduling_task AS t ON t.id = d.task_id JOIN scheduling_machine AS m ON m.id = d.machine_id"
        " WHERE t.cell_id = %s AND m.state <> 'removed' ORDER BY d.task_id, d.incarnation",
        [cell_id],
    )
    return _rows_table("departures", rows)


def _crashes(cell_id: int) -> pyarrow.Table:
    rows = query(
        "SELECT p.task_id, p.machine_id, extract(epoch FROM p.at)::float8 FROM scheduling_crashedpair AS p"
        " JOIN scheduling_task AS t ON t.id = p.task_id JOIN scheduling_job AS j ON j.id = t.job_id"
        " JOIN scheduling_machine AS m ON m.id = p.machine_id"
        " WHERE t.cell_id = %s AND j.state <> 'dead' AND m.state <> 'removed' ORDER BY p.task_id, p.id",
        [cell_id],
    )
    return _rows_table("crashes", rows)


def _updates(cell_id: int) -> pyarrow.Table:
    rows = query(
        "SELECT u.job_id, u.id, u.from_version, u.to_version, u.max_down, u.undo,"
        " extract(epoch FROM u.created_at)::float8 FROM scheduling_update AS u JOIN scheduling_job AS j"
        " ON j.id = u.job_id WHERE j.cell_id = %s AND u.state = 'open' ORDER BY u.job_id",
        [cell_id],
    )
    return _rows_table("updates", rows)


def _numbers(columns: Sequence[tuple[str, str]], source: str) -> NDArray[Any]:
    """Return an array with one field per column, sorted by the first column. `columns`: name, and SQL expression of a
    number that is never null.

    PostgreSQL sends each column as one value, an array in binary format, which numpy reads in place. COPY is slower,
    because psycopg handles each row of it in Python.
    """
    named = ", ".join(f"({expression})::bigint AS {name}" for name, expression in columns)
    arrays = ", ".join(f"array_agg({name})" for name, _ in columns)
    with connection.cursor() as cursor, psycopg.Cursor(cursor.connection) as binary:
        binary.execute(f"SELECT {arrays} FROM (SELECT {named} FROM {source}) AS rows", binary=True)
        result = cast(PGresult, binary.pgresult)
        values = [result.get_value(0, place) or b"" for place in range(len(columns))]
    number = max(0, len(values[0]) - _HEADER) // _ELEMENT.itemsize  # without rows, each value is null
    rows = np.empty(number, dtype=[(name, np.int64) for name, _ in columns])
    if not number:
        return rows
    for (name, _), value in zip(columns, values, strict=True):
        if len(value) != _HEADER + number * _ELEMENT.itemsize:
            raise RuntimeError(f"PostgreSQL sent a null in column {name}; report this as a bug")
        rows[name] = np.frombuffer(value, _ELEMENT, number, _HEADER)["value"]
    return rows[np.argsort(rows[columns[0][0]])]


def _rows_table(section: str, rows: list[tuple[Any, ...]]) -> pyarrow.Table:
    width = len(schema(section))
    return _table(section, list(zip(*rows, strict=True)) or [()] * width)


def _table(section: str, columns: Sequence[Sequence[Any]]) -> pyarrow.Table:
    import pyarrow

    named = schema(section)
    arrays = [pyarrow.array(values, kind.type) for values, kind in zip(columns, named, strict=True)]
    return pyarrow.table(arrays, schema=named)
