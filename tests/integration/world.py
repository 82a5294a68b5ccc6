"""Helpers for tests of jobs: users, tokens, job files, and steps such as placing and reporting."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AbstractBaseUser
from django.test import Client

from quota.models import Membership, Tenant
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import GENERAL_SCOPES, Principal, Role, Scope, system
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.states import Observation
from scheduling.jobs import submit_and_kill
from scheduling.journal import journal
from scheduling.models import Cell, Job, Machine, Task
from scheduling.spec import job_spec, parser
from scheduling.tasks import reported_states, transitions

ALL_SCOPES = GENERAL_SCOPES


def a_file(name: str = "web", **changes: Any) -> dict[str, Any]:
    """Return the job file of a small production service with three tasks."""
    file: dict[str, Any] = {
        "name": name,
        "priority": "production",
        "tasks": 3,
        "task": {"command": ["serve"], "ports": ["http"], "limit": {"cpu": "100m", "ram": "64Mi", "disk": "64Mi"}},
    }
    return file | changes


def with_task(name: str = "web", *, tasks: int = 3, **changes: Any) -> dict[str, Any]:
    file = a_file(name, tasks=tasks)
    return file | {"task": file["task"] | changes}


def a_user(name: str, *, tenant: Tenant | None = None, role: Role = Role.OWNER, sre: bool = False) -> AbstractBaseUser:
    user, _ = get_user_model().objects.get_or_create(username=name, defaults={"is_staff": sre})
    if tenant is not None:
        Membership.objects.get_or_create(user=user, tenant=tenant, defaults={"role": role.value})
    return user


def principal(name: str, **who: Any) -> Principal:
    return principal_of_user(a_user(name, **who), request_id="r-1")


def bearer(user: AbstractBaseUser, *, scopes: Iterable[Scope] = ALL_SCOPES, tenant: Tenant | None = None) -> Client:
    _, secret = token_issue(
        principal=system("test"), user=user, name="test", scopes=[s.value for s in scopes], tenant=tenant
    )
    return Client(headers={"authorization": f"Bearer {secret}"})


def submit(who: Principal, cell: Cell, file: dict[str, Any], *, tenant: str = "ubar") -> Job:
    read = submit_and_kill.spec_for(principal=who, cell=cell, file=file, tenant=tenant)
    submission = submit_and_kill.job_submit(principal=who, cell=cell, job_spec=read)
    assert submission.job is not None
    return submission.job


def read(cell: Cell, file: dict[str, Any], *, tenant: str = "ubar") -> job_spec.JobSpecification:
    return parser.parse(file, limits=submit_and_kill.spec_limits(cell)).at(cell=cell.name, tenant=tenant)


def place(job: Job, machine: Machine, *indexes: int) -> None:
    """Place pending tasks of the job on a machine, with ports that no earlier incarnation holds."""
    waiting = Task.objects.filter(job=job, index__in=indexes).values_list("index", "incarnation")
    with journal.write(job.cell_id, system("test")) as entry:
        transitions.tasks_place(
            entry,
            [
                Assignment(job.id, index, machine.id, ports=(20000 + index + 1000 * incarnation,), score={"fit": 0.5})
                for index, incarnation in waiting
            ],
        )


def report(job: Job, *indexes: int, up: bool = True, restarts: int = 0) -> None:
    """Record what Borglets report about running tasks: whether they are up, and how often they were restarted."""
    running = Task.objects.filter(job=job, index__in=indexes).values_list("id", "incarnation")
    with journal.write(job.cell_id, system("test")) as entry:
        reported_states.tasks_observe(
            entry,
            [
                Observation(task, incarnation, "up" if up else "backoff", "unknown", up=up, restarts=restarts)
                for task, incarnation in running
            ],
        )


def bring_up(job: Job, machine: Machine) -> None:
    """Place all pending tasks of the job on a machine, and record that they are up."""
    waiting = list(Task.objects.filter(job=job, state="pending").values_list("index", flat=True))
    place(job, machine, *waiting)
    report(job, *waiting)


def versions(job: Job) -> list[int]:
    return list(Task.objects.filter(job=job).order_by("index").values_list("spec_version", flat=True))
