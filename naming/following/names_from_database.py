"""Reads the names of a cell from the database when a resolver starts. The result is a list of events for an empty
`NameTable`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
from django.db import transaction

from naming.following.news import NamesSnapshot, ZoneFacts
from naming.following.snapshot_format import JobKept, job_events, task_events
from naming.table.table import NAMING_KINDS, serial_start
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, Job, Machine, ServiceWeighting
from scheduling.models import Task as TaskRow
from scheduling.models.machines import REMOVED


def cell_facts() -> list[ZoneFacts]:
    """Return the `ZoneFacts` of all cells, ordered by cell id."""
    rows = Cell.operated.order_by("id").values_list(
        "id", "name", "revision", "history_ordinal", "history_id", "created_at"
    )
    return [
        ZoneFacts(*facts, history_id.hex, serial_start(made.timestamp()))  # type: ignore[arg-type, call-arg]
        for *facts, history_id, made in rows
    ]


def snapshot(cell_id: int) -> NamesSnapshot:
    """Return all names of a cell. All returned names belong to the same revision. Raises `LookupError` for an unknown
    cell.
    """
    with transaction.atomic(durable=True):
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        facts = Cell.objects.filter(pk=cell_id).values_list("revision", "history_ordinal", "history_id").first()
        if facts is None:
            raise LookupError(f"there is no cell with id {cell_id}; it may have been deleted")
        revision, ordinal, history_id = facts
        made: list[Event] = [*_machines(cell_id), *_weights(cell_id), *_jobs(cell_id), *_placed(cell_id)]
        newest = query(
            "SELECT revision FROM scheduling_event WHERE cell_id = %s AND kind = ANY(%s)"
            " ORDER BY revision DESC LIMIT 1",
            [cell_id, list(NAMING_KINDS)],
        )
        return NamesSnapshot(revision, newest[0][0] if newest else revision, ordinal, made, history_id.hex)


def _machines(cell_id: int) -> Iterable[Event]:
    rows = Machine.objects.filter(cell_id=cell_id).exclude(state=REMOVED).order_by()
    for identity, hostname, address in rows.values_list("id", "hostname", "address").iterator():
        yield events.MachineSet(machine_id=identity, hostname=hostname, address=address, capacity=())


def _weights(cell_id: int) -> Iterable[Event]:
    rows = ServiceWeighting.objects.filter(cell_id=cell_id).order_by("id")
    for tenant, service, weights in rows.values_list("tenant__name", "service", "weights"):
        yield events.ServiceWeighed(service=service, tenant=tenant, change="", weights=weights)


def _jobs(cell_id: int) -> Iterable[Event]:
    """Yield the events that submit all live jobs and set the port names of their spec versions."""
    older = older_port_names(cell_id)
    ranges = _index_ranges(cell_id)
    for job in Job.objects.filter(cell_id=cell_id).exclude(state=JobState.DEAD.value).select_related("tenant"):
        published = msgspec.convert(job.published, Published)
        yield from job_events(
            JobKept(
                job.id,
                job.tenant.name,
                job.name,
                job.labels,
                [*older.get(job.id, []), (job.spec_version, tuple(job.port_names))],
                ranges.get(job.id, []),
                revision=0,
                kind=job.kind,
                ttl_s=published.ttl_s,
                weights=published.weights,
            )
        )


def _index_ranges(cell_id: int) -> dict[int, list[tuple[int, int]]]:
    """Return, by job id, the task indexes of each job as ranges (first index, last index)."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for job_id, first, last in query(
        "SELECT job_id, min(index), max(index) FROM ("
        "  SELECT t.job_id, t.index, t.index - row_number() OVER (PARTITION BY t.job_id ORDER BY t.index) AS run"
        "  FROM scheduling_task t JOIN scheduling_job j ON j.id = t.job_id"
        "  WHERE t.cell_id = %s AND j.state <> %s) AS runs"
        " GROUP BY job_id, run ORDER BY job_id, min(index)",
        [cell_id, JobState.DEAD.value],
    ):
        ranges.setdefault(job_id, []).append((first, last))
    return ranges


def older_port_names(cell_id: int, job_id: int | None = None) -> dict[int, list[tuple[int, tuple[str, ...]]]]:
    """Return, by job id, each spec version of the job and its port names. Only jobs that have placed tasks with an
    older spec version are included.

    If `job_id` is given, only this job is read.
    """
    found: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
    for job, version, names in query(
        "SELECT job_id, version, (spec->'task'->'ports')::text FROM scheduling_jobspec WHERE job_id IN ("
        "  SELECT t.job_id FROM scheduling_task t JOIN scheduling_job j ON j.id = t.job_id"
        "  WHERE t.cell_id = %s AND t.state = 'running' AND t.spec_version <> j.spec_version"
        "  AND t.job_id = coalesce(%s, t.job_id))"
        " ORDER BY job_id, version",
        [cell_id, job_id],
    ):
        found.setdefault(job, []).append((version, tuple(json.loads(names or "[]"))))
    return found


def _placed(cell_id: int) -> Iterable[Event]:
    rows = TaskRow.objects.filter(cell_id=cell_id, state=TaskState.RUNNING.value).order_by()
    found = rows.values_list(
        "job_id", "index", "incarnation", "machine_id", "spec_version", "ports", "phase", "health", "up", "address"
    )
    for facts in found.iterator(chunk_size=5_000):
        yield from task_events(*facts)
