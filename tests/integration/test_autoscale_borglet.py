"""The example of a server that gets more tasks under load, with a real Borglet, link and master, and real CPU use."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from portal.cli import jobfile
from quota.vocabulary.permissions import system
from scheduling.jobs.actions.autoscaled import AUTOSCALER
from scheduling.machines.joining import join_token_issue
from scheduling.models import Job, JobAutoscaling, JobSpec, Task
from tests.integration import master_processes, world
from tests.integration.link_world import running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)


def up(job: Job) -> list[Task]:
    return list(Task.objects.filter(job=job, up=True).order_by("index"))


@contextlib.contextmanager
def clients(port: int) -> Iterator[None]:
    """Send requests to a port, one after the other, while the block runs."""
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.02):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
                answer.read()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_server_gets_more_tasks_under_load_and_fewer_afterwards(cell, ann, tenant, tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    with (
        running_link() as link,
        master_processes.running(tmp_path, cell.name),
        contextlib.closing(Borglet(tmp_path / "home", link)) as borglet,
    ):
        borglet.start(join_token_issue(principal=system("test"), cell=cell))
        job = world.submit(ann, cell, jobfile.read("examples/autoscale.yaml"))
        until(lambda: len(up(job)) == 1, seconds=90, what="the task is up")
        with clients(up(job)[0].ports[0]):
            until(lambda: len(up(job)) >= 2, seconds=120, what="the load has added tasks")
        until(lambda: len(up(job)) == 1, seconds=120, what="the tasks were removed again")
    versions = JobSpec.objects.filter(job=job, version__gt=1)
    assert {version.actor for version in versions} == {AUTOSCALER.name}
    assert [version.spec["tasks"] for version in versions][-1] == 1
    assert JobAutoscaling.objects.get(job=job).own_tasks == 1
