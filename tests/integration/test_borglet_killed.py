"""Tests of a Borglet that is killed again and again while tasks start and end: no task is lost or doubled (§3.3)."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.runtimes.supervisor import proctable
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from scheduling.models import Departure, Job, Machine, Task
from scheduling.tasks import transitions
from tests.examples import examples
from tests.integration import rows
from tests.integration.link_world import Link, a_job, running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]

KILLS = examples(100)
TASKS = 12
# Each start writes a line. On SIGTERM the program writes another line and then ends.
PROGRAM = """
trap 'echo "$BORG_KEY" >> "{folder}/stopped"; exit 0' TERM
echo "$BORG_KEY $$" >> "{folder}/started"
echo "$BORG_KEY is up"
while :; do sleep 0.2; done
"""


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


def test_many_kills_lose_double_and_orphan_nothing(cell, borglet: Borglet, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    command = ["sh", "-c", PROGRAM.format(folder=folder)]
    limit = {"cpu": "50m", "ram": "32Mi"}
    job = a_job(cell, tasks=TASKS, command=command, limit=limit, restart={"on": "never"}, notice_s=5)
    machine = Machine.objects.get()
    rng = random.Random(20261121)
    for index in range(TASKS):
        _place(job, machine, index)
    for _ in range(KILLS):
        _one_leaves_and_those_that_can_come_back(job, machine, rng)
        # The kill comes at any moment, for example while the Borglet connects, or while it starts and stops tasks.
        _wait(rng.uniform(0.0, 1.0))
        borglet.kill()
        borglet.start()
    until(lambda: not Departure.objects.exists(), seconds=60, what="all tasks that had to leave have left")
    for task in Task.objects.filter(job=job, state="pending"):
        _place(job, machine, task.index)
    until(lambda: Task.objects.filter(job=job, up=True).count() == TASKS, seconds=60, what="all of them up")

    wanted = {f"{job.uid.hex}/{task.index}/{task.incarnation}" for task in Task.objects.filter(job=job)}
    running = _running(folder)
    assert Counter(running) == Counter(wanted), "each of those placed runs once, and nobody else does"
    starts = Counter(line.split()[0] for line in (folder / "started").read_text().splitlines())
    assert set(starts.values()) == {1}, "no incarnation was started twice"
    ended = Task.objects.filter(job=job, evictions__gt=0).count()
    assert ended > TASKS // 2, "tasks came and went meanwhile"
    assert not Task.objects.filter(job=job).exclude(outcome="").exists(), "no task was reported as failed"


def _place(job: Job, machine: Machine, index: int) -> None:
    with journal.write(job.cell_id, rows.ME) as entry:
        incarnation = Task.objects.get(pk=task_id(job.id, index)).incarnation
        port = 20_000 + index + TASKS * incarnation
        transitions.tasks_place(entry, [Assignment(job.id, index, machine.id, ports=(port,))])


def _one_leaves_and_those_that_can_come_back(job: Job, machine: Machine, rng: random.Random) -> None:
    for task in Task.objects.filter(job=job, state="pending"):
        _place(job, machine, task.index)
    running = list(Task.objects.filter(job=job, state="running").order_by("index"))
    leaving = rng.choice(running)
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(leaving.id, leaving.incarnation, "other", detail="test")])


def _wait(seconds: float) -> None:
    """Wait for this time, after which the test kills the Borglet, whatever it is doing then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


def _running(folder: Path) -> list[str]:
    """Return the keys of the tasks that wrote a line to `started` in the folder and whose processes still run."""
    found = []
    for line in (folder / "started").read_text().splitlines():
        key, pid = line.split()
        process = proctable.read(int(pid))
        if process is not None and process.state != b"Z" and _belongs(int(pid), key):
            found.append(key)
    return found


def _belongs(pid: int, key: str) -> bool:
    with contextlib.suppress(OSError):
        return f"BORG_KEY={key}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def test_nobody_else_lives_in_the_home_of_a_borglet(cell, borglet: Borglet, tmp_path: Path) -> None:
    """While one task runs, exactly one process on this host belongs to the home folder of the Borglet."""
    marker = f"BORG_TASK_DIR={borglet.home}".encode()
    job = a_job(cell, command=["sleep", "3600"], limit={"cpu": "50m", "ram": "32Mi"})
    _place(job, Machine.objects.get(), 0)
    until(lambda: Task.objects.get(job=job).up, what="up")
    here = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and marker in Path(f"/proc/{name}/environ").read_bytes():
                here.append(int(name))
    assert len(here) == 1
