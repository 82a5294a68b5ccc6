"""The example of a job that waits for another job, with a real Borglet and a real master that is killed meanwhile."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from portal.cli import jobfile
from quota.vocabulary.permissions import system
from scheduling.machines.joining import join_token_issue
from scheduling.models import Event, Job, Machine, Task
from tests.integration import master_processes, world
from tests.integration.link_world import running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_job_starts_after_another_job_although_the_master_was_killed(cell, ann, tenant, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    with running_link() as link, contextlib.closing(Borglet(tmp_path / "home", link)) as borglet:
        borglet.start(join_token_issue(principal=system("test"), cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).first(), what="connected")
        with master_processes.running(tmp_path, cell.name):
            load = world.submit(ann, cell, jobfile.read("examples/load.yaml"))
            report = world.submit(ann, cell, jobfile.read("examples/report.yaml"))
            wrong = jobfile.read("examples/load.yaml") | {"name": "wrong", "tasks": 1}
            wrong["task"] = wrong["task"] | {"command": ["false"], "restart": {"on": "never"}}
            world.submit(ann, cell, wrong)
            file = jobfile.read("examples/report.yaml") | {"name": "third", "after": {"wrong": "succeeded"}}
            third = world.submit(ann, cell, file)
            until(lambda: Task.objects.filter(job=load, state="running").count() == 3, what="placed", seconds=120)
        assert Task.objects.filter(job=report, state="pending").count() == 1
        with master_processes.running(tmp_path, cell.name):
            until(lambda: Job.objects.get(pk=report.pk).state == "dead", what="the report is done", seconds=120)
            until(lambda: Job.objects.get(pk=third.pk).state == "dead", what="the third job has failed", seconds=120)
    assert [Job.objects.get(pk=job.pk).outcome for job in (load, report, third)] == ["finished", "finished", "failed"]
    ends = Event.objects.filter(kind="task.ended", job_id=load.id).order_by("-revision")
    (placed,) = Event.objects.filter(kind="task.placed", job_id=report.id)
    assert placed.revision > ends[0].revision
    assert Task.objects.get(job=third).detail.startswith("dependency: job wrong has ended (failed)")
