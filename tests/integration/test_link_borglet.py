"""Tests of the link with a real Borglet in a process of its own, which runs real processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.machines import last_contact, log_requests
from scheduling.machines.joining import join_token_issue
from scheduling.models import Departure, Machine
from scheduling.tasks import transitions
from tests.integration import rows
from tests.integration.link_world import Link, a_job, place, running_link, task, until
from tests.integration.real_borglet import Borglet

pytestmark = pytest.mark.django_db(transaction=True)

SLEEPER = 'echo "I am $BORG_TASK"; echo $$ > "{pid}"; exec sleep 3600'


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def link(cell) -> Iterator[Link]:
    with running_link() as running:
        yield running


@pytest.fixture
def borglet(cell, link: Link, tmp_path: Path) -> Iterator[Borglet]:
    tmp_path.chmod(0o711)
    with contextlib.closing(Borglet(tmp_path / "home", link)) as made:
        made.start(join_token_issue(principal=rows.ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        yield made


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def pid_in(path: Path) -> int | None:
    text = path.read_text().strip() if path.exists() else ""
    return int(text) if text else None


def a_sleeper(cell, folder: Path):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    command = ["sh", "-c", SLEEPER.format(pid=folder / "pid")]
    return a_job(cell, command=command, limit={"cpu": "100m", "ram": "64Mi"}), folder / "pid"


def test_a_task_runs_survives_its_borglet_restarts_and_stops(cell, borglet: Borglet, tmp_path: Path) -> None:
    machine = Machine.objects.get()
    assert machine.attributes["runtime"] == "process"
    job, pid_file = a_sleeper(cell, tmp_path / "out")
    place(job, machine.id)
    until(lambda: task(job).up, what="up")
    pid = until(lambda: pid_in(pid_file))

    borglet.kill()
    assert alive(pid)
    session = Machine.objects.get().session
    borglet.start()
    until(lambda: Machine.objects.get().session > session, what="connected again")
    assert alive(pid)
    assert task(job).incarnation == 1

    os.kill(pid, signal.SIGKILL)
    until(lambda: task(job).restarts == 1 and task(job).up, what="up again")
    assert task(job).exit["signal"] == signal.SIGKILL
    second = until(lambda: (found := pid_in(pid_file)) != pid and found)

    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "killed")])
    until(lambda: not Departure.objects.exists(), what="gone")
    assert not alive(second)


def test_a_task_leaves_the_answers_before_it_is_asked_to_stop(cell, borglet: Borglet, tmp_path: Path) -> None:
    """A stopping task leaves the answers to name queries at once. Its process gets SIGTERM 1.5 s later."""
    (folder := tmp_path / "out").mkdir(mode=0o777)
    folder.chmod(0o777)
    script = f"trap 'date +%s.%N >> {folder}/told; exit 0' TERM; while :; do sleep 0.05; done"
    job = a_job(cell, command=["sh", "-c", script], limit={"cpu": "100m", "ram": "64Mi"}, leave_s=1.5)
    key = place(job, Machine.objects.get().id)
    until(lambda: task(job).up, what="up")
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "killed")])
    asked_at = entry.time.timestamp()
    until(lambda: not Departure.objects.exists(), what="gone")
    told_at = float((folder / "told").read_text())
    assert 1.5 <= told_at - asked_at < 30.0
    gone = next(r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskGone))
    assert (gone.index, gone.incarnation) == (0, key.incarnation)
    assert gone.exit is not None
    assert gone.exit["notice"] == "full"


def test_what_ended_while_nobody_watched_is_reported_afterwards(cell, borglet: Borglet, tmp_path: Path) -> None:
    job, pid_file = a_sleeper(cell, tmp_path / "out")
    place(job, Machine.objects.get().id)
    pid = until(lambda: task(job).up and pid_in(pid_file), what="up")
    borglet.kill()
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "killed")])
    assert Departure.objects.exists()
    assert alive(pid)
    borglet.start()
    until(lambda: not Departure.objects.exists(), what="gone")
    assert not alive(pid)


def test_a_job_that_finishes_is_dead_and_finished(cell, borglet: Borglet) -> None:
    job = a_job(cell, command=["sh", "-c", "exit 0"])
    place(job, Machine.objects.get().id)
    until(lambda: task(job).state == "dead", what="dead")
    assert (task(job).outcome, task(job).exit["status"]) == ("finished", 0)


def test_a_log_is_read_through_the_link(cell, borglet: Borglet, tmp_path: Path) -> None:
    job, _ = a_sleeper(cell, tmp_path / "out")
    machine = Machine.objects.get()
    key = place(job, machine.id)
    until(lambda: task(job).up, what="up")
    until(lambda: last_contact.holder_of(cell.id, machine.id), what="holder known")
    until(lambda: log_requests.fetch(machine, key, timeout_s=5).text == "I am cc/ubar/jfoo/0\n", what="the line")
    assert "f" * 32 in log_requests.fetch(machine, type(key)("f" * 32, 0, 1), timeout_s=5).error
