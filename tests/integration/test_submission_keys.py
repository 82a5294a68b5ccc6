"""Tests of `Idempotency-Key`: a submission that is repeated after a lost answer creates only one job."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client

from quota.models import Tenant
from quota.vocabulary.permissions import Role
from scheduling.jobs import submit_and_kill
from scheduling.models import Cell, Job
from tests.integration.world import a_file, a_user, bearer, principal

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/api/v1/cells/cc/jobs/"


@pytest.fixture
def ann(cell: Cell, tenant: Tenant) -> Client:
    return bearer(a_user("ann", tenant=tenant, role=Role.OPERATOR))


def _post(client: Client, file: dict[str, Any], key: str, **query: str) -> Any:
    return client.post(
        JOBS, file, content_type="application/json", headers={"Idempotency-Key": key}, query_params=query
    )


def _put(client: Client, file: dict[str, Any], key: str) -> Any:
    url = f"{JOBS}ubar/{file['name']}/"
    return client.put(url, file, content_type="application/json", headers={"Idempotency-Key": key})


@pytest.mark.parametrize("send", [_post, _put])
def test_a_retry_gets_the_same_answer_and_makes_nothing(ann: Client, send: Any) -> None:
    first, second = (send(ann, a_file("web"), "k1") for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert Job.objects.count() == 1


@pytest.mark.parametrize("send", [_post, _put])
def test_a_retry_after_the_job_has_ended_does_not_run_it_again(ann: Client, cell: Cell, send: Any) -> None:
    uid = send(ann, a_file("web"), "k1").json()["job"]["uid"]
    submit_and_kill.job_kill(principal=principal("ann"), job=Job.objects.get())
    again = send(ann, a_file("web"), "k1")
    assert (again.status_code, again.json()["job"]["uid"]) == (201, uid)
    assert Job.objects.count() == 1
    assert send(ann, a_file("web"), "k2").json()["job"]["uid"] != uid


def test_a_key_is_of_one_job(ann: Client) -> None:
    assert _post(ann, a_file("web"), "k1").status_code == 201
    for file in (a_file("other"), a_file("web", tasks=5)):
        answer = _post(ann, file, "k1")
        assert (answer.status_code, answer.json()["code"]) == (409, "key-used")
    assert list(Job.objects.values_list("name", flat=True)) == ["web"]


def test_a_rejected_submission_does_not_use_its_key(ann: Client, cell: Cell, tenant: Tenant) -> None:
    Tenant.objects.filter(pk=tenant.pk).update(max_jobs=0)
    assert _post(ann, a_file("web"), "k1").status_code == 403
    Tenant.objects.filter(pk=tenant.pk).update(max_jobs=10)
    assert _post(ann, a_file("web"), "k1").status_code == 201


def test_a_dry_run_does_not_use_its_key(ann: Client) -> None:
    assert _post(ann, a_file("web"), "k1", dry_run="1").status_code == 200
    assert _post(ann, a_file("other"), "k1").status_code == 201


@pytest.mark.parametrize("key", ["x" * 65, "tab\there", "ü"])
def test_a_key_that_cannot_be_kept_is_named(ann: Client, key: str) -> None:
    answer = _post(ann, a_file("web"), key)
    assert (answer.status_code, list(answer.json()["fields"])) == (422, ["Idempotency-Key"])
    assert not Job.objects.exists()


def test_a_retry_waits_for_a_first_attempt_that_is_still_being_committed(ann: Client, cell: Cell) -> None:
    """A client repeats a submission whose first attempt is still being committed. Both attempts get the same answer."""
    inside, over, answers = threading.Event(), threading.Event(), []

    def first() -> None:
        with transaction.atomic():
            answers.append(_post(ann, a_file("web"), "k1"))
            inside.set()
            over.wait(30.0)
        connection.close()

    def second() -> None:
        answers.append(_post(ann, a_file("web"), "k1"))
        connection.close()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(30.0)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive(), "the retry waits"
    over.set()
    for thread in threads:
        thread.join(30.0)
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert Job.objects.count() == 1
