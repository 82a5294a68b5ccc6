"""Tests of a log saver on a real machine: it saves the files of an alloc after the alloc has gone (§4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal
from scheduling.machines.joining import join_token_issue
from scheduling.models import Departure, KeptAlloc, Machine, Task
from scheduling.tasks import transitions
from tests.integration import world
from tests.integration.link_world import Link, running_link, until
from tests.integration.real_borglet import Borglet
from tests.integration.test_allocs import envelope

pytestmark = pytest.mark.django_db(transaction=True)

ME = system("test")
SERVE = 'echo "request 1"; echo "request 2"; exec sleep 3600'
# The saver follows the logs while its alloc exists. After that it saves all files, at its second attempt.
SAVE = """
if [ -z "$BORG_ALLOC_ENDED" ]; then exec sleep 3600; fi
if [ ! -e "$BORG_ALLOC_DIR/shared/tried" ]; then touch "$BORG_ALLOC_DIR/shared/tried"; exit 3; fi
cat "$BORG_ALLOC_DIR"/logs/*.0.1/stdout.* > "{saved}.new" && mv "{saved}.new" "{saved}"
"""


@pytest.fixture
def link(cell) -> Iterator[Link]:
    with running_link() as running:
        yield running


@pytest.fixture
def borglet(cell, link: Link, tmp_path: Path) -> Iterator[Borglet]:
    tmp_path.chmod(0o711)
    with contextlib.closing(Borglet(tmp_path / "home", link)) as made:
        made.start(join_token_issue(principal=ME, cell=cell))
        until(lambda: Machine.objects.filter(session__gt=0).exists(), what="connected")
        yield made


def job_of(name: str, command: str, **changed: object) -> dict[str, object]:
    limit = {"cpu": "100m", "ram": "64Mi", "disk": "10Mi"}
    return {
        "name": name,
        "priority": "production",
        "alloc_set": "shelf",
        "task": {"command": ["sh", "-c", command], "limit": limit},
        **changed,
    }


def test_a_log_saver_runs_again_where_its_alloc_was(cell, ann, borglet: Borglet, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0o777)
    out.chmod(0o777)
    machine = Machine.objects.get()
    shelf = world.submit(ann, cell, envelope(tasks=1))
    alloc = task_id(shelf.id, 0)
    web = world.submit(ann, cell, job_of("web", SERVE))
    saver = world.submit(ann, cell, job_of("logsaver", SAVE.format(saved=out / "log"), saves_for_s=600))
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(*split_task_id(alloc), machine.id)])
        inside = [Assignment(job.id, 0, machine.id, alloc=alloc) for job in (web, saver)]
        transitions.tasks_place(entry, inside)
    until(lambda: Task.objects.filter(up=True).count() == 3, what="all of them up")
    folder = borglet.home / "allocs" / f"{shelf.uid.hex}.0.1"
    until(lambda: list(folder.glob("logs/*/stdout.*")), what="logs in the alloc")

    with journal.write(cell.id, ME) as entry:
        transitions.tasks_evict(entry, [Eviction(alloc, 1, EvictionCause.PREEMPTION.value)])
    assert KeptAlloc.objects.get().hold[2] == 2**30
    until(lambda: (out / "log").exists(), what="saved, at the second try")
    assert (out / "log").read_text() == "request 1\nrequest 2\n"
    until(lambda: not KeptAlloc.objects.exists(), what="released and gone")
    assert not folder.exists()
    assert Machine.objects.get().kept == []
    until(lambda: not Departure.objects.exists(), what="everything has left")
