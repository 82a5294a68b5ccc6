"""Reads of rows about names: what `/bns/` and the feeds answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from naming.feeds import Endpoint, Service
from naming.names import JobName, TaskName
from naming.rows import older_port_names
from quota.errors import NotFound, Refused
from quota.permissions import Action, CapabilityKind, Principal, may
from quota.selectors import tenants_visible
from scheduling.core.states import JobState, TaskState
from scheduling.models import Job
from scheduling.models import Task as TaskRow

MOST_ENDPOINTS = 100_000  # of one answer


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
        job_id: dict(known) for cell_id in updating for job_id, known in older_port_names(cell_id).items()
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
        names = {**dict(older_port_names(job.cell_id, job.id).get(job.id, [])), **names}
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
