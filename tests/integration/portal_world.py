"""Rows for tests of pages: a cell, two tenants, users in every role, and a job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.test import Client

from quota.models import Membership, Tenant
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.states import Observation
from scheduling.journal import journal
from scheduling.models import Cell, Job, Machine, Task
from scheduling.tasks import reported_states, transitions
from tests.integration import rows

PASSWORD = "correct horse battery"


@dataclass
class World:
    cell: Cell
    tenant: Tenant
    machine: Machine
    job: Job


def make() -> World:
    """Create a cell, tenant ubar with three users and a job, tenant other with the user `stranger`, and an SRE."""
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    other = rows.a_tenant("other")
    for name, role in (("viewer", "viewer"), ("operator", "operator"), ("owner", "owner")):
        Membership.objects.create(tenant=tenant, user=person(name), role=role)
    Membership.objects.create(tenant=other, user=person("stranger"), role="owner")
    person("sre", is_staff=True, is_superuser=True)
    rows.grant(tenant, cell, "production")
    machine = rows.a_machine(cell)
    job = rows.a_job(cell, tenant)
    place(job, 0, machine)
    rows.a_package(cell, tenant)
    return World(cell, tenant, machine, job)


def person(name: str, **more: Any):
    return get_user_model().objects.create_user(name, password=PASSWORD, **more)


def signed_in(name: str) -> Client:
    client = Client()
    client.force_login(get_user_model().objects.get(username=name), backend=_BACKEND)
    return client


def place(job: Job, index: int, machine: Machine, *, port: int = 20000) -> None:
    with journal.write(job.cell_id, rows.ME) as entry:
        done = transitions.tasks_place(entry, [Assignment(job.id, index, machine.id, (port + index,))])
    assert len(done) == 1


def report(job: Job, index: int, *, phase: str = "up", up: bool = True) -> None:
    task = Task.objects.get(job=job, index=index)
    seen = Observation(task.id, task.incarnation, phase, "healthy" if up else "unknown", up)
    with journal.write(job.cell_id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [seen])


_BACKEND = "django.contrib.auth.backends.ModelBackend"
