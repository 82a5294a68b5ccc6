"""Tests of cron jobs through REST, borgctl, pages, notices, metrics, the deletion of a cell, and erasure."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from quota.models import Notice, Quota
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Role, system
from scheduling.cron import cron_jobs, due_runs, run_history
from scheduling.jobs.notices.event_notices import events_notify
from scheduling.journal import journal
from scheduling.models import CronJob, Event, Job
from tests.integration import cron_rows, world

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/api/v1/cells/cc/cron-jobs/ubar/nightly/"


@pytest.fixture
def rest(tenant, ann) -> Client:
    return world.bearer(world.a_user("ann"))


def put(rest: Client, path: str = PATH, **changes: Any) -> Any:
    return rest.put(path, json.dumps(cron_rows.a_cron_file(**changes)), content_type="application/json")


def post(rest: Client, verb: str, **body: Any) -> Any:
    return rest.post(PATH + verb, body, content_type="application/json")


def test_rest_creates_changes_suspends_runs_and_deletes(cell, rest) -> None:
    plan = rest.post(PATH + "plan/", json.dumps(cron_rows.a_cron_file()), content_type="application/json").json()
    assert (plan["outcome"], plan["job_revision"], CronJob.objects.count()) == ("submitted", "new", 0)
    assert put(rest, PATH + "?dry_run=1").json()["outcome"] == "submitted"
    assert CronJob.objects.count() == 0
    assert put(rest).json()["outcome"] == "submitted"
    assert put(rest).json()["outcome"] == "unchanged"
    found = rest.get(PATH).json()
    assert (found["owner"], found["suspended"], len(found["next_times"])) == ("ann", False, 5)
    assert found["job"]["task"]["command"] == ["serve"]
    changed = rest.put(
        PATH,
        json.dumps(cron_rows.a_cron_file(schedule="0 5 * * *")),
        content_type="application/json",
        headers={"If-Match": found["job_revision"]},
    )
    assert changed.json()["outcome"] == "updated"
    assert rest.post(PATH + "suspend/?dry_run=1").json()["suspended"] is True
    assert rest.get(PATH).json()["suspended"] is False
    assert rest.post(PATH + "suspend/").json()["next_times"] == []
    assert post(rest, "run/").json()["job"].startswith("nightly-")
    assert rest.post(PATH + "resume/").json()["suspended"] is False
    assert [run["by"] for run in rest.get(PATH + "runs/").json()["results"]] == ["ann"]
    (listed,) = rest.get("/api/v1/cells/cc/cron-jobs/?tenant=ubar").json()["results"]
    assert (listed["name"], listed["last_outcome"]) == ("nightly", "submitted")
    assert rest.delete(PATH).status_code == 204
    assert rest.get(PATH).status_code == 404
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "field", "cure"),
    [
        ({"schedule": "30 2 30 2 *"}, "schedule", "never runs"),
        ({"schedule": "* * *"}, "schedule", "give five"),
        ({"schedule": "61 * * * *"}, "schedule", "give 0 to 59"),
        ({"schedule": "0 0 * FOO *"}, "schedule", "one of JAN"),
        ({"time_zone": "Mars/Base"}, "time_zone", "Europe/Berlin"),
        ({"overlap": "queue"}, "overlap", "give one of allow"),
        ({"catch_up_s": 1}, "catch_up_s", "from 60"),
        ({"keep_runs": 0}, "keep_runs", "from 1"),
        ({"labels": {"service": "web"}}, "labels.service", "job.labels"),
        ({"colour": "red"}, "colour", "unknown field"),
        ({"job": {"start_after": "2030-01-01T00:00:00Z"}}, "job.start_after", "cron line"),
        ({"job": {"kind": "AllocSet"}}, "job.kind", "always a job"),
        ({"job": {"labels": {"cron": "x"}}}, "job.labels.cron", "remove it"),
        ({"job": {"tasks": 0}}, "job.tasks", "not possible"),
        ({"job": {"task": {"command": []}}}, "job.task.command", "give the program"),
    ],
)
def test_bad_input_names_the_field_and_changes_nothing(cell, rest, changes, field, cure) -> None:
    answer = put(rest, **changes)
    assert answer.status_code in (400, 422), answer.json()
    assert cure in answer.json()["fields"][field]
    assert CronJob.objects.count() == 0


def test_a_viewer_sees_masked_values_and_changes_nothing(cell, rest, tenant) -> None:
    job = world.with_task(env={"DB_PASSWORD": "hunter2"}, plain_env=["DB_PASSWORD"])
    put(rest, job={"task": job["task"]})
    world.a_user("vic", tenant=tenant, role=Role.VIEWER)
    viewer = world.bearer(world.a_user("vic"))
    assert "hunter2" not in viewer.get(PATH).content.decode()
    for verb in ("suspend/", "resume/", "run/"):
        assert post(viewer, verb).status_code == 403
    assert viewer.delete(PATH).status_code == 403
    stranger = world.bearer(world.a_user("eve"))
    assert stranger.get(PATH).status_code == 404
    assert stranger.get("/api/v1/cells/cc/cron-jobs/").json()["results"] == []


def test_the_tenant_is_notified_of_missed_and_rejected_runs(cell, ann) -> None:
    missed, skipped = cron_rows.apply(ann, cell), cron_rows.apply(ann, cell, "other", overlap="forbid")
    cron_rows.due(missed, ago_s=7200)
    for ago_s in (50, 10):
        cron_rows.due(skipped, ago_s=ago_s)
        due_runs.runs_submit_due(cell.pk)
    events_notify(cell)
    (notice,) = Notice.objects.filter(kind="cron.missed")
    assert notice.subject == "A run of cron job nightly in cell cc was not started"
    assert "catch_up_s allows 600 s" in notice.text
    assert notice.url.endswith("/cron/cc/ubar/nightly/")
    events_notify(cell)
    assert Notice.objects.filter(kind="cron.missed").count() == 1


def test_the_tenant_is_notified_once_of_runs_that_fail_again_and_again(cell, ann) -> None:
    def turn(template: dict[str, Any], minutes: int) -> int:
        CronJob.objects.update(template=template, next_at=start + dt.timedelta(minutes=minutes))
        due_runs.runs_submit_due(cell.pk)
        events_notify(cell)
        return Notice.objects.filter(kind="cron.missed").count()

    row = cron_rows.apply(ann, cell)
    start = timezone.now().replace(second=0, microsecond=0) - dt.timedelta(minutes=8)
    wrong = {**row.template, "priority": 999}
    assert [turn(wrong, 0), turn(wrong, 1), turn(wrong, 2)] == [1, 1, 1]
    assert [turn(row.template, 3), turn(wrong, 4), turn(wrong, 5)] == [1, 2, 2]
    assert [outcome for outcome, _ in cron_rows.runs(row)] == ["rejected"] * 3 + ["submitted"] + ["rejected"] * 2
    assert turn({"task": 5}, 6) == 3, "another reason is another notice"


def test_a_history_of_one_run_gives_one_notice_too(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(run_history, "_is_cut", lambda *_: True)
    row = cron_rows.apply(ann, cell, keep_runs=1)
    start = timezone.now().replace(second=0, microsecond=0) - dt.timedelta(minutes=8)
    for minutes in range(3):
        CronJob.objects.update(
            template={**row.template, "priority": 999}, next_at=start + dt.timedelta(minutes=minutes)
        )
        due_runs.runs_submit_due(cell.pk)
        events_notify(cell)
    assert Notice.objects.filter(kind="cron.missed").count() == 1


def test_the_metric_of_lag_shows_how_late_a_run_is(cell, ann) -> None:
    from scheduling.master.metrics import CellCollector

    def lag() -> float:
        (family,) = [family for family in CellCollector().collect() if family.name == "borg_cron_lag_seconds"]
        (sample,) = family.samples
        return float(sample.value)

    row = cron_rows.apply(ann, cell)
    assert lag() == 0.0
    cron_rows.due(row, ago_s=45)
    assert 45 <= lag() < 60


def test_pages_show_cron_jobs_and_their_buttons_work(cell, ann, client) -> None:
    row = cron_rows.apply(ann, cell, time_zone="Europe/Berlin")
    client.force_login(world.a_user("ann"))
    assert "Europe/Berlin" in client.get("/cron/").content.decode()
    path = "/cron/cc/ubar/nightly/"
    assert "Run now" in client.get(path).content.decode()
    assert client.post(path + "run/", follow=True).status_code == 200
    client.post(path + "suspend/")
    row.refresh_from_db()
    assert row.suspended_at is not None
    text = client.get(path).content.decode()
    assert "Resume" in text
    assert "submitted" in text
    client.post(path + "resume/")
    row.refresh_from_db()
    assert row.suspended_at is None
    assert "<dd>100</dd>" in text  # keep_runs
    assert f'href="/jobs/cc/ubar/{Job.objects.get().name}/"' in text
    assert "- serve" in text  # the job of a run
    client.force_login(world.a_user("eve"))
    assert client.get(path).status_code == 404
    assert client.post(path + "delete/").status_code == 404
    client.force_login(world.a_user("ann"))
    assert "was deleted" in client.post(path + "delete/", {"reason": "old"}, follow=True).content.decode()
    assert CronJob.objects.count() == 0
    assert Event.objects.get(kind="cron.deleted").data["reason"] == "old"


def test_the_deletion_of_a_cell_deletes_its_cron_jobs(ann, cell, monkeypatch) -> None:
    from scheduling.cells.deletion import cell_delete, cell_deletion

    for name in ("nightly", "hourly", "weekly"):
        cron_rows.apply(ann, cell, name)
    Quota.objects.all().delete()
    found = cell_deletion(principal=system("test"), cell=cell)
    assert (found.cron_jobs, found.tenants) == (3, ["ubar"])
    with pytest.raises(
        Conflict, match="3 cron jobs that would submit further jobs; suspend or delete them"
    ) as rejected:
        cell_delete(principal=system("test"), cell=cell, confirm="cc")
    assert list(rejected.value.fields) == ["cron_jobs"]
    assert CronJob.objects.count() == 3
    for row in CronJob.objects.all():
        cron_jobs.cron_suspend(principal=ann, cron_job=row)
    monkeypatch.setattr(journal, "CHUNK", 2)
    cell_delete(principal=system("test"), cell=cell, confirm="cc")
    assert CronJob.objects.count() == 0
    deleted = Event.objects.filter(kind="cron.deleted").values_list("revision", flat=True)
    assert sorted(Counter(deleted).values()) == [1, 2]
