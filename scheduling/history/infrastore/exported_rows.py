"""Exports the rows that are only in PostgreSQL, for the process that runs a query.

tables of the query ─► manifest of the archive: which rows are not in it
                    └► COPY … TO a CSV file, only columns that the query names, only rows that the caller may see
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from django.db import connection
from msgspec import structs

from quota.models.metered_hours import held
from quota.vocabulary.errors import Rejected
from scheduling.history.archive.store import EVENTS, METERED
from scheduling.history.infrastore.archive_files import Manifest
from scheduling.history.infrastore.columns import DERIVED, TABLES, TIME
from scheduling.history.infrastore.process.protocol import TableSource
from scheduling.history.infrastore.pruning import begin_of, columns_of
from scheduling.history.infrastore.visible_rows import Visibility
from scheduling.models import Cell

# The most rows of PostgreSQL that one query may read per table. The archive has no such limit.
MOST_ROWS = 3_000_000


def export(
    folder: Path,
    cell: Cell,
    *,
    tables: Sequence[str],
    names: frozenset[str] | None,
    since: Mapping[str, dt.datetime],
    visible: Visibility,
) -> tuple[Manifest, dict[str, TableSource], str]:
    """Write the rows of each table to `folder`. Return the manifest of the archive that complements these rows, the
    source of each table without files of the archive, and the file of the facts of jobs, or "" if no table needs it.

    `names`: the names in the query; columns with other names are not exported. `since`: the times before which the
    query reads no row. No metered hour moves to the archive between the manifest and the export of metered hours.
    Raises `Rejected` if PostgreSQL has more than `MOST_ROWS` rows of a table.
    """
    found = {
        name: TableSource(columns=columns_of(name, names), users=visible.users_of(name), since=begin_of(name, since))
        for name in tables
    }

    def write(name: str, manifest: Manifest) -> None:
        rows = folder / f"{name}.csv"
        _write(rows, name, cell, found[name], visible=visible, manifest=manifest)
        if rows.stat().st_size:
            found[name] = structs.replace(found[name], rows=str(rows))

    with held() if METERED in tables else nullcontext():
        manifest = Manifest(cell, tables)
        if METERED in tables:
            write(METERED, manifest)
    for name in tables:
        if name != METERED:
            write(name, manifest)
    needs_facts = any(
        found[name].rows or manifest.underived(name, since=found[name].since) for name in tables if name in DERIVED
    )
    facts = folder / "facts.csv"
    if needs_facts:
        begins = [since.get(name) for name in tables if name in DERIVED]
        known = [begin.replace(tzinfo=dt.UTC) for begin in begins if begin is not None]
        # Archived jobs that ended before all these times have no events that the query reads.
        oldest = min(known) if len(known) == len(begins) else None
        _copy(facts, _FACTS, {"cell": cell.id, "users": _names(visible.users), "since": oldest}, "jobs")
    return manifest, found, str(facts) if needs_facts and facts.stat().st_size else ""


def _write(path: Path, name: str, cell: Cell, source: TableSource, *, visible: Visibility, manifest: Manifest) -> None:
    """Write the rows of a table that are only in PostgreSQL to a CSV file."""
    after = manifest.until(EVENTS)
    if name in DERIVED:
        _events(path, cell, kinds=list(DERIVED[name]), since=source.since, visible=visible, after=after)
    elif name == "events":
        _events(path, cell, kinds=None, since=source.since, visible=visible, after=after, columns=source.columns)
    else:
        until = manifest.usage_until
        _plain(path, name, cell, source.columns, since=source.since, visible=visible, usage_until=until)


def _names(users: tuple[str, ...] | None) -> list[str] | None:
    return None if users is None else list(users)


def _events(
    path: Path,
    cell: Cell,
    *,
    kinds: list[str] | None,
    since: dt.datetime | None,
    visible: Visibility,
    after: int,
    columns: Sequence[str] | None = None,
) -> None:
    selected = [_EVENT_COLUMNS[name] for name in columns or _EVENT_COLUMNS]
    values = {
        "cell": cell.id,
        "after": after,
        "kinds": kinds,
        "since": since and since.replace(tzinfo=dt.UTC),
        "users": _names(visible.users),
    }
    _copy(path, _EVENTS.format(columns=", ".join(selected)), values, "events")


def _plain(
    path: Path,
    name: str,
    cell: Cell,
    wanted: Sequence[str],
    *,
    since: dt.datetime | None,
    visible: Visibility,
    usage_until: dt.datetime | None,
) -> None:
    begins = [moment.replace(tzinfo=dt.UTC) for moment in (since,) if moment]
    if name == "instance_usage" and usage_until:
        begins.append(usage_until)
    values = {
        "cell": cell.id,
        "cell_name": cell.recorded_name,
        "since": max(begins, default=None),
        "users": _names(visible.users_of(name)),
    }
    given, source = _SOURCES[name]
    times = {column.name for column in TABLES[name].columns if column.type == TIME}
    selected = [given.get(one, f"x.{one}") for one in wanted]
    selected = [
        f"({sql} AT TIME ZONE 'UTC')" if one in times else sql for one, sql in zip(wanted, selected, strict=True)
    ]
    _copy(path, f"SELECT {', '.join(selected)} {source}", values, name)


def _copy(path: Path, statement: str, values: Mapping[str, Any], name: str) -> None:
    """Write the rows of a SELECT to a CSV file."""
    limited = f"COPY ({statement} LIMIT {MOST_ROWS + 1}) TO STDOUT (FORMAT csv)"
    with path.open("wb") as file, connection.cursor() as cursor:
        with cursor.copy(limited, values) as copy:
            for data in copy:
                file.write(data)
        rows = cursor.rowcount
    if rows > MOST_ROWS:
        detail = (
            f"the query reads more than {MOST_ROWS:,} rows of {name} that are not archived yet; limit the time, for"
            " example with time >= :since"
        )
        raise Rejected("query-too-large", detail)


_EVENT_COLUMNS = {
    "revision": "e.revision",
    "seq": "e.seq",
    "time": "(e.time AT TIME ZONE 'UTC')",
    "time_us": "(extract(epoch FROM e.time) * 1000000)::bigint",
    "kind": "e.kind",
    "collection_id": "e.job_id",
    "instance_index": "e.task_index",
    "machine_id": "e.machine_id",
    "user": "COALESCE(t.name, e.data ->> 'tenant')",
    "actor": "e.actor",
    "request_id": "e.request_id",
    "caused_by_revision": "e.caused_by_revision",
    "caused_by_seq": "e.caused_by_seq",
    "data": "e.data::text",
}
# Reservations of tasks of several tenants are in one event. The child process leaves out those of other tenants.
_EVENTS = """
    SELECT {columns} FROM scheduling_event AS e
    LEFT JOIN scheduling_job AS j ON j.id = e.job_id LEFT JOIN quota_tenant AS t ON t.id = j.tenant_id
    WHERE e.cell_id = %(cell)s AND e.revision > %(after)s
    AND (%(kinds)s::text[] IS NULL OR e.kind = ANY(%(kinds)s))
    AND (%(since)s::timestamptz IS NULL OR e.time >= %(since)s)
    AND (%(users)s::text[] IS NULL OR COALESCE(t.name, e.data ->> 'tenant') = ANY(%(users)s)
        OR (e.job_id IS NULL AND e.kind LIKE 'machine.%%')
        OR (e.kind = 'reservations.set' AND %(kinds)s::text[] IS NOT NULL))
    ORDER BY e.revision, e.seq"""
_FACTS = """
    SELECT j.id, t.name, j.name, j.kind, j.priority, j.latency_sensitive, j.alloc_set_id
    FROM (
        SELECT id, cell_id, tenant_id, name, kind, priority, latency_sensitive, alloc_set_id FROM scheduling_job
        UNION ALL
        SELECT id, cell_id, tenant_id, name, kind, priority, latency_sensitive, alloc_set_id
        FROM scheduling_archivedjob AS a
        WHERE (%(since)s::timestamptz IS NULL OR ended_at >= %(since)s)
        AND NOT EXISTS (SELECT FROM scheduling_job AS j WHERE j.id = a.id)
    ) AS j JOIN quota_tenant AS t ON t.id = j.tenant_id
    WHERE j.cell_id = %(cell)s AND (%(users)s::text[] IS NULL OR t.name = ANY(%(users)s))"""
_OWN = "(%(users)s::text[] IS NULL OR t.name = ANY(%(users)s))"
_SINCE = "(%(since)s::timestamptz IS NULL OR x.{} >= %(since)s)"
_CORES, _CORE_HOURS, _HOUR_S = "1000.0", "3600000.0", "3600.0"

# For each other table: how its columns are computed if they are not columns of the row `x`, and where the rows are.
_SOURCES: dict[str, tuple[dict[str, str], str]] = {
    "jobs": (
        {
            "collection_id": "x.id",
            "user": "t.name",
            "collection_name": "x.name",
            "collection_type": "x.kind",
            "alloc_collection_id": "x.alloc_set_id",
            "scheduling_class": "CASE WHEN x.latency_sensitive THEN 3 ELSE 0 END",
            "tasks": "x.tasks_total",
            "requested_cpus": f"x.requested[1] / {_CORES}",
            "requested_memory": "x.requested[2]",
        },
        f"FROM scheduling_job AS x JOIN quota_tenant AS t ON t.id = x.tenant_id WHERE x.cell_id = %(cell)s AND {_OWN}",
    ),
    "machines": (
        {
            "machine_id": "x.id",
            "user": "NULL",
            "machine_name": "x.hostname",
            "switch_id": "x.rack",
            "platform_id": "x.platform",
            "capacity_cpus": f"x.capacity[1] / {_CORES}",
            "capacity_memory": "x.capacity[2]",
        },
        "FROM scheduling_machine AS x WHERE x.cell_id = %(cell)s",
    ),
    "instance_usage": (
        {
            "user": "t.name",
            "cpu_usage_distribution": "array_to_json(x.cpu_usage_distribution)",
            "tail_cpu_usage_distribution": "array_to_json(x.tail_cpu_usage_distribution)",
        },
        "FROM scheduling_instance_usage AS x JOIN scheduling_job AS j ON j.id = x.collection_id"
        " JOIN quota_tenant AS t ON t.id = j.tenant_id"
        f" WHERE x.cell_id = %(cell)s AND {_OWN} AND {_SINCE.format('start_time')}",
    ),
    "metered_hours": (
        {
            "time": "x.hour",
            "user": "t.name",
            "collection_name": "x.job",
            "band": "COALESCE(b.name, 'free')",
            **{
                f"{name}_{resource}_hours": f"x.{column}[{place}] / {divisor}"
                for name, column in (("limit", '"limit"'), ("reserved", "reserved"), ("used", "used"))
                for resource, place, divisor in (("cpu", 1, _CORE_HOURS), ("memory", 2, _HOUR_S))
            },
            "price_microcredits": "x.price",
        },
        "FROM quota_meteredhour AS x JOIN quota_tenant AS t ON t.id = x.tenant_id"
        " LEFT JOIN quota_priorityband AS b ON b.id = x.band_id"
        f" WHERE x.cell = %(cell_name)s AND {_OWN} AND {_SINCE.format('hour')}",
    ),
    "orders": (
        {
            "time": "x.created_at",
            "user": "t.name",
            "order_id": "x.id",
            "band": "b.name",
            "amount_cpus": f"x.amounts[1] / {_CORES}",
            "amount_memory": "x.amounts[2]",
            "hours": f"extract(epoch FROM x.ends_at - x.starts_at) / {_HOUR_S}",
            "price_microcredits": "x.price",
            "refunded_microcredits": "x.refunded",
            "replaces": "x.replaces_id",
        },
        "FROM quota_order AS x JOIN quota_tenant AS t ON t.id = x.tenant_id"
        " JOIN quota_priorityband AS b ON b.id = x.band_id"
        f" WHERE x.cell = %(cell_name)s AND x.state <> 'draft' AND {_OWN} AND {_SINCE.format('created_at')}",
    ),
    "capacity_samples": (
        {
            "time": "x.hour",
            "user": "NULL",
            **{
                f"{name}_{resource}": f"x.{column}[{place}]{divisor}"
                for name, column in (
                    ("capacity", "capacity"),
                    ("limit", '"limit"'),
                    ("reserved", "reserved"),
                    ("used", "used"),
                )
                for resource, place, divisor in (("cpus", 1, f" / {_CORES}"), ("memory", 2, ""))
            },
        },
        "FROM scheduling_capacitysample AS x"
        f" WHERE x.cell_id = %(cell)s AND %(users)s::text[] IS NULL AND {_SINCE.format('hour')}",
    ),
}
