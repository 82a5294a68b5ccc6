"""Tests of `/bns/`: members of the tenant and SREs get JSON. For all others the job does not exist."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from quota.models import Membership, Tenant
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Role
from scheduling.models import Cell, Job, Machine
from tests.integration.naming_rows import evict, place, report, use
from tests.integration.rows import a_cell, a_job, a_machine, a_tenant

pytestmark = pytest.mark.django_db(transaction=True)
JOB, SERVICE = "/bns/cc/ubar/jfoo", "/bns/cc/ubar/service/front"


@pytest.fixture
def job() -> Job:
    cell = a_cell()
    machine, job = a_machine(cell), a_job(cell, a_tenant())
    place(cell, job, machine, 0, 1)
    report(cell, job, 0)
    report(cell, job, 1, health="unhealthy")
    return job


def client(name: str, *, tenant: Tenant | None = None, role: Role = Role.VIEWER, staff: bool = False) -> Client:
    user = get_user_model().objects.create_user(name, is_staff=staff)
    if tenant is not None:
        Membership.objects.create(tenant=tenant, user=user, role=role.value)
    _, secret = token_issue(principal=principal_of_user(user), user=user, name="test", scopes=["read"])
    return Client(headers={"Authorization": f"Bearer {secret}"})


def get(caller: Client, path: str, status: int = 200) -> Any:
    response = caller.get(path)
    assert response.status_code == status, response.content
    return response.json()


@pytest.mark.parametrize("role", list(Role))
def test_a_member_sees_where_the_tasks_of_the_job_are(job: Job, role: Role) -> None:
    answer = get(client("ann", tenant=job.tenant, role=role), JOB)
    first, second = answer.pop("endpoints")
    revision = Cell.objects.get().revision
    assert answer == {
        "name": JOB,
        "dns": "jfoo.ubar.cc.borg.internal",
        "tasks": 3,
        "placed": 2,
        "serving": 1,
        "fail_open": False,
        "ttl_s": 5,
        "labels": {},
        "revision": revision,
        "history": 1,
    }
    assert first == {
        "name": f"{JOB}/0",
        "dns": "0.jfoo.ubar.cc.borg.internal",
        "index": 0,
        "state": "running",
        "phase": "up",
        "health": "healthy",
        "serving": True,
        "machine": "m1",
        "address": "127.0.0.1",
        "ports": {"http": 20_000},
        "weight": 1,
        "load": None,
        "ttl_s": 5,
        "revision": revision,
        "history": 1,
    }
    assert (second["index"], second["health"], second["serving"]) == (1, "unhealthy", False)


def test_one_task_is_the_same_as_in_its_job_with_or_without_a_final_slash(job: Job) -> None:
    ann = client("ann", tenant=job.tenant)
    assert get(ann, f"{JOB}/0") == get(ann, f"{JOB}/0/") == get(ann, f"{JOB}/")["endpoints"][0]


def test_a_pending_task_has_no_address(job: Job) -> None:
    answer = get(client("ann", tenant=job.tenant), f"{JOB}/2")
    assert (answer["state"], answer["address"], answer["machine"], answer["ports"]) == ("pending", "", "", {})
    assert not answer["serving"]


def test_a_task_that_awaits_the_first_answer_of_its_check_does_not_serve(job: Job) -> None:
    report(job.cell, job, 0, phase="up", health="unknown")
    assert not get(client("ann", tenant=job.tenant), f"{JOB}/0")["serving"]


def test_a_job_whose_only_task_is_unhealthy_fails_open(job: Job) -> None:
    evict(job.cell, job, 0)
    answer = get(client("ann", tenant=job.tenant), JOB)
    assert (answer["placed"], answer["serving"], answer["fail_open"]) == (1, 0, True)


def test_load_is_what_a_task_uses_now_of_its_limit(job: Job) -> None:
    ann = client("ann", tenant=job.tenant)
    use(job, 0, cpu_milli=150)
    assert [one["load"] for one in get(ann, JOB)["endpoints"]] == [1.5, None]
    use(job, 0, cpu_milli=50, incarnation=2)  # a report about another incarnation
    assert get(ann, f"{JOB}/0")["load"] is None


def test_a_service_is_all_tasks_of_its_jobs(job: Job) -> None:
    canary = a_job(job.cell, job.tenant, "canary")
    foreign = a_job(job.cell, a_tenant("other"), "web")
    machine = Machine.objects.get()
    place(job.cell, canary, machine, 0, ports=21_000)
    place(job.cell, foreign, machine, 0, ports=22_000)
    Job.objects.update(labels={"service": "front"})
    Job.objects.filter(pk=canary.pk).update(published={"ttl_s": 2, "weights": [[0, 9, 3]]})
    ann = client("ann", tenant=job.tenant)
    answer = get(ann, SERVICE)
    assert answer["name"] == SERVICE
    assert answer["dns"] == "front.service.ubar.cc.borg.internal"
    assert answer["jobs"] == [JOB, "/bns/cc/ubar/canary"]
    assert (answer["placed"], answer["serving"], answer["fail_open"], answer["ttl_s"]) == (3, 1, False, 2)
    assert [(one["name"], one["weight"]) for one in answer["endpoints"]] == [
        (f"{JOB}/0", 1),
        (f"{JOB}/1", 1),
        ("/bns/cc/ubar/canary/0", 3),
    ]
    assert [one["ttl_s"] for one in answer["endpoints"]] == [5, 5, 2]
    assert get(ann, "/bns/cc/ubar/service/none", 404)["code"] == "not-found"


def test_a_service_fails_open_only_where_none_of_its_jobs_serves(job: Job) -> None:
    canary = a_job(job.cell, job.tenant, "canary")
    place(job.cell, canary, Machine.objects.get(), 0, ports=21_000)
    Job.objects.update(labels={"service": "front"})
    ann = client("ann", tenant=job.tenant)
    assert get(ann, "/bns/cc/ubar/canary")["fail_open"]
    assert not get(ann, SERVICE)["fail_open"]
    evict(job.cell, job, 0)
    assert get(ann, SERVICE)["fail_open"]


def test_a_machine_is_seen_by_anyone_who_sees_the_cell(job: Job) -> None:
    answer = get(client("eve"), "/bns/cc/machine/m1")
    assert answer == {
        "name": "/bns/cc/machine/m1",
        "dns": "m1.machine.cc.borg.internal",
        "machine": "m1",
        "address": "127.0.0.1",
        "state": "up",
        "ttl_s": 5,
        "revision": Cell.objects.get().revision,
        "history": 1,
    }
    assert get(client("bob"), "/bns/cc/machine/m2", 404)["code"] == "not-found"


def test_strangers_cannot_tell_a_foreign_job_from_none(job: Job) -> None:
    bob = client("bob", tenant=a_tenant("other"))
    for path in (JOB, f"{JOB}/0", SERVICE, "/bns/cc/ubar/nope", "/bns/zz/ubar/jfoo", "/bns/cc/nobody/jfoo"):
        assert get(bob, path, 404)["code"] == "not-found"
    assert get(client("sre", staff=True), JOB)["placed"] == 2


def test_nobody_asks_without_a_token(job: Job) -> None:
    assert get(Client(), JOB, 401)["status"] == 401


@pytest.mark.parametrize(
    "path, field",
    [
        ("/bns/CC/ubar/jfoo", "cell"),
        ("/bns/cc/u_bar/jfoo", "tenant"),
        ("/bns/cc/ubar/-j", "job"),
        (f"{JOB}/01", "index"),
        (f"{JOB}/x", "index"),
        ("/bns/cc/ubar/service/F", "service"),
        ("/bns/cc/machine/m_1", "machine"),
    ],
)
def test_input_that_is_not_a_name_is_rejected_naming_the_field(job: Job, path: str, field: str) -> None:
    answer = get(client("ann", tenant=job.tenant), path, 422)
    assert answer["code"] == "invalid-name"
    assert list(answer["fields"]) == [field]


def test_a_job_costs_the_same_queries_whatever_its_size(job: Job, django_assert_max_num_queries: Any) -> None:
    ann = client("ann", tenant=job.tenant)
    get(ann, JOB)
    with django_assert_max_num_queries(5):
        get(ann, JOB)
