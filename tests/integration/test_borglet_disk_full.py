"""Tests of a Borglet whose disk is full (§3.3): running tasks go on, and new tasks start when there is space again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from scheduling.models import Departure, Machine
from scheduling.tasks import transitions
from tests.integration import rows
from tests.integration.link_world import Link, a_job, place, running_link, task, until
from tests.integration.real_borglet import Borglet

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk as small as this"),
]


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def link(cell) -> Iterator[Link]:
    with running_link() as running:
        yield running


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    tmp_path.chmod(0o711)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=711", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.fixture
def borglet(cell, link: Link, small_disk: Path) -> Iterator[Borglet]:
    with contextlib.closing(Borglet(small_disk / "home", link, log=small_disk.parent / "log")) as made:
        made.start(join_token_issue(principal=rows.ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        yield made


def fill(disk: Path) -> Path:
    """Write a file until no more byte fits on the disk, and return its path."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_what_runs_runs_on_and_what_is_new_waits_for_room(cell, borglet: Borglet, small_disk: Path) -> None:
    machine = Machine.objects.get()
    command = ["sh", "-c", "while :; do echo chatter; sleep 0.05; done"]
    old = a_job(cell, "old", command=command, limit={"cpu": "50m", "ram": "32Mi"})
    place(old, machine.id)
    until(lambda: task(old).up, what="up")

    filler = fill(small_disk)
    new = a_job(cell, "new", command=["sleep", "3600"], limit={"cpu": "50m", "ram": "32Mi"})
    place(new, machine.id, port=20001)
    until(lambda: "cannot save" in borglet.log.read_text(), what="the refusal is logged")
    assert task(old).up
    assert task(old).restarts == 0
    assert not task(new).up

    borglet.kill()  # it also starts again while the disk is full
    session = Machine.objects.get().session
    borglet.start()
    until(lambda: Machine.objects.get().session > session, what="connected again")
    assert task(old).up
    assert task(old).restarts == 0

    filler.unlink()
    until(lambda: task(new).up, what="the new one is up once there is room")
    assert (task(old).restarts, task(old).incarnation) == (0, 1)
    assert (task(new).restarts, task(new).incarnation) == (0, 1)


def test_a_task_can_be_stopped_on_a_full_disk_once_there_is_room_again(
    cell, borglet: Borglet, small_disk: Path
) -> None:
    job = a_job(cell, command=["sleep", "3600"], limit={"cpu": "50m", "ram": "32Mi"})
    place(job, Machine.objects.get().id)
    until(lambda: task(job).up, what="up")
    filler = fill(small_disk)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task(job).id, "killed")])
    until(lambda: "cannot save" in borglet.log.read_text(), what="the refusal is logged")
    assert Departure.objects.exists()
    filler.unlink()
    until(lambda: not Departure.objects.exists(), what="it has left")
