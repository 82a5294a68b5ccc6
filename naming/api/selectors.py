"""Database queries about names, for the endpoints below `/bns/` and for the feeds. Most of them return only names that
the caller may see.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import NamedTuple

from django.conf import settings
from django.db.models import Q, QuerySet, Sum

from naming.api.feeds import FeedService
from naming.api.task_endpoints import endpoints_of, job_answer, name_of, rows_of, service_answer, tracks_of
from naming.table.endpoints import JobEndpoints, MachineEndpoint, ServiceEndpoints, TaskEndpoint, weighed_by_track
from naming.table.names import SERVICE, JobName, MachineName, Name, ServiceName, TaskName, is_service
from naming.table.table import NAMING_KINDS
from quota.model_rows import read_models
from quota.models import Tenant
from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, may
from scheduling.access.selectors import cell_named, machine_named
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import JobState
from scheduling.journal.sql import query
from scheduling.models import Cell, Job, ServiceWeighting

MOST_ENDPOINTS = 100_000  # in one answer
MOST_TARGETS = 300_000  # tasks in one answer for Prometheus, which needs less memory per task
_FEED_COLUMNS = (
    "cell_id",
    "tenant_id",
    "name",
    "kind",
    "labels",
    "spec_version",
    "port_names",
    "published",
    "tasks_running",
)


def endpoints(
    principal: Principal, name: Name, *, zone: str
) -> JobEndpoints | ServiceEndpoints | TaskEndpoint | MachineEndpoint:
    """Return the endpoints of a name: of a task, of a machine, or of all placed tasks of a job or service.

    Raises `NotFound` if the name does not exist, if `principal` may not see it, or if a service has no live job.
    """
    match name:
        case TaskName():
            job = job_visible(principal, name.of_job)
            rows = rows_of([job.id], tasks=[task_id(job.id, name.index)], pending=True)
            if not rows:
                raise NotFound("task", name.path)
            return endpoints_of({job.id: job}, rows, zone=zone)[0]
        case JobName():
            job = job_visible(principal, name)
            return job_answer(job, endpoints_of({job.id: job}, rows_of([job.id]), zone=zone), zone=zone)
        case ServiceName():
            cell = service_visible(principal, name)
            jobs = {job.id: job for job in jobs_of_service(name)}
            if not jobs:
                raise NotFound("service", name.path)
            found = endpoints_of(jobs, rows_of(jobs), zone=zone)
            return service_answer(name, cell, jobs.values(), found, weights_of_service(name), zone=zone)
        case MachineName():
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


class VisibleJobs(NamedTuple):
    """Live jobs that a caller may see. `cells`: cells by id. `of_cells`: job ids by cell id, the oldest job first.
    `have_all`: whether the jobs include all jobs of each service to which one of them belongs.

    The jobs were read after the cells, so the jobs are at least as new as the revisions of the cells.
    """

    cells: Mapping[int, Cell]
    of_cells: Mapping[int, Sequence[int]]
    have_all: bool


def visible_jobs(
    principal: Principal,
    *,
    cell: str = "",
    tenant: str = "",
    job: str = "",
    service: str = "",
    labels: Mapping[str, str] | None = None,
    names: Collection[JobName | ServiceName] | None = None,
    most: int = MOST_ENDPOINTS,
) -> VisibleJobs:
    """Return the live jobs that match all given filters and that `principal` may see. Makes at most six queries.

    `service`: only the jobs of this service. `names`: only these jobs and the jobs of these services.

    Raises `Rejected` if the jobs have more than `most` placed tasks. Raises `NotFound` for a cell or tenant that does
    not exist or that the caller may not see, so that a misspelt name does not look like a name without tasks.
    """
    if cell:
        cell_named(principal, cell)
    if tenant:
        _check_tenant(principal, tenant)
    jobs = _live_jobs({"cell__name": cell, "tenant__name": tenant, "name": job, f"labels__{SERVICE}": service})
    if not (principal.sre or any(kind is CapabilityKind.ANY_JOB for kind, _ in principal.capabilities)):
        jobs = jobs.filter(tenant__in=tenants_visible(principal))
    if labels:
        jobs = jobs.filter(labels__contains=dict(labels))
    if names is not None:
        jobs = jobs.filter(_named(names))
    _check_number(principal, jobs, most)
    cells = Cell.objects.in_bulk()
    rows = list(jobs.values_list("id", "cell_id", "tenant_id"))
    tenants = Tenant.objects.in_bulk({tenant_id for _, _, tenant_id in rows})
    allowed = {
        pair: may(principal, Action.JOB_VIEW, tenant=tenants[pair[1]].name, cell=cells[pair[0]].name)
        for pair in {(cell_id, tenant_id) for _, cell_id, tenant_id in rows}
        if pair[0] in cells  # the next request has the jobs of a cell that was created since then
    }
    of_cells: dict[int, list[int]] = defaultdict(list)
    for job_id, cell_id, tenant_id in rows:
        if allowed.get((cell_id, tenant_id)):
            of_cells[cell_id].append(job_id)
    return VisibleJobs(cells, of_cells, have_all=not (job or labels))


def services(jobs: VisibleJobs) -> list[FeedService]:
    """Return the jobs with their placed tasks, followed by the services of these jobs.

    If `jobs.have_all` is false, services are left out, because they would have only a part of their tasks. The function
    makes four database queries. For each cell, it makes one more query and one request to Redis.
    """
    found = read_jobs(jobs.cells, list(chain.from_iterable(jobs.of_cells.values())))
    # A feed lists ports, so it needs no tasks of jobs without ports.
    rows = rows_of([i for i, one in found.items() if one.port_names or one.spec_version > 1 or SERVICE in one.labels])
    by_job: dict[int, list[TaskEndpoint]] = {job_id: [] for job_id in found}
    for row, endpoint in zip(rows, endpoints_of(found, rows, zone=settings.BORG_ZONE), strict=True):
        by_job[row.job_id].append(endpoint)
    of_jobs = [FeedService(name_of(one), one.labels, by_job[job_id]) for job_id, one in found.items()]
    return [*of_jobs, *_feed_services(found, by_job)] if jobs.have_all else of_jobs


def read_jobs(cells: Mapping[int, Cell], ids: Collection[int]) -> dict[int, Job]:
    """Return the jobs with these ids, the oldest first, with the columns that feeds need. Makes two queries.

    The jobs share the objects of `cells` and of their tenants. A join would make new objects of the cell and the tenant
    for each job, which took most of the time.
    """
    if not ids:
        return {}
    found = {job.id: job for job in Job.objects.filter(id__in=ids).only(*_FEED_COLUMNS).order_by("id")}
    tenants = Tenant.objects.in_bulk({job.tenant_id for job in found.values()})
    for job in found.values():
        job.cell, job.tenant = cells[job.cell_id], tenants[job.tenant_id]
    return found


def _named(names: Collection[JobName | ServiceName]) -> Q:
    """Return the database condition for jobs that have one of these names or belong to one of these services. `names`
    must not be empty.
    """
    of_jobs: dict[tuple[str, str], list[str]] = defaultdict(list)
    of_services: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names:
        if isinstance(name, JobName):
            of_jobs[name.cell, name.tenant].append(name.job)
        else:
            of_services[name.cell, name.tenant].append(name.service)
    parts = [Q(cell__name=cell, tenant__name=tenant, name__in=jobs) for (cell, tenant), jobs in of_jobs.items()]
    parts += [
        Q(cell__name=cell, tenant__name=tenant, kind="job", **{f"labels__{SERVICE}__in": services})
        for (cell, tenant), services in of_services.items()
    ]
    return reduce(or_, parts)


def _check_number(principal: Principal, jobs: QuerySet[Job], most: int) -> None:
    """Raise `Rejected` if these jobs have more than `most` placed tasks. The check makes one database query."""
    sums = jobs.order_by().values_list("cell__name", "tenant__name").annotate(placed=Sum("tasks_running"))
    placed = sum(number for cell, tenant, number in sums if may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell))
    if placed > most:
        raise Rejected(
            "too-many-endpoints",
            f"The feed would list {placed:,} tasks, but one answer may list at most {most:,}."
            " Use the filters cell, tenant, job, service or label to request fewer tasks.",
            fields={"cell": "too many tasks for one answer; add a filter to request fewer"},
            figures={"tasks": placed, "most": most},
        )


def _check_tenant(principal: Principal, tenant: str) -> None:
    """Raise `NotFound` unless `principal` may see the tenant, or may see one of the tenant's jobs."""
    visible = tenants_visible(principal)
    if visible.filter(name=tenant).exists():
        return
    cells = Job.objects.filter(tenant__name=tenant).order_by().values_list("cell__name", flat=True).distinct()
    if not any(may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell) for cell in cells):
        raise NotFound("tenant", tenant, known=list(visible.values_list("name", flat=True)[:10]))


def _feed_services(jobs: Mapping[int, Job], by_job: Mapping[int, list[TaskEndpoint]]) -> list[FeedService]:
    """Return the services of these jobs, with their tasks. `by_job`: the endpoints of each job's tasks, by the id of
    the job.
    """
    found: dict[ServiceName, list[TaskEndpoint]] = defaultdict(list)
    for job_id, job in jobs.items():
        if (name := service_of(job)) is not None:
            found[name] += by_job[job_id]
    weights = weights_of_services(found)
    tracks: dict[ServiceName, dict[str, str]] = defaultdict(dict)
    for job in jobs.values():
        if weights and (name := service_of(job)) in weights:
            tracks[name] |= tracks_of([job])
    return [
        FeedService(name, {SERVICE: name.service}, weighed_by_track(tasks, tracks[name], weights.get(name, {})))
        for name, tasks in found.items()
    ]


def weights_of_service(name: ServiceName) -> Mapping[str, int]:
    """Return the weights of the tracks of a service; empty if it has none. Makes one query."""
    return weights_of_services([name]).get(name, {})


def weights_of_services(names: Collection[ServiceName]) -> dict[ServiceName, Mapping[str, int]]:
    """Return the weights of the tracks of these services. Services without weights are left out. Makes one query, or
    none without a name.
    """
    if not names:
        return {}
    rows = ServiceWeighting.objects.filter(
        cell__name__in={name.cell for name in names},
        tenant__name__in={name.tenant for name in names},
        service__in={name.service for name in names},
    ).exclude(weights={})
    found = rows.values_list("cell__name", "tenant__name", "service", "weights")
    weights = {ServiceName(cell, tenant, service): of for cell, tenant, service, of in found}
    return {name: weights[name] for name in names if name in weights}


def names_stamp() -> str:
    """Return a text that is different after every change of a name. Callers compare it with an earlier text.

    For each cell, the text contains the last revision that changed a name, and a number that rises when the database is
    restored from a backup. The function makes one database query.
    """
    newest = query(
        "SELECT c.id, c.history_ordinal, e.revision FROM scheduling_cell c LEFT JOIN LATERAL ("
        "  SELECT revision FROM scheduling_event WHERE cell_id = c.id AND kind = ANY(%s)"
        "  ORDER BY revision DESC LIMIT 1) AS e ON true"
        " WHERE c.study_of IS NULL AND c.deleted_at IS NULL ORDER BY c.id",
        [list(NAMING_KINDS)],
    )
    return json.dumps(newest)


def job_visible(principal: Principal, name: JobName) -> Job:
    """Return the live job with this name. Raises `NotFound` if there is none, or if `principal` may not see it."""
    visible = may(principal, Action.JOB_VIEW, tenant=name.tenant, cell=name.cell)
    job = live_job(name) if visible else None
    if job is None:
        raise NotFound("job", name.path)
    return job


def service_visible(principal: Principal, name: ServiceName) -> Cell:
    """Return the cell of a service. Raises `NotFound` if the cell does not exist, or if `principal` may not see the
    jobs of the service's tenant.
    """
    visible = may(principal, Action.JOB_VIEW, tenant=name.tenant, cell=name.cell)
    cell = Cell.operated.filter(name=name.cell).first() if visible else None
    if cell is None:
        raise NotFound("service", name.path)
    return cell


def live_job(name: JobName) -> Job | None:
    """Return the live job with this name, together with its cell and tenant, or None if there is none.

    The objects of the cell and the tenant have only the columns from which names are made. Other columns are read at
    their first use.
    """
    values = [name.cell, name.tenant, name.job, JobState.DEAD.value]
    for job in read_models(Job, _LIVE_JOB, values, alias="j", also=("cell_revision", "cell_history")):
        cell = (job.cell_id, name.cell, job.cell_revision, job.cell_history)  # type: ignore[attr-defined]
        job.cell = Cell.from_db(None, ("id", "name", "revision", "history_ordinal"), cell)
        job.tenant = Tenant.from_db(None, ("id", "name"), (job.tenant_id, name.tenant))
        return job
    return None


# Every poll of a name runs this statement. The ORM needs more time to write it than PostgreSQL needs to run it.
_LIVE_JOB = """
    SELECT {columns}, c.revision, c.history_ordinal FROM scheduling_job AS j
    JOIN scheduling_cell AS c ON c.id = j.cell_id JOIN quota_tenant AS t ON t.id = j.tenant_id
    WHERE c.name = %s AND t.name = %s AND j.name = %s AND j.state <> %s AND c.study_of IS NULL"""


def jobs_of_service(name: ServiceName) -> list[Job]:
    """Return the service's live jobs, oldest first."""
    label = {f"labels__{SERVICE}": name.service}
    return list(_live_jobs({"cell__name": name.cell, "tenant__name": name.tenant, "kind": "job", **label}))


def _live_jobs(filters: Mapping[str, str]) -> QuerySet[Job]:
    """Return the live jobs that match all filters, oldest first. Jobs of study cells (read-only cells that show a past
    state) are omitted. `filters`: field names and their required values; empty values are ignored.
    """
    given = {field: value for field, value in filters.items() if value}
    jobs = Job.objects.filter(**given, cell__study_of__isnull=True).exclude(state=JobState.DEAD.value)
    return jobs.select_related("cell", "tenant").order_by("id")


def service_of(job: Job) -> ServiceName | None:
    """Return the service that the job's label names. Return None if there is no valid label, or if the job is an alloc
    set.
    """
    label = job.labels.get(SERVICE)
    if label is None or not is_service(label) or job.kind != "job":
        return None
    return ServiceName(job.cell.name, job.tenant.name, label)
