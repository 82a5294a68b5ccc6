"""Tests of a contained task: it comes up, goes on while its Borglet starts again, is restarted, and stops."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.runtimes.supervisor import proctable
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from scheduling.models import Departure, Job, Machine, Task
from scheduling.tasks import transitions
from tests.integration import rows
from tests.integration.link_world import a_job, place, running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root opens containers"),
]


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def borglet(cell, tmp_path: Path) -> Iterator[Borglet]:
    with running_link() as link, contextlib.closing(Borglet(tmp_path / "home", link, runtime="oci")) as made:
        made.start(join_token_issue(principal=rows.ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        yield made


def processes_of(job: Job) -> list[int]:
    task = Task.objects.get(job=job)
    return proctable.with_environment(f"BORG_KEY={job.uid.hex}/0/{task.incarnation}")


def test_a_contained_server_is_up_survives_its_borglet_restarts_and_stops(cell, borglet: Borglet) -> None:
    machine = Machine.objects.get()
    assert machine.attributes["runtime"] == "oci"
    assert machine.attributes["isolation.user"] == "task"
    command = ["python3", "-m", "http.server", "$(port.http)"]
    job = a_job(cell, command=command, health={"http": "/", "port": "http"}, limit={"cpu": "100m", "ram": "64Mi"})
    place(job, machine.id, port=25_391)
    until(lambda: Task.objects.get(job=job).up, what="up by its check")
    (server,) = processes_of(job)
    assert os.stat(f"/proc/{server}").st_uid >= 200_000

    borglet.kill()
    session = machine.session
    borglet.start()
    until(lambda: Machine.objects.get().session > session, what="connected again")
    assert processes_of(job) == [server]
    assert Task.objects.get(job=job).restarts == 0

    os.kill(server, signal.SIGKILL)
    until(lambda: (task := Task.objects.get(job=job)).restarts == 1 and task.up, what="up once more")
    assert Task.objects.get(job=job).exit["signal"] == signal.SIGKILL
    (second,) = processes_of(job)
    assert second != server

    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "killed")])
    until(lambda: not Departure.objects.exists(), what="gone")
    assert proctable.read(second) is None
