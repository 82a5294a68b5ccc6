"""Reads of rows about names: what a resolver starts from, and what `/bns/` answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from naming.feeds import Endpoint, Service
from naming.names import JobName, TaskName
from naming.news import CellFacts, Snapshot
from naming.table import NAMING_KINDS
from quota.errors import NotFound, Refused
from quota.permissions import Action, CapabilityKind, Principal, may
from quota.selectors import tenants_visible
from scheduling.core import events
from scheduling.core.events import Event
from scheduling.core.requirement import Group, Requirement
from scheduling.core.states import JobState, TaskState
from scheduling.models import Cell, Job, Machine
from scheduling.models import Task as TaskRow
from scheduling.models.machines import REMOVED

MOST_ENDPOINTS = 100_000  # of one answer
_NO_REQUIREMENT = Requirement(limit=())  # names don't ask what a task needs


def cell_facts() -> list[CellFacts]:
    rows = Cell.objects.order_by("id").values_list("id", "name", "revision", "history_ordinal")
    return [CellFacts(*row) for row in rows]


def snapshot(cell_id: int) -> Snapshot:
    """All names of a cell, from one consistent view of its rows. Raises `LookupError` for an unknown cell."""
    with transaction.atomic(durable=True):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        facts = Cell.objects.filter(pk=cell_id).values_list("revision", "history_ordinal").first()
        if facts is None:
            raise LookupError(f"no cell with id {cell_id}")
        revision, ordinal = facts
        made: list[Event] = [*_machines(cell_id), *_jobs(cell_id), *_placed(cell_id)]
        return Snapshot(revision, _names_revision(cell_id) or revision, ordinal, made)


def _names_revision(cell_id: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT revision FROM scheduling_event WHERE cell_id = %s AND kind = ANY(%s)"
            " ORDER BY revision DESC LIMIT 1",
            [cell_id, list(NAMING_KINDS)],
        )
        row = cursor.fetchone()
    return 0 if row is None else row[0]


def _machines(cell_id: int) -> Iterable[Event]:
    rows = Machine.objects.filter(cell_id=cell_id).exclude(state=REMOVED).order_by()
    for identity, hostname, address in rows.values_list("id", "hostname", "address").iterator():
        yield events.MachineSet(machine_id=identity, hostname=hostname, address=address, capacity=())


def _jobs(cell_id: int) -> Iterable[Event]:
    """Each live job with the names of its ports in every version that a placed task still follows."""
    older = _older_port_names(cell_id)
    ranges = _index_ranges(cell_id)
    for job in (
        Job.objects.filter(cell_id=cell_id).exclude(state=JobState.DEAD.value).select_related("tenant")
    ):
        facts: dict[str, Any] = {
            "job_id": job.id,
            "priority": job.priority,
            "latency_sensitive": job.latency_sensitive,
            "labels": job.labels,
        }
        known = [*older.get(job.id, []), (job.spec_version, tuple(job.port_names))]
        first_version, first_names = known[0]
        yield events.JobSubmitted(
            **facts,
            uid=job.uid.hex,
            tenant_id=job.tenant_id,
            tenant=job.tenant.name,
            name=job.name,
            job_kind=job.kind,
            spec_version=first_version,
            groups=(Group(_NO_REQUIREMENT, tuple(ranges.get(job.id, ()))),),
            port_names=first_names,
        )
        for version, names in known[1:]:
            yield events.JobChanged(**facts, spec_version=version, port_names=names)


def _index_ranges(cell_id: int) -> dict[int, list[tuple[int, int]]]:
    """Runs of consecutive indexes, found where index minus row number stays the same."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job_id, min(index), max(index) FROM ("
            "  SELECT t.job_id, t.index, t.index - row_number() OVER (PARTITION BY t.job_id ORDER BY t.index) AS run"
            "  FROM scheduling_task t JOIN scheduling_job j ON j.id = t.job_id"
            "  WHERE t.cell_id = %s AND j.state <> %s) AS runs"
            " GROUP BY job_id, run ORDER BY job_id, min(index)",
            [cell_id, JobState.DEAD.value],
        )
        ranges: dict[int, list[tuple[int, int]]] = {}
        for job_id, first, last in cursor.fetchall():
            ranges.setdefault(job_id, []).append((first, last))
    return ranges


def _older_port_names(
    cell_id: int, job_id: int | None = None
) -> dict[int, list[tuple[int, tuple[str, ...]]]]:
    """Ports as older versions named them, for jobs with placed tasks of such a version: an update under way."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT job_id, (data->>'spec_version')::integer, (data->'port_names')::text FROM scheduling_event"
            " WHERE cell_id = %s AND kind IN ('job.submitted', 'job.changed') AND job_id IN ("
            "  SELECT t.job_id FROM scheduling_task t JOIN scheduling_job j ON j.id = t.job_id"
            "  WHERE t.cell_id = %s AND t.state = 'running' AND t.spec_version <> j.spec_version"
            "  AND t.job_id = coalesce(%s, t.job_id))"
            " ORDER BY job_id, revision, seq",
            [cell_id, cell_id, job_id],
        )
        found: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
        for job, version, names in cursor.fetchall():
            found.setdefault(job, []).append((version, tuple(json.loads(names or "[]"))))
    return found


def _placed(cell_id: int) -> Iterable[Event]:
    rows = TaskRow.objects.filter(cell_id=cell_id, state=TaskState.RUNNING.value).order_by()
    fields = (
        "job_id",
        "index",
        "machine_id",
        "incarnation",
        "ports",
        "spec_version",
        "phase",
        "health",
        "up",
        "restarts",
        "address",
    )
    for (
        job_id,
        index,
        machine_id,
        incarnation,
        ports,
        version,
        phase,
        health,
        up,
        restarts,
        address,
    ) in rows.values_list(*fields).iterator(chunk_size=5_000):
        ids = {"job_id": job_id, "index": index, "machine_id": machine_id, "incarnation": incarnation}
        yield events.TaskPlaced(**ids, ports=tuple(ports), spec_version=version)
        yield events.TaskReported(
            **ids, phase=phase, health=health or "unknown", up=up, restarts=restarts, address=address
        )


@dataclass(frozen=True, slots=True)
class TaskEndpoint:
    """Where one task is. `machine` and `address` are empty while it is not placed."""

    name: str
    dns: str
    index: int
    state: str
    phase: str
    health: str
    serving: bool
    machine: str
    address: str
    ports: dict[str, int]
    revision: int


@dataclass(frozen=True, slots=True)
class JobEndpoints:
    """Where a job's placed tasks are. `fail_open`: none serves, so clients are given all of them."""

    name: str
    dns: str
    tasks: int
    placed: int
    serving: int
    fail_open: bool
    revision: int
    endpoints: list[TaskEndpoint]


def task_endpoint(principal: Principal, name: TaskName, *, zone: str) -> TaskEndpoint:
    """Raises `NotFound` for what is not there and for what `principal` may not see."""
    job = _visible_job(principal, name.of_job)
    rows = TaskRow.objects.filter(job=job, index=name.index).select_related("machine")
    found = _endpoints(job, name.of_job, rows, zone)
    if not found:
        raise NotFound("task", name.path)
    return found[0]


def job_endpoints(principal: Principal, name: JobName, *, zone: str) -> JobEndpoints:
    """All placed tasks, in the order of their indexes. Raises `NotFound` as `task_endpoint` does."""
    job = _visible_job(principal, name)
    rows = TaskRow.objects.filter(job=job, state=TaskState.RUNNING.value).select_related("machine")
    endpoints = _endpoints(job, name, rows.order_by("index"), zone)
    serving = sum(endpoint.serving for endpoint in endpoints)
    return JobEndpoints(
        name=name.path,
        dns=name.dns(zone),
        tasks=job.tasks_total,
        placed=len(endpoints),
        serving=serving,
        fail_open=bool(endpoints) and not serving,
        revision=job.cell.revision,
        endpoints=endpoints,
    )


def services(
    principal: Principal,
    *,
    cell: str = "",
    tenant: str = "",
    job: str = "",
    labels: Mapping[str, str] | None = None,
    names: Collection[JobName] | None = None,
) -> list[Service]:
    """Live jobs with their placed tasks, of the tenants whose jobs `principal` may see; `names`: no others than these.

    Three queries, and one a cell in which an update is under way. Raises `Refused` beyond `MOST_ENDPOINTS` tasks.
    """
    jobs = Job.objects.exclude(state=JobState.DEAD.value).select_related("cell", "tenant").order_by("id")
    if not (principal.sre or any(kind is CapabilityKind.ANY_JOB for kind, _ in principal.capabilities)):
        jobs = jobs.filter(tenant__in=tenants_visible(principal))
    for field, value in (("cell__name", cell), ("tenant__name", tenant), ("name", job)):
        if value:
            jobs = jobs.filter(**{field: value})
    if labels:
        jobs = jobs.filter(labels__contains=dict(labels))
    if names is not None:
        jobs = jobs.filter(name__in={name.job for name in names})
    found = {
        one.id: one
        for one in jobs
        if may(principal, Action.JOB_VIEW, tenant=one.tenant.name, cell=one.cell.name)
        and (names is None or JobName(one.cell.name, one.tenant.name, one.name) in names)
    }
    rows = list(
        TaskRow.objects.filter(job__in=found, state=TaskState.RUNNING.value)
        .select_related("machine")
        .order_by("job_id", "index")[: MOST_ENDPOINTS + 1]
    )
    if len(rows) > MOST_ENDPOINTS:
        raise Refused(
            "too-many-endpoints",
            f"more than {MOST_ENDPOINTS} tasks; ask for one cell, tenant, job or label",
            fields={"cell": "choose fewer tasks"},
        )
    updating = {
        found[row.job_id].cell_id for row in rows if row.spec_version != found[row.job_id].spec_version
    }
    older = {
        job_id: dict(known) for cell_id in updating for job_id, known in _older_port_names(cell_id).items()
    }
    endpoints: dict[int, list[Endpoint]] = {job_id: [] for job_id in found}
    for row in rows:
        of = found[row.job_id]
        ports = {**older.get(of.id, {}), of.spec_version: tuple(of.port_names)}
        assert row.machine is not None
        endpoints[of.id].append(
            Endpoint(
                index=row.index,
                address=row.address or row.machine.address,
                ports=dict(zip(ports.get(row.spec_version, tuple(of.port_names)), row.ports, strict=False)),
                serving=row.up,
                phase=row.phase,
                health=row.health or "unknown",
                machine=row.machine.hostname,
            )
        )
    return [
        Service(JobName(one.cell.name, one.tenant.name, one.name), one.labels, endpoints[job_id])
        for job_id, one in found.items()
    ]


def _visible_job(principal: Principal, name: JobName) -> Job:
    visible = may(principal, Action.JOB_VIEW, tenant=name.tenant, cell=name.cell)
    jobs = Job.objects.filter(cell__name=name.cell, tenant__name=name.tenant, name=name.job)
    job = jobs.exclude(state=JobState.DEAD.value).select_related("cell").first() if visible else None
    if job is None:
        raise NotFound("job", name.path)
    return job


def _endpoints(job: Job, name: JobName, rows: Iterable[TaskRow], zone: str) -> list[TaskEndpoint]:
    rows = list(rows)
    names = {job.spec_version: tuple(job.port_names)}
    if any(row.machine is not None and row.spec_version != job.spec_version for row in rows):
        names = {**dict(_older_port_names(job.cell_id, job.id).get(job.id, [])), **names}
    return [_endpoint(job, name.task(row.index), row, names, zone) for row in rows]


def _endpoint(
    job: Job, name: TaskName, row: TaskRow, names: dict[int, tuple[str, ...]], zone: str
) -> TaskEndpoint:
    port_names = names.get(row.spec_version, tuple(job.port_names))
    return TaskEndpoint(
        name=name.path,
        dns=name.dns(zone),
        index=row.index,
        state=row.state,
        phase=row.phase,
        health=row.health or "unknown",
        serving=row.up,
        machine=row.machine.hostname if row.machine else "",
        address=row.address or row.machine.address if row.machine else "",
        ports=dict(zip(port_names, row.ports, strict=False)) if row.machine else {},
        revision=job.cell.revision,
    )
