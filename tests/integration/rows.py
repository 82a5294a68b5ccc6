"""Helpers that create rows for tests that need a cell in PostgreSQL."""

from __future__ import annotations

from typing import Any

from quota.models import PriorityBand, Quota, Tenant
from quota.vocabulary.bands import DEFAULT_BANDS, band_of
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import NAMES, Vector, scale
from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.machines import machines
from scheduling.models import Cell, Job, JobSpec, Machine, Package, PackageTag
from scheduling.spec import parser
from scheduling.tasks import new_tasks

ME = system("test")
SMALL: Vector = (100, 2**26, 2**26, 0, 0, 1)
LARGE: Vector = (64_000, 2**38, 2**42, 0, 0, 10_000)


def a_cell(name: str = "cc") -> Cell:
    for band in DEFAULT_BANDS:
        PriorityBand.objects.get_or_create(
            name=band.name,
            defaults={"low": band.low, "high": band.high, "prod": band.prod, "preempts_within": band.preempts_within},
        )
    return Cell.objects.create(name=name)


def a_tenant(name: str = "ubar") -> Tenant:
    return Tenant.objects.get_or_create(name=name)[0]


def grant(tenant: Tenant, cell: Cell, band: str, amounts: Vector = LARGE) -> Quota:
    return Quota.objects.create(
        tenant=tenant,
        cell=cell.name,
        band=PriorityBand.objects.get(name=band),
        amounts=list(amounts),
        starts_at="2020-01-01T00:00:00Z",
    )


def a_machine(cell: Cell, hostname: str = "m1", *, capacity: Vector = LARGE, rack: str = "r1") -> Machine:
    with journal.write(cell.id, ME) as entry:
        machine = Machine.objects.create(
            cell=cell,
            hostname=hostname,
            address="127.0.0.1",
            capacity=list(capacity),
            rack=rack,
            power_domain="p1",
            secret_digest="0" * 64,  # no secret has this digest
        )
        entry.append(
            events.MachineSet(
                machine_id=machine.id,
                hostname=hostname,
                address=machine.address,
                capacity=capacity,
                rack=rack,
                power_domain="p1",
            )
        )
    return machine


def a_package(
    cell: Cell, tenant: Tenant, *, name: str = "tool", digest: str = "sha256:" + "0" * 64, tag: str = "latest"
) -> Package:
    """Create only the rows of a package and its tag. The package store has no file for them."""
    package = Package.objects.create(
        cell=cell, tenant=tenant, name=name, digest=digest, size_bytes=1, format="tar", uploaded_by="test"
    )
    PackageTag.objects.create(package=package, cell=cell, tenant=tenant, name=name, tag=tag, moved_by="test")
    return package


def a_job(
    cell: Cell,
    tenant: Tenant,
    name: str = "jfoo",
    *,
    tasks: int = 3,
    priority: int = 200,
    limit: Vector = SMALL,
    latency_sensitive: bool = True,
) -> Job:
    read = parser.parse(
        {
            "name": name,
            "tasks": tasks,
            "priority": priority,
            "appclass": "latency-sensitive" if latency_sensitive else "batch",
            "task": {
                "command": ["sleep", "infinity"],
                "ports": ["http"],
                "limit": {key: f"{limit[0]}m" if key == "cpu" else limit[i] for i, key in enumerate(NAMES[:3])},
            },
        }
    )
    groups = read.groups()
    with journal.write(cell.id, ME) as entry:
        job = Job.objects.create(
            cell=cell,
            tenant=tenant,
            name=name,
            priority=priority,
            band=band_of(priority).name,
            latency_sensitive=latency_sensitive,
            port_names=["http"],
            requested=list(scale(limit, tasks)),
            submitted_by="test",
        )
        JobSpec.objects.create(job=job, version=1, spec=read.to_json(), digest=read.digest(), actor="test")
        entry.append(
            events.JobSubmitted(
                job_id=job.id,
                uid=job.uid.hex,
                tenant_id=tenant.id,
                tenant=tenant.name,
                name=name,
                job_kind="job",
                priority=priority,
                latency_sensitive=latency_sensitive,
                spec_version=1,
                groups=groups,
                port_names=("http",),
            )
        )
        new_tasks.tasks_create(entry, [new_tasks.NewTasks(job.id, groups, 1)])
    return job


def machine_set(machine: Machine, **facts: Any) -> None:
    """Change facts of a machine, such as its attributes, as the link does after a hello of its Borglet."""
    with journal.write(machine.cell_id, ME) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        machines.store_facts(entry, row, facts, extra=machine.cell.extra_resources)
    machine.refresh_from_db()


def machine_down(machine: Machine) -> None:
    """Mark a machine down, as the master does when the machine is silent."""
    machines.machines_down(principal=ME, cell_id=machine.cell_id, machine_ids=[machine.id], reason="silent")
    machine.refresh_from_db()


def machine_up(machine: Machine) -> None:
    """Mark a machine up, as the link does when the machine answers again."""
    with journal.write(machine.cell_id, ME) as entry:
        machines.machines_return(entry, [machine.id], "it answers again")
    machine.refresh_from_db()
