"""Names of jobs, tasks, machines and services for pages (§2.6). This module sends no DNS query."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import Count, QuerySet, Sum

from naming.api.dns_server_status import servers
from naming.api.selectors import service_of, weights_of_service
from naming.api.task_endpoints import name_of, published_of, ttl_of
from naming.api.task_loads import Busy, loads_of
from naming.dns.primary import InvalidPeers
from naming.table.endpoints import weight_of
from naming.table.names import JobName, MachineName, ServiceName, TaskName, is_service
from naming.table.service_weights import ServiceWeights, WeighedTasks
from quota.vocabulary.resources import CPU
from scheduling.core.vocabulary.published import track_of
from scheduling.jobs.updates import spec_of
from scheduling.models import Job, Task

DNS_PORT = 53
# The most services that a page lists.
MOST_SERVICES = 100
# The first and the last index of a range of tasks.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PortName:
    """A port and its SRV name. `number`: the port number of the task; 0 if the name is that of a job or a service."""

    port: str
    dns: str
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The BNS name (`path`) and the DNS names of a job, task or service. `dig`, `borgctl`: commands to look them up."""

    path: str
    dns: str
    ports: Sequence[PortName]
    dig: str
    borgctl: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNames(Names):
    """The names of a job. `first`, `last`: the DNS names of its first and last task.

    `weights`: (first index, last index, weight) of the tasks whose weight is not 1.
    """

    first: str
    last: str
    ttl_s: int
    weights: Sequence[tuple[int, int, int]]
    service: ServiceName | None
    service_dns: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNames(Names):
    """The names of a task. `address`, `machine` (a DNS name): empty while the task is not placed.

    `load`: current CPU usage in percent of the limit, or None if unknown.
    """

    address: str
    machine: str
    weight: int
    load: int | None


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Tasks of one job with the same weight. `tasks`: the range of their indexes, or None for the tasks of the job that
    are in no other group.

    `alone`: whether this is the only group of the job. `share`: the part of the clients that the group gets, from 0 to
    1.
    """

    job: Job
    tasks: Range | None
    alone: bool
    weight: int
    placed: int
    serving: int
    share: float = 0.0

    @property
    def percent(self) -> str:
        """Return the share in percent, rounded to one decimal: `37.5`."""
        return f"{100 * self.share:.1f}".removesuffix(".0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView(Names):
    """A service with its live jobs. `groups`: the tasks of these jobs, grouped by job and weight. `weights`: the
    weights of its tracks, or none.
    """

    name: ServiceName
    ttl_s: int
    jobs: Sequence[Job]
    groups: Sequence[WeightGroup]
    weights: Mapping[str, int]

    @property
    def placed(self) -> int:
        return sum(group.placed for group in self.groups)

    @property
    def serving(self) -> int:
        return sum(group.serving for group in self.groups)


def names_of_job(job: Job) -> JobNames:
    """Return the names of a job whose cell and tenant are already loaded. Makes no query."""
    name, service = name_of(job), service_of(job)
    return JobNames(
        **_common(name, ((port, 0) for port in job.port_names)),
        first=name.task(0).dns(settings.BORG_ZONE),
        last=name.task(max(job.tasks_total - 1, 0)).dns(settings.BORG_ZONE),
        ttl_s=ttl_of([job]),
        weights=published_of(job).weights,
        service=service,
        service_dns=service.dns(settings.BORG_ZONE) if service else "",
    )


def leave_of(job: Job) -> float:
    """Return how many seconds before SIGTERM the portal removes a task of the job from DNS, according to the newest
    spec. Makes one query.
    """
    spec = spec_of(job)
    return spec.leave_s(spec.base, ttl_s=settings.BORG_DNS_TTL)


def names_of_task(job: Job, task: Task, ports: Sequence[tuple[str, int]]) -> TaskNames:
    """Return the names of a task. `ports`: the name and number of each port. Makes no query, but reads Redis once."""
    machine = task.machine
    host = MachineName(job.cell.name, machine.hostname.lower()) if machine else None
    return TaskNames(
        **_common(name_of(job).task(task.index), ports),
        address=(task.address or machine.address) if machine else "",
        machine=host.dns(settings.BORG_ZONE) if host else "",
        weight=weight_of(task.index, published_of(job).weights),
        load=_load(task),
    )


def service_over(name: ServiceName, jobs: Sequence[Job], weights: Mapping[str, int] | None = None) -> ServiceView:
    """Return a service that has these jobs. `weights`: the weights of its tracks, or None to read them with a query.
    Makes one query more if the weights of tasks differ.
    """
    weights = weights_of_service(name) if weights is None else weights
    return ServiceView(
        **_common(name, ((port, 0) for port in sorted({port for job in jobs for port in job.port_names}))),
        name=name,
        ttl_s=ttl_of(jobs),
        jobs=jobs,
        groups=_with_shares(_groups_of(jobs), weights),
        weights=weights,
    )


def services_among(jobs: QuerySet[Job]) -> list[tuple[ServiceName, str, int, int, int]]:
    """Return the services of the jobs. For each service: name, DNS name, and how many jobs, placed tasks and serving
    tasks it has. Makes one query.
    """
    rows = (
        jobs.filter(kind="job", labels__has_key="service")
        .values_list("cell__name", "tenant__name", "labels__service")
        .annotate(jobs=Count("id"), placed=Sum("tasks_running"), serving=Sum("tasks_up"))
        .order_by("cell__name", "tenant__name", "labels__service")[: MOST_SERVICES + 1]
    )
    found = (
        (ServiceName(cell, tenant, service), counts) for cell, tenant, service, *counts in rows if is_service(service)
    )
    return [(name, name.dns(settings.BORG_ZONE), *counts) for name, counts in found]


def _groups_of(jobs: Sequence[Job]) -> list[WeightGroup]:
    """Return the tasks of the jobs, grouped by job and weight. The field `share` of the groups is not set yet. Makes
    one query, or none if all weights are equal.
    """
    weights = {job.id: published_of(job).weights for job in jobs}
    counted = _counted([(job, first, last) for job, listed in weights.items() for first, last, _weight in listed])
    found = []
    for job in jobs:
        weighed = [
            WeightGroup(job, (first, last), False, weight, *counted.get((job.id, first), (0, 0)))
            for first, last, weight in weights[job.id]
        ]
        found += weighed
        if not weighed or sum(last - first + 1 for first, last, _weight in weights[job.id]) < job.tasks_total:
            placed = job.tasks_running - sum(group.placed for group in weighed)
            serving = job.tasks_up - sum(group.serving for group in weighed)
            found.append(WeightGroup(job, None, not weighed, 1, max(placed, 0), max(serving, 0)))
    return found


def _with_shares(groups: Sequence[WeightGroup], weights: Mapping[str, int]) -> list[WeightGroup]:
    """Return the groups with the field `share` set. The DNS answers divide clients among tasks in the same way.
    `weights`: the weights of the tracks, or none. With them, each group gets the weight of its tasks in the service.

    Serving tasks share the clients in proportion to their weights. If no task serves, all placed tasks count as
    serving. If all weights are 0, each task gets the same share.
    """
    if weights:
        tracks = [track_of(group.job.name, group.job.labels) for group in groups]
        placed = [WeighedTasks(track, one.weight, one.placed) for track, one in zip(tracks, groups, strict=True)]
        of_service = ServiceWeights(weights, [one for one in placed if one.number])
        weighed_by = [of_service.of(track, one.weight) for track, one in zip(tracks, groups, strict=True)]
        groups = [replace(one, weight=weight) for one, weight in zip(groups, weighed_by, strict=True)]
    able = [group.serving for group in groups]
    if not any(able):
        able = [group.placed for group in groups]
    weighed = [count * group.weight for count, group in zip(able, groups, strict=True)]
    if not any(weighed):
        weighed = able
    total = sum(weighed)
    return [replace(group, share=part / total if total else 0.0) for group, part in zip(groups, weighed, strict=True)]


def _common(name: JobName | TaskName | ServiceName, ports: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """Return, as keyword arguments, the fields of `Names` for this name. `ports`: the name and number of each port."""
    dns = name.dns(settings.BORG_ZONE)
    found = [PortName(port, f"_{port}._tcp.{dns}", number) for port, number in ports]
    of_task = isinstance(name, TaskName)
    return {
        "path": name.path,
        "dns": dns,
        "ports": found,
        "dig": _dig(f"{found[0].dns} SRV" if found and not of_task else f"{dns} A"),
        "borgctl": f"borgctl resolve {name.path}" + ("" if of_task else " --watch"),
    }


def _dig(question: str) -> str:
    """Return a `dig` command for `question`. It contains the address of a resolver if the settings give one."""
    try:
        first = servers()[0]
    except InvalidPeers:  # the console shows the wrong setting; a tenant's page omits the resolver
        return f"dig +short {question}"
    if not settings.BORG_DNS_RESOLVERS and ip_address(settings.BORG_DNS_HOST).is_unspecified:
        return f"dig +short {question}"
    return f"dig @{first.address}{f' -p {first.port}' if first.port != DNS_PORT else ''} +short {question}"


def _counted(ranges: Collection[tuple[int, int, int]]) -> dict[tuple[int, int], tuple[int, int]]:
    """Return how many tasks of each range are placed, and how many of them serve (can receive requests). The keys are
    (job id, first index). `ranges`: (job id, first index, last index).
    """
    if not ranges:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT r.job_id, r.first, count(*), count(*) FILTER (WHERE t.up)"
            " FROM unnest(%s::bigint[], %s::integer[], %s::integer[]) AS r(job_id, first, last)"
            " JOIN scheduling_task t ON t.job_id = r.job_id AND t.index BETWEEN r.first AND r.last"
            " WHERE t.state = 'running' GROUP BY r.job_id, r.first",
            [list(column) for column in zip(*ranges, strict=True)],
        )
        return {(job, first): (placed, serving) for job, first, placed, serving in cursor.fetchall()}


def _load(task: Task) -> int | None:
    if task.machine_id is None:
        return None
    load = loads_of(task.cell_id, [Busy(task.id, task.incarnation, task.machine_id, task.limit[CPU])]).get(task.id)
    return None if load is None else round(100 * load)
