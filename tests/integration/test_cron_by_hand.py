"""Tests of runs of cron jobs that a user starts by hand."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.test import Client

from quota.models import Quota
from quota.vocabulary.errors import Conflict
from scheduling.cron import cron_jobs
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.models import CronJob, CronRun, Job, Task
from scheduling.policy import brake_rules
from tests.integration import cron_rows, world

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/api/v1/cells/cc/cron-jobs/ubar/nightly/"
PAGE = "/cron/cc/ubar/nightly/"


@pytest.fixture
def rest(tenant, ann) -> Client:
    return world.bearer(world.a_user("ann"))


def post(rest: Client, verb: str, **body: Any) -> Any:
    return rest.post(PATH + verb, body, content_type="application/json")


def test_a_run_by_hand_that_stops_many_tasks_needs_a_confirmation(
    cell, ann, rest, client, machine, monkeypatch
) -> None:
    row = cron_rows.apply(ann, cell, overlap="replace")
    job = cron_jobs.cron_run_now(principal=ann, cron_job=row).job
    world.bring_up(job, machine)
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 2)
    answer = post(rest, "run/")
    assert (answer.status_code, answer.json()["code"]) == (409, "confirm")
    assert "repeat the request with confirm=3" in answer.json()["fields"]["confirm"]
    assert post(rest, "run/", confirm=2).status_code == 409
    client.force_login(world.a_user("ann"))
    text = client.get(PAGE).content.decode()
    assert "3 running tasks will be stopped" in text
    assert '<input type="hidden" name="confirm" value="3">' in text
    assert Task.objects.filter(state="running").count() == 3  # nothing was stopped
    time.sleep(1.1)  # the second run needs another name
    client.post(PAGE + "run/", {"confirm": "3"})
    assert CronRun.objects.filter(outcome="submitted").count() == 2
    assert Task.objects.filter(state="running").count() == 0


def test_two_runs_by_hand_in_one_second_get_a_clear_error(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)

    def several() -> None:
        for _ in range(8):  # at least two of them are in the same second
            cron_jobs.cron_run_now(principal=ann, cron_job=row)

    with pytest.raises(Conflict, match="try again after a second") as rejected:
        several()
    assert rejected.value.code == "cron-run-exists"


def test_the_history_records_runs_by_hand_that_are_not_submitted(cell, ann, rest) -> None:
    row = cron_rows.apply(ann, cell, overlap="forbid")
    assert post(rest, "run/").status_code == 200
    assert post(rest, "run/?dry_run=1").status_code == 409
    assert CronRun.objects.count() == 1
    assert post(rest, "run/").json()["code"] == "cron-overlap"
    job_kill(principal=ann, job=Job.objects.get())
    Quota.objects.all().delete()
    CronJob.objects.update(template={**row.template, "priority": 200})
    rejected = post(rest, "run/")
    assert rejected.status_code in (403, 409, 422)
    assert cron_rows.runs(row) == [
        ("submitted", ""),
        ("skipped", "cron-overlap"),
        ("rejected", rejected.json()["code"]),
    ]
    assert set(CronRun.objects.values_list("by", flat=True)) == {"ann"}
