"""Locks with real Borglets, link and master: the example, a killed leader, and a Borglet that is restarted."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from borglet.runtimes.base import secret_files
from portal.cli import jobfile
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.jobs import submit_and_kill
from scheduling.locks import locks
from scheduling.locks.sessions import Space
from scheduling.machines.joining import join_token_issue
from scheduling.models import Job, Lease, LockSession, Task
from tests.integration import lock_rows, master_processes, world
from tests.integration.link_world import Link, running_link, until
from tests.integration.real_borglet import Borglet

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        not secret_files.in_memory(secret_files.MEMORY), reason="this machine has no file system in memory"
    ),
]
NAME = "election/leader"


@pytest.fixture
def link(cell) -> Iterator[Link]:
    with running_link() as one:
        yield one


@pytest.fixture
def borglets(cell, link, tmp_path: Path) -> Iterator[list[Borglet]]:
    tmp_path.chmod(0o711)
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(master_processes.running(tmp_path, cell.name))
        two = []
        for name in ("m1", "m2"):
            folder = tmp_path / name
            folder.mkdir(mode=0o711)
            two.append(cleanup.enter_context(contextlib.closing(Borglet(folder / "home", link, hostname=name))))
            two[-1].start(join_token_issue(principal=system("test"), cell=cell))
        until(lambda: Lease.objects.filter(cell=cell).exists(), seconds=90.0, what="a master has started")
        yield two


def at_work(borglets: list[Borglet], job: Job, index: int) -> Borglet:
    """Return the Borglet that runs a task."""
    hostname = Task.objects.get(job=job, index=index).machine.hostname
    return next(one for one in borglets if one.home.parent.name == hostname)


def kill_process(borglet: Borglet, job: Job, index: int) -> None:
    """End the program of a task with SIGKILL, as a crash does."""
    key = f"{job.uid.hex}.{index}.{Task.objects.get(job=job, index=index).incarnation}"
    marker = f"BORG_TASK_DIR={borglet.home / 'tasks' / key}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), 9)


def ask(borglet: Borglet, job: Job, index: int, method: str, path: str, **body: Any) -> tuple[int, Any]:
    """Send a request to the socket of a task, as the task does."""
    task = Task.objects.get(job=job, index=index)
    connection = http.client.HTTPConnection("borglet")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(60)
    with contextlib.closing(connection):
        path_ = borglet.home / "secrets" / f"{job.uid.hex}.{index}.{task.incarnation}" / secret_files.LOCK_SOCKET
        connection.sock.connect(str(path_.resolve()))
        connection.request(method, path, json.dumps(body) if body else None)
        answer = connection.getresponse()
        return answer.status, json.load(answer)


def test_another_task_of_the_example_leads_when_the_leader_is_killed(cell, tenant, ann, borglets) -> None:
    space = Space(cell.id, tenant.id)
    job = world.submit(ann, cell, jobfile.read("examples/leader-election.yaml"))
    until(lambda: Task.objects.filter(job=job, up=True).count() == 3, what="all tasks are up")
    first = until(lambda: (lock := locks.find(space, NAME)) and lock.holder and lock, what="a task leads")
    index = int(first.holder.partition("/")[2])

    kill_process(at_work(borglets, job, index), job, index)
    killed_at = time.monotonic()
    second = until(
        lambda: (lock := locks.find(space, NAME)) and lock.holder and lock.token > first.token and lock,
        what="another task leads",
    )
    took_s = time.monotonic() - killed_at
    assert second.holder != first.holder
    assert took_s < 10, "the takeover does not wait for the end of the lease"
    with pytest.raises(Rejected) as late:
        locks.write(space, NAME, "late", actor="test", token=first.token)
    assert late.value.code == "token-expired"
    with pytest.raises(locks.Held):
        locks.acquire(space, NAME, lock_rows.user("ann"))

    # A Borglet that is replaced continues the session of its task.
    leader = int(second.holder.partition("/")[2])
    here = at_work(borglets, job, leader)
    here.kill()
    here.start()
    sequence = locks.lock_named(space, NAME).sequence
    until(lambda: locks.lock_named(space, NAME).sequence > sequence + 1, what="the leader writes again")
    assert locks.lock_named(space, NAME).token == second.token
    renewed = LockSession.objects.get().expires_at
    until(lambda: LockSession.objects.get().expires_at > renewed, what="the new Borglet renews the session")

    status, answer = ask(here, job, leader, "PUT", f"/v1/locks/{NAME}", content="x", token=first.token)
    assert (status, answer["code"]) == (412, "token-expired")
    assert ask(here, job, leader, "GET", "/v1/locks/other")[0] == 403
    status, session = ask(here, job, leader, "GET", "/v1/session")
    assert (status, session["holds"], session["lost"]) == (200, True, False)
    assert 0 < session["left_s"] < 15

    submit_and_kill.job_kill(principal=ann, job=job)
    until(lambda: not LockSession.objects.exists(), what="the sessions end with their tasks")
    assert locks.lock_named(space, NAME).holder is None
