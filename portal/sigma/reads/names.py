"""Names of jobs, tasks, machines and services as pages show them (§2.6). Nothing here asks a resolver."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings

from naming.names import JobName, TaskName
from scheduling.models import Job, Task

SERVICE = "service"  # the label that puts a job behind a service's name
DNS_PORT = 53


@dataclass(frozen=True, slots=True)
class PortName:
    """A port and the name that SRV is asked for. `number`: of one task, 0 where the name is a job's."""

    port: str
    dns: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class JobNames:
    """`first`, `last`: DNS names of its first and last task. `dig`, `borgctl`: how to ask, to be copied."""

    path: str
    dns: str
    ports: Sequence[PortName]
    first: str
    last: str
    ttl_s: int
    service: str
    dig: str
    borgctl: str


@dataclass(frozen=True, slots=True)
class TaskNames:
    """`address`, `machine`: empty while the task is not placed; `machine` is a DNS name."""

    path: str
    dns: str
    ports: Sequence[PortName]
    address: str
    machine: str
    job: str
    dig: str
    borgctl: str


def names_of_job(job: Job) -> JobNames:
    """`job` with its cell and tenant. No query."""
    name = JobName(job.cell.name, job.tenant.name, job.name)
    dns, last = name.dns(settings.BORG_ZONE), max(job.tasks_total - 1, 0)
    ports = [PortName(port, _srv(port, dns)) for port in job.port_names]
    asked = f"{ports[0].dns} SRV" if ports else f"{dns} A"
    return JobNames(
        path=name.path,
        dns=dns,
        ports=ports,
        first=name.task(0).dns(settings.BORG_ZONE),
        last=name.task(last).dns(settings.BORG_ZONE),
        ttl_s=settings.BORG_DNS_TTL,
        service=job.labels.get(SERVICE, ""),
        dig=dig(asked),
        borgctl=f"borgctl resolve {name.path} --watch",
    )


def names_of_task(job: Job, task: Task, ports: Sequence[tuple[str, int]]) -> TaskNames:
    """`ports`: by name, as the task's version of the spec has them. No query."""
    name = TaskName(job.cell.name, job.tenant.name, job.name, task.index)
    dns, machine = name.dns(settings.BORG_ZONE), task.machine
    return TaskNames(
        path=name.path,
        dns=dns,
        ports=[PortName(port, _srv(port, dns), number) for port, number in ports],
        address=(task.address or machine.address) if machine else "",
        machine=machine_dns(job.cell.name, machine.hostname) if machine else "",
        job=name.of_job.dns(settings.BORG_ZONE),
        dig=dig(f"{dns} A"),
        borgctl=f"borgctl resolve {name.path}",
    )


def machine_dns(cell: str, hostname: str) -> str:
    return f"{hostname.lower()}.machine.{cell}.{settings.BORG_ZONE}"


def dig(question: str) -> str:
    """A command that asks this installation's resolver, where its address says where that is."""
    host, port = settings.BORG_DNS_HOST, settings.BORG_DNS_PORT
    at = "" if ipaddress.ip_address(host).is_unspecified else f" @{host}"
    return f"dig{at}{f' -p {port}' if port != DNS_PORT else ''} +short {question}"


def _srv(port: str, dns: str) -> str:
    return f"_{port}._tcp.{dns}"
