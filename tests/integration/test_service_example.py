"""The example `examples/shop` through the real path: `borgctl`, the web process and a master.

A service of two jobs and a canary track is applied, stopped, started and restarted. Selectors choose its jobs, tasks
and machines.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scheduling.master.loop import Master
from scheduling.models import Job, Machine, StoppedJob, Task
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = ["shop-orders", "shop-web", "shop-web-canary"]


def turn(master: Master) -> None:
    """Let a master place the pending tasks, and report all placed tasks as up."""
    master.run(0.0)
    for job in Job.objects.exclude(state="dead"):
        world.report(job, *Task.objects.filter(job=job, state="running").values_list("index", flat=True))


def live() -> dict[str, int]:
    return dict(Job.objects.exclude(state="dead").order_by("name").values_list("name", "tasks_up"))


def test_a_shop_with_two_jobs_and_a_canary_is_one_service(cell, tenant, tmp_path: Path, shared_portal) -> None:
    for number in range(3):
        rows.a_machine(cell, f"m{number}", rack=f"r{number}")
    ann: Cli = cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)
    sre = cli_world.of(tmp_path, shared_portal, "root", sre=True)
    master = Master(cell.id)
    shutil.copytree("examples/shop", ann.folder / "shop")
    planned = ann.out("service", "plan", "shop", "shop")
    assert planned.count("start") >= 3
    assert "Quota of band production" in planned
    ann.out("apply", "shop", "--yes")
    turn(master)
    assert live() == {"shop-orders": 2, "shop-web": 3, "shop-web-canary": 1}
    assert "cc/ubar/shop" in ann.out("service", "list")
    assert [row["state"] for row in ann.json("service", "list")] == ["healthy"]
    shown = ann.out("service", "show", "shop")
    assert "6 of 6 tasks running" in shown
    assert "track=canary" in shown

    # Selectors in lists
    assert {row["job"] for row in ann.json("tasks", "-l", "app=shop,track!=canary")} == {"shop-orders", "shop-web"}
    assert len(ann.json("tasks", "-l", "tier in (web)", "--state", "running")) == 4
    assert "ubar/shop-web-canary/0" in ann.out("tasks", "-l", "track=canary")
    assert [row["hostname"] for row in sre.json("machines", "-l", "rack in (r1,r2)", "--cell", "cc")] == ["m1", "m2"]
    message, document = ann.failing("status", "-l", "tier in (web")
    assert "at character 1 of the selector: its ')' is missing" in message
    assert list(document["fields"]) == ["selector"]

    # Selectors in verbs
    assert "Change to 2 tasks: 1 job (shop-web-canary)?" in ann.run("scale", "2", "-l", "track=canary").stderr
    assert [one["tasks"]["added"] for one in ann.json("scale", "2", "-l", "track=canary", "--yes")] == [1]
    ann.out("scale", "shop-web-canary", "3")
    assert "give a job and its new number" in ann.failing("scale", "shop-web", status=2)[0]
    assert ann.json("retry", "-l", "service=shop", "--yes") == [], "no task has failed"
    assert [one["outcome"] for one in ann.json("undo", "-l", "track=canary", "--yes")] == ["updated"]
    ann.out("scale", "shop-web-canary", "1")
    assert (
        "Drain 2 machines (m1, m2)?"
        in sre.run("machine", "drain", "-l", "rack in (r1,r2)", "--reason", "x", "--cell", "cc").stderr
    )
    sre.out("machine", "drain", "-l", "rack in (r1,r2)", "--reason", "x", "--cell", "cc", "--yes")
    assert set(Machine.objects.filter(state="draining").values_list("hostname", flat=True)) == {"m1", "m2"}
    sre.out("machine", "undrain", "-l", "rack!=r0", "--cell", "cc", "--yes")
    assert not Machine.objects.filter(state="draining").exists()
    turn(master)

    # The verbs of the service
    before = {job: ann.json("status", job)["spec"] for job in JOBS}
    asked = ann.run("service", "stop", "shop")
    assert "Stop 3 jobs of service cc/ubar/shop?" in asked.stderr
    assert "would be stopped" in asked.stdout
    assert live(), "nobody has confirmed it"
    answer = ann.json("service", "stop", "shop", "--yes", "--reason", "night")
    assert (answer["changed"], answer["refused"]) == (3, 0)
    assert live() == {}
    assert "stopped" in ann.out("service", "show", "shop")
    assert ann.json("service", "start", "shop", "--dry-run")["changed"] == 3
    ann.out("service", "start", "shop", "--yes")
    turn(master)
    assert list(live()) == JOBS
    assert {job: ann.json("status", job)["spec"] for job in JOBS} == before
    ann.out("service", "restart", "shop", "--yes", "--job", "shop-web-canary")
    ann.out("service", "stop", "shop", "--yes", "--job", "shop-orders")
    assert "1 stopped job was forgotten" in ann.out("service", "forget", "shop", "--yes")
    assert not StoppedJob.objects.exists()
    assert "has no job nothing" in ann.failing("service", "stop", "shop", "--yes", "--job", "nothing")[0]
    assert "no service" in ann.failing("service", "show", "other")[0]
