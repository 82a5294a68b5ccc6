"""Tests of cron jobs with real processes: `borgctl`, the web process, and the processes of a master."""

from __future__ import annotations

from pathlib import Path

import pytest

from quota.models import Tenant
from scheduling.models import CronJob, Job
from tests.integration import cli_world, cron_rows, master_processes, world
from tests.integration.link_world import until

pytestmark = pytest.mark.django_db(transaction=True)
EXAMPLE = Path("examples/nightly-report.yaml")


@pytest.fixture
def ann_cli(tmp_path, shared_portal, cell, tenant: Tenant) -> cli_world.Cli:
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)


def test_the_example_runs_through_borgctl_and_a_process_of_the_master(tmp_path, ann_cli, cell) -> None:
    ann_cli.file(EXAMPLE.read_text(), "nightly.yaml")
    assert "it runs next at" in ann_cli.out("submit", "nightly.yaml")
    row = CronJob.objects.get()
    assert (row.name, row.time_zone, row.overlap, row.catch_up_s) == (
        "nightly-report",
        "Europe/Berlin",
        "forbid",
        14400,
    )
    at = cron_rows.due(row, ago_s=1.0)
    # The second scheduler of the cell is idle, and its process has a thread for cron jobs all the same.
    with master_processes.running(tmp_path, "cc.batch"):
        (job,) = until(lambda: cron_rows.jobs_of(row), what="submitted")
    assert job.name == f"nightly-report-{at:%Y%m%dt%H%Mz}"
    assert job.name in ann_cli.out("cron", "show", "nightly-report")


def test_a_killed_process_delays_no_run(tmp_path, cell, ann) -> None:
    row = cron_rows.apply(ann, cell, schedule="0 0 1 1 *", job={"tasks": 1})
    with master_processes.running(tmp_path, "cc.batch", "cc") as (idle, working):
        cron_rows.due(row, ago_s=61.0)  # the names of runs have minutes
        until(lambda: len(cron_rows.jobs_of(row)) == 1, what="submitted")
        idle.kill()
        idle.wait()
        cron_rows.due(row)
        until(lambda: len(cron_rows.jobs_of(row)) == 2, what="submitted by the other process")
        working.kill()
        working.wait()
    assert Job.objects.count() == 2


def test_borgctl_applies_suspends_runs_and_prunes_cron_jobs(ann_cli, ann, cell, tenant) -> None:
    world.submit(ann, cell, world.a_file("other"))
    folder = ann_cli.folder / "team"
    folder.mkdir()
    ann_cli.file(cron_rows.a_cron_file(), "team/nightly.json")
    assert [row["change"] for row in ann_cli.json("apply", "team", "--yes")["jobs"]] == ["submit"]
    assert [row["change"] for row in ann_cli.json("apply", "team", "--yes")["jobs"]] == ["unchanged"]
    assert CronJob.objects.get().labels == {"applied-by": "team"}
    assert ann_cli.out("cron", "suspend", "nightly") == "Cron job cc/ubar/nightly is suspended.\n"
    assert "suspended" in ann_cli.out("cron", "list")
    assert "is submitted" in ann_cli.out("cron", "run", "nightly")
    ann_cli.out("cron", "resume", "nightly")
    (folder / "nightly.json").unlink()
    ann_cli.file({**world.a_file("web", tasks=1), "priority": 0}, "team/web.json")
    pruned = ann_cli.json("apply", "team", "--owner", "team", "--prune", "--yes")["jobs"]
    assert {row["job"]: row["change"] for row in pruned} == {"cc/ubar/web": "submit", "cc/ubar/nightly": "delete"}
    assert CronJob.objects.count() == 0
    assert Job.objects.filter(labels__cron="nightly").exclude(state="dead").count() == 1  # a live run goes on
    text, _ = ann_cli.failing("submit", ann_cli.file(cron_rows.a_cron_file(schedule="30 2 30 2 *")))
    assert "schedule: never runs" in text
