"""The example of a rollback, with a real Borglet and a real master: nobody acts after the update."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from portal.cli import jobfile
from quota.vocabulary.permissions import system
from scheduling.jobs import updates
from scheduling.machines.joining import join_token_issue
from scheduling.models import Task, Update
from tests.integration import master_processes, world
from tests.integration.link_world import running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_bad_canary_task_is_rolled_back_without_a_person(cell, ann, tenant, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    file = jobfile.read("examples/rollback.yaml")
    bad = file | {"task": file["task"] | {"command": [*file["task"]["command"][:-1], "/nowhere"]}}
    with (
        running_link() as link,
        master_processes.running(tmp_path, cell.name),
        contextlib.closing(Borglet(tmp_path / "home", link)) as borglet,
    ):
        borglet.start(join_token_issue(principal=system("test"), cell=cell))
        job = world.submit(ann, cell, file)
        tasks = Task.objects.filter(job=job).order_by("index")
        until(lambda: tasks.filter(up=True).count() == 3, what="three tasks are up")
        update = updates.job_update(principal=ann, job=job, job_spec=world.read(cell, bad)).update
        assert update is not None
        until(lambda: Update.objects.filter(job=job, state=Update.ROLLED_BACK).exists(), what="rolled back")
        until(lambda: tasks.filter(up=True, spec_version=3).count() == 3, what="all tasks are up again")
        until(lambda: not Update.objects.filter(job=job, state=Update.OPEN).exists(), what="the rollback is done")
    update.refresh_from_db()
    assert update.detail == "task 0 of version 2 crashes or fails its health checks"
    incarnations = list(tasks.values_list("incarnation", flat=True))
    assert incarnations[1:] == [1, 1], "the other tasks kept running"
    assert incarnations[0] == 3
