"""Reads of rows about names: what `/bns/` and the feeds answer, and to whom."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import reduce
from operator import or_

from django.conf import settings
from django.db import connection
from django.db.models import Q, QuerySet, Sum

from naming.api.feeds import FeedService
from naming.api.placed import endpoints_of, job_answer, name_of, rows_of, service_answer
from naming.table.endpoints import JobEndpoints, MachineEndpoint, ServiceEndpoints, TaskEndpoint
from naming.table.names import SERVICE, JobName, MachineName, ServiceName, TaskName, is_service
from naming.table.table import NAMING_KINDS
from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, may
from scheduling.access.selectors import cell_named, machine_named
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Cell, Job

MOST_ENDPOINTS = 100_000  # of one answer


def task_endpoint(principal: Principal, name: TaskName, *, zone: str) -> TaskEndpoint:
    """Raises `NotFound` for what is not there and for what `principal` may not see."""
    job = job_visible(principal, name.of_job)
    rows = rows_of([job.id], tasks=[task_id(job.id, name.index)], pending=True)
    if not rows:
        raise NotFound("task", name.path)
    return endpoints_of({job.id: job}, rows, zone=zone)[0]


def job_endpoints(principal: Principal, name: JobName, *, zone: str) -> JobEndpoints:
    """All placed tasks, in the order of their indexes. Raises `NotFound` as `task_endpoint` does."""
    job = job_visible(principal, name)
    return job_answer(job, endpoints_of({job.id: job}, rows_of([job.id]), zone=zone), zone=zone)


def service_endpoints(principal: Principal, name: ServiceName, *, zone: str) -> ServiceEndpoints:
    """All placed tasks of its jobs. Raises `NotFound` as `task_endpoint` does, and where no live job is of it."""
    cell = service_visible(principal, name)
    jobs = {job.id: job for job in jobs_of_service(name)}
    if not jobs:
        raise NotFound("service", name.path)
    endpoints = endpoints_of(jobs, rows_of(jobs), zone=zone)
    return service_answer(name, cell, jobs.values(), endpoints, zone=zone)


def machine_endpoint(principal: Principal, name: MachineName, *, zone: str) -> MachineEndpoint:
    """Raises `NotFound`."""
    machine = machine_named(cell_named(principal, name.cell), name.host)
    return MachineEndpoint(
        name=name.path,
        dns=name.dns(zone),
        machine=machine.hostname,
        address=machine.address,
        state=machine.state,
        ttl_s=settings.BORG_DNS_TTL,
        revision=machine.cell.revision,
        history=machine.cell.history_ordinal,
    )


def services(
    principal: Principal,
    *,
    cell: str = "",
    tenant: str = "",
    job: str = "",
    service: str = "",
    labels: Mapping[str, str] | None = None,
    names: Collection[JobName | ServiceName] | None = None,
) -> list[FeedService]:
    """Live jobs with their placed tasks, of the tenants whose jobs `principal` may see, then services over them.

    `service`: this one and its jobs; `names`: no others than these. Where `job` or `labels` narrow what is read there
    are no services: they would be told in part. Four queries, and one and a question to Redis a cell; see
    `endpoints_of`. Raises `Rejected` beyond `MOST_ENDPOINTS` tasks, before it reads a job or a task, and `NotFound` for
    a cell or tenant that is not there or may not be seen: a misspelt one must not look like one without tasks.
    """
    if cell:
        cell_named(principal, cell)
    if tenant:
        _check_tenant(principal, tenant)
    jobs = Job.objects.exclude(state=JobState.DEAD.value).select_related("cell", "tenant").order_by("id")
    if not (principal.sre or any(kind is CapabilityKind.ANY_JOB for kind, _ in principal.capabilities)):
        jobs = jobs.filter(tenant__in=tenants_visible(principal))
    for field, value in (
        ("cell__name", cell), ("tenant__name", tenant), ("name", job), (f"labels__{SERVICE}", service),
    ):  # fmt: skip
        if value:
            jobs = jobs.filter(**{field: value})
    if labels:
        jobs = jobs.filter(labels__contains=dict(labels))
    if names is not None:
        jobs = jobs.filter(_named(names))
    _check_number(principal, jobs)
    found = {
        one.id: one
        for one in jobs
        if may(principal, Action.JOB_VIEW, tenant=one.tenant.name, cell=one.cell.name)
    }
    rows = rows_of(found)
    endpoints: dict[int, list[TaskEndpoint]] = {job_id: [] for job_id in found}
    for row, endpoint in zip(rows, endpoints_of(found, rows, zone=settings.BORG_ZONE), strict=True):
        endpoints[row.job_id].append(endpoint)
    told = [FeedService(name_of(one), one.labels, endpoints[job_id]) for job_id, one in found.items()]
    return told if job or labels else [*told, *_over(found, endpoints)]


def _named(names: Collection[JobName | ServiceName]) -> Q:
    """The jobs of these names and of these services. `names` is not empty."""
    of_jobs: dict[tuple[str, str], list[str]] = defaultdict(list)
    of_services: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        if isinstance(name, JobName):
            of_jobs[name.cell, name.tenant].append(name.job)
        else:
            of_services[name.cell, name.tenant].append(name.service)
    parts = [
        Q(cell__name=cell, tenant__name=tenant, name__in=jobs) for (cell, tenant), jobs in of_jobs.items()
    ]
    parts += [
        Q(cell__name=cell, tenant__name=tenant, kind="job", **{f"labels__{SERVICE}__in": services})
        for (cell, tenant), services in of_services.items()
    ]
    return reduce(or_, parts)


def _check_number(principal: Principal, jobs: QuerySet[Job]) -> None:
    """Raise `Rejected` where these jobs have more placed tasks than one answer holds. One query of sums of the jobs'
    counters by cell and tenant."""
    sums = jobs.order_by().values_list("cell__name", "tenant__name").annotate(placed=Sum("tasks_running"))
    placed = sum(
        number for cell, tenant, number in sums if may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell)
    )
    if placed > MOST_ENDPOINTS:
        raise Rejected(
            "too-many-endpoints",
            f"The feed would list {placed:,} tasks, and one answer lists at most {MOST_ENDPOINTS:,}."
            " Ask for less with the filters cell, tenant, job, service or label.",
            fields={"cell": "choose fewer tasks"},
            figures={"tasks": placed, "most": MOST_ENDPOINTS},
        )


def _check_tenant(principal: Principal, tenant: str) -> None:
    """Raises `NotFound` unless `principal` may see it, or any job of it by a capability."""
    visible = tenants_visible(principal)
    if visible.filter(name=tenant).exists():
        return
    cells = Job.objects.filter(tenant__name=tenant).order_by().values_list("cell__name", flat=True).distinct()
    if not any(may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell) for cell in cells):
        raise NotFound("tenant", tenant, known=list(visible.values_list("name", flat=True)[:10]))


def _over(jobs: Mapping[int, Job], endpoints: Mapping[int, list[TaskEndpoint]]) -> list[FeedService]:
    """The services over these jobs."""
    found: dict[ServiceName, list[TaskEndpoint]] = defaultdict(list)
    for job_id, job in jobs.items():
        if (name := service_of(job)) is not None:
            found[name] += endpoints[job_id]
    return [FeedService(name, {SERVICE: name.service}, behind) for name, behind in found.items()]


def names_stamp() -> str:
    """Moves with every change of any name: each cell's history and the last revision that may have changed one.

    One query, which looks at the end of each cell's journal.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.id, c.history_ordinal, e.revision FROM scheduling_cell c LEFT JOIN LATERAL ("
            "  SELECT revision FROM scheduling_event WHERE cell_id = c.id AND kind = ANY(%s)"
            "  ORDER BY revision DESC LIMIT 1) AS e ON true ORDER BY c.id",
            [list(NAMING_KINDS)],
        )
        return json.dumps(cursor.fetchall())


def job_visible(principal: Principal, name: JobName) -> Job:
    """Raises `NotFound`, whether it is not there or may not be seen."""
    visible = may(principal, Action.JOB_VIEW, tenant=name.tenant, cell=name.cell)
    job = live_job(name) if visible else None
    if job is None:
        raise NotFound("job", name.path)
    return job


def service_visible(principal: Principal, name: ServiceName) -> Cell:
    """Its cell. Raises `NotFound` where `principal` may not see the tenant's jobs."""
    visible = may(principal, Action.JOB_VIEW, tenant=name.tenant, cell=name.cell)
    cell = Cell.objects.filter(name=name.cell).first() if visible else None
    if cell is None:
        raise NotFound("service", name.path)
    return cell


def live_job(name: JobName) -> Job | None:
    jobs = Job.objects.filter(cell__name=name.cell, tenant__name=name.tenant, name=name.job)
    return jobs.exclude(state=JobState.DEAD.value).select_related("cell", "tenant").first()


def jobs_of_service(name: ServiceName) -> list[Job]:
    """Its live jobs, oldest first."""
    jobs = Job.objects.filter(
        cell__name=name.cell, tenant__name=name.tenant, kind="job", **{f"labels__{SERVICE}": name.service}
    )
    return list(jobs.exclude(state=JobState.DEAD.value).select_related("cell", "tenant").order_by("id"))


def service_of(job: Job) -> ServiceName | None:
    """That its label names. Labels from before there were services may be no name; alloc sets answer nobody."""
    label = job.labels.get(SERVICE)
    if label is None or not is_service(label) or job.kind != "job":
        return None
    return ServiceName(job.cell.name, job.tenant.name, label)
