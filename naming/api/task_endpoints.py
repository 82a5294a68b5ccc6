"""Builds the endpoints of tasks from the database rows and the loads of the tasks. Callers check the permissions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from django.conf import settings

from naming.api.task_loads import Busy, loads_of
from naming.following.names_from_database import older_port_names
from naming.table.endpoints import JobEndpoints, ServiceEndpoints, TaskEndpoint, fails_open, weighed_by_track, weight_of
from naming.table.names import JobName, ServiceName
from scheduling.core.vocabulary.published import Published, track_of
from scheduling.journal.sql import query
from scheduling.models import Cell, Job


class PlacedRow(NamedTuple):
    """The columns of a task and of its machine. The columns of the machine are None if the task is not placed."""

    task_id: int
    job_id: int
    index: int  # type: ignore[assignment]
    state: str
    phase: str
    health: str
    up: bool
    incarnation: int
    version: int
    ports: list[int]
    own_address: str
    limit_mcpu: int
    machine_id: int | None
    machine: str | None
    machine_address: str | None


# Feeds read many rows. Their conversion by the ORM would double the time of an answer.
_ROWS = """
SELECT t.id, t.job_id, t.index, t.state, t.phase, t.health, t.up, t.incarnation, t.spec_version, t.ports, t.address,
    t."limit"[1], t.machine_id, m.hostname, host(m.address)
FROM scheduling_task AS t LEFT JOIN scheduling_machine AS m ON m.id = t.machine_id"""


def rows_of(jobs: Collection[int], *, tasks: Collection[int] | None = None, pending: bool = False) -> list[PlacedRow]:
    """Return the placed tasks of these jobs, ordered by job and index. The function makes one database query.

    `tasks`: return only tasks with these ids. `pending`: whether to return also tasks that are not placed.
    """
    found = query(
        f"{_ROWS} WHERE t.job_id = ANY(%(jobs)s) AND (%(pending)s OR t.state = 'running')"
        " AND (%(tasks)s::bigint[] IS NULL OR t.id = ANY(%(tasks)s)) ORDER BY t.job_id, t.index",
        {"jobs": list(jobs), "tasks": None if tasks is None else list(tasks), "pending": pending},
    )
    return list(map(PlacedRow._make, found))


def endpoints_of(
    jobs: Mapping[int, Job], rows: Sequence[PlacedRow], *, zone: str, with_loads: bool = True
) -> list[TaskEndpoint]:
    """Return one endpoint per row. `jobs`: the jobs by id, each with its cell and tenant. `with_loads`: whether the
    endpoints have loads.

    The function makes one database query per cell with a running update. For the loads, it makes one request to Redis
    per cell with placed tasks.
    """
    ports = _port_names(jobs, rows)
    loads = _loads(jobs, rows) if with_loads else {}
    found: list[TaskEndpoint] = []
    for job_id, group in groupby(rows, key=attrgetter("job_id")):
        job, name = jobs[job_id], name_of(jobs[job_id])
        published, newest = published_of(job), tuple(job.port_names)
        path, dns = name.path, name.dns(zone)
        ttl_s = published.ttl_s or settings.BORG_DNS_TTL
        revision, history = job.cell.revision, job.cell.history_ordinal
        weights, port_names = published.weights, ports[job_id]
        # One unpacking and one call with positions per row: feeds have thousands of rows.
        for row in group:
            task_id, _, index, state, phase, health, up, _, version, numbers, own, _, machine_id, host, address = row
            placed = machine_id is not None
            found.append(
                TaskEndpoint(
                    f"{path}/{index}",
                    f"{index}.{dns}",
                    index,
                    state,
                    phase,
                    health or "unknown",
                    up,
                    weight_of(index, weights) if weights else 1,
                    loads.get(task_id),
                    ttl_s,
                    host or "",
                    (own or address or "") if placed else "",
                    dict(zip(port_names.get(version, newest), numbers, strict=False)) if placed else {},
                    revision,
                    history,
                )
            )
    return found


def job_answer(job: Job, endpoints: Sequence[TaskEndpoint], *, zone: str) -> JobEndpoints:
    """Return the answer to a request for the name of a job. `endpoints`: the endpoints of the job's placed tasks."""
    return JobEndpoints(labels=job.labels, **_summary(name_of(job), job.cell, [job], endpoints, zone))


def service_answer(
    name: ServiceName,
    cell: Cell,
    jobs: Collection[Job],
    endpoints: Sequence[TaskEndpoint],
    weights: Mapping[str, int],
    *,
    zone: str,
) -> ServiceEndpoints:
    """Return the answer to a request for a service. `jobs`: the jobs of the service. `endpoints`: those of their placed
    tasks. `weights`: the weights of its tracks.
    """
    weighed = weighed_by_track(endpoints, tracks_of(jobs), weights)
    paths = [name_of(job).path for job in jobs]
    return ServiceEndpoints(jobs=paths, weights=weights, **_summary(name, cell, jobs, weighed, zone))


def tracks_of(jobs: Iterable[Job]) -> dict[str, str]:
    """Return the track of each job in its service, by the name of the job."""
    return {job.name: track_of(job.name, job.labels) for job in jobs}


def _summary(
    name: JobName | ServiceName, cell: Cell, jobs: Collection[Job], endpoints: Sequence[TaskEndpoint], zone: str
) -> dict[str, Any]:
    return {
        "name": name.path,
        "dns": name.dns(zone),
        "tasks": sum(job.tasks_total for job in jobs),
        "placed": len(endpoints),
        "serving": sum(one.serving for one in endpoints),
        "fail_open": fails_open(endpoints),
        "ttl_s": ttl_of(jobs),
        "revision": cell.revision,
        "history": cell.history_ordinal,
        "endpoints": endpoints,
    }


def name_of(job: Job) -> JobName:
    """Return the name of a job. If the job was read with its cell and tenant, no database query is necessary."""
    return JobName(job.cell.name, job.tenant.name, job.name)


def published_of(job: Job) -> Published:
    """Return the settings of a job for its DNS names: the TTL and the weights of its tasks."""
    return msgspec.convert(job.published, Published)


def ttl_of(jobs: Collection[Job]) -> int:
    """Return for how many seconds clients may cache a name: the smallest value that the jobs of the name have."""
    return min((published_of(job).ttl_s or settings.BORG_DNS_TTL for job in jobs), default=settings.BORG_DNS_TTL)


def _port_names(jobs: Mapping[int, Job], rows: Sequence[PlacedRow]) -> dict[int, dict[int, tuple[str, ...]]]:
    """Return the port names by job id, then by spec version of the job. All versions that placed tasks have are
    included.
    """
    behind = {row.job_id for row in rows if row.machine_id is not None and row.version != jobs[row.job_id].spec_version}
    older: dict[int, list[tuple[int, tuple[str, ...]]]] = {}
    only = next(iter(behind)) if len(behind) == 1 else None
    for cell_id in {jobs[job_id].cell_id for job_id in behind}:
        older |= older_port_names(cell_id, only)
    return {
        job_id: {**dict(older.get(job_id, ())), job.spec_version: tuple(job.port_names)} for job_id, job in jobs.items()
    }


def busy_of(rows: Iterable[PlacedRow]) -> list[Busy]:
    """Return the facts of the placed tasks from which `loads_of` computes their loads."""
    return [
        Busy(row.task_id, row.incarnation, row.machine_id, row.limit_mcpu or 0)
        for row in rows
        if row.machine_id is not None
    ]


def _loads(jobs: Mapping[int, Job], rows: Sequence[PlacedRow]) -> dict[int, float]:
    by_cell: dict[int, list[PlacedRow]] = defaultdict(list)
    for row in rows:
        if row.machine_id is not None:
            by_cell[jobs[row.job_id].cell_id].append(row)
    loads: dict[int, float] = {}
    for cell_id, placed in by_cell.items():
        loads |= loads_of(cell_id, placed)
    return loads
