"""Tests of commands for several jobs against a real web process: `borgctl apply`, and verbs with `--selector`."""

from __future__ import annotations

import json

import pytest

from quota.models import Quota, Tenant
from quota.vocabulary.permissions import system
from scheduling.jobs import submit_and_kill
from scheduling.models import Cell, Job
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ann(tmp_path, shared_portal) -> Cli:
    cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)


def test_apply_brings_a_folder_of_jobs_to_its_state(ann) -> None:
    folder = ann.folder / "shop"
    (folder / "inner").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "ignored.json").write_text("{")
    (folder / "web.json").write_text(json.dumps(world.a_file()))
    (folder / "inner" / "pad.json").write_text(
        json.dumps({"kind": "AllocSet", "name": "pad", "tasks": 1, "task": {"limit": {"cpu": "1"}}})
    )
    helper = {"name": "helper", "alloc_set": "pad", "task": {"command": ["x"], "limit": {"cpu": "100m"}}}
    (folder / "helper.json").write_text(json.dumps(helper))

    planned = ann.json("apply", "shop", "--dry-run")
    assert [(row["job"], row["change"]) for row in planned["jobs"]] == [
        ("cc/ubar/pad", "submit"),
        ("cc/ubar/helper", "submit"),
        ("cc/ubar/web", "submit"),
    ]
    assert not Job.objects.exists()
    assert "Make these changes?" in ann.run("apply", "shop").stderr
    assert not Job.objects.exists()
    assert ann.out("apply", "shop", "--yes").endswith("Done: 3 jobs changed.\n")
    assert set(Job.objects.values_list("labels__applied-by", flat=True)) == {"shop"}
    assert "unchanged" in ann.out("apply", "shop")

    (folder / "web.json").write_text(json.dumps(world.a_file(tasks=4)))
    (folder / "helper.json").unlink()
    done = ann.run("apply", "shop", "--yes")
    assert "kept, although they have no file any more: cc/ubar/helper; `--owner shop --prune` kills them" in done.stderr
    assert Job.objects.get(name="web").tasks_total == 4
    assert "give --owner" in ann.failing("apply", "shop", "--yes", "--prune", status=2)[0]
    ann.out("apply", "shop", "--yes", "--prune", "--owner", "shop")
    assert Job.objects.get(name="helper").state == "dead"

    (folder / "web.json").write_text(json.dumps(world.a_file(tasks=5)))
    (folder / "bad.json").write_text(json.dumps({"name": "bad", "task": {}}))
    message, document = ann.failing("apply", "shop", "--yes")
    assert "nothing is changed" in message
    assert list(document["fields"]) == ["shop/bad.json"]
    assert Job.objects.get(name="web").tasks_total == 4
    (folder / "bad.json").write_text(json.dumps(world.a_file()))
    (folder / "worse.json").write_text("{")
    fields = ann.failing("apply", "shop", "--yes")[1]["fields"]
    assert "is also in" in fields["shop/web.json"]
    assert "not valid JSON" in fields["shop/worse.json"]
    assert "is not a folder" in ann.failing("apply", "shop/web.json", "--owner", "x", "--dry-run", status=2)[0]


def test_verbs_with_a_selector_act_on_all_matching_jobs(ann) -> None:
    for name, app in (("web", "shop"), ("pay", "shop"), ("log", "other")):
        ann.out("submit", ann.file(world.a_file(name, labels={"app": app})))
    assert "Kill 2 jobs (web, pay)?" in ann.run("kill", "-l", "app=shop").stderr
    assert Job.objects.filter(state="dead").count() == 0
    answer = ann.json("kill", "-l", "app=shop", "--yes")
    assert [one["killed"] for one in answer] == [3, 3]
    assert list(Job.objects.exclude(state="dead").values_list("name", flat=True)) == ["log"]
    assert ann.json("pause", "-l", "app=other", "--yes") == [], "it is not being updated"
    message, document = ann.failing("restart", "-l", "app=other", "--yes")
    assert "1 job of 1 could not be changed" in message
    assert list(document["fields"]) == ["cc/ubar/log"]
    assert document["changed"] == []
    assert "the selector is empty" in ann.failing("kill", "-l", " ", "--yes", status=2)[0]
    assert ann.failing("restart", "-l", "app=none", "--yes")[1]["code"] == "no-match"
    assert "either a JOB or --selector" in ann.failing("kill", status=2)[0]
    assert "either a JOB or --selector" in ann.failing("kill", "log", "-l", "app=other", status=2)[0]
    assert "--task belongs to one job" in ann.failing("kill", "-t", "1", "-l", "app=other", status=2)[0]


def test_apply_submits_jobs_behind_the_jobs_that_they_wait_for(ann) -> None:
    folder = ann.folder / "steps"
    folder.mkdir()
    for name, after in (("a-last", "middle"), ("middle", "z-first"), ("z-first", None)):
        file = world.a_file(name) | ({"after": {after: "succeeded"}} if after else {})
        (folder / f"{name}.json").write_text(json.dumps(file))
    planned = ann.json("apply", "steps", "--dry-run")
    assert [row["job"] for row in planned["jobs"]] == ["cc/ubar/z-first", "cc/ubar/middle", "cc/ubar/a-last"]
    ann.out("apply", "steps", "--yes")
    assert {job.name: job.waiting for job in Job.objects.all()} == {"z-first": False, "middle": True, "a-last": True}
    shown = ann.out("status", "middle")
    assert "z-first is succeeded" in shown
    assert "The tasks wait until job z-first has succeeded (after)." in shown
    assert "unchanged" in ann.out("apply", "steps")

    (folder / "middle.json").write_text(json.dumps(world.a_file("middle", after={"none": "ended"}, tasks=4)))
    fields = ann.failing("apply", "steps", "--yes")[1]["fields"]
    assert "an update cannot let a job wait for none" in next(iter(fields.values()))


def test_apply_does_not_submit_a_job_behind_one_that_was_rejected(ann) -> None:
    """Apply a folder whose jobs together exceed the quota. `report` must not start on the result of yesterday's job."""
    cell, tenant = Cell.objects.get(), Tenant.objects.get()
    old = world.submit(world.principal("ann", tenant=tenant), cell, world.a_file("load"))
    submit_and_kill.job_kill(principal=system("test"), job=Job.objects.select_related("cell", "tenant").get(pk=old.pk))
    Quota.objects.update(amounts=[400, *Quota.objects.get().amounts[1:]])
    folder = ann.folder / "late"
    folder.mkdir()
    for name, changes in (("first", {}), ("load", {}), ("report", {"priority": 0, "after": {"load": "ended"}})):
        (folder / f"{name}.json").write_text(json.dumps(world.a_file(name, **changes)))
    done = ann.run("apply", "late", "--yes")
    assert "cc/ubar/report waits for cc/ubar/load, which was rejected, so it was not submitted" in done.stderr
    assert set(Job.objects.exclude(state="dead").values_list("name", flat=True)) == {"first"}
