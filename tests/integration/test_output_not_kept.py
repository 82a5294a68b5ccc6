"""Tests of the output of tasks: it passes through Redis, and is not stored in Redis' append-only file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings

from borglet.messages import LogChunk, TaskKey
from scheduling.journal import wakeups
from scheduling.machines import last_contact, log_requests
from scheduling.models import Machine
from scheduling.shells import streams
from tests.integration import rows
from tests.integration.link_world import running_link, until

pytestmark = pytest.mark.django_db(transaction=True)
SECRET = "hunter2-in-the-output"


@pytest.fixture
def kept() -> Iterator[Path]:
    """Switch on the append-only file of Redis, which then writes each change at once, and yield its folder."""
    redis = wakeups.client()
    redis.config_set("appendfsync", "always")
    redis.config_set("appendonly", "yes")
    until(lambda: not redis.info("persistence")["aof_rewrite_in_progress"], what="the file is begun")
    yield Path(redis.config_get("dir")["dir"])
    redis.config_set("appendonly", "no")


def holds(folder: Path, text: str) -> bool:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return any(text.encode() in path.read_bytes() for path in files)


def test_logs_are_not_in_the_append_only_file(kept: Path) -> None:
    cell, key, answers = rows.a_cell(), TaskKey("b" * 32, 0, 1), list[LogChunk]()
    wakeups.client().set("borg:test", "a key that is kept", ex=60)
    with running_link() as link, link.machine(cell) as machine:
        machine.report(machine.poll_with_desired())
        until(lambda: last_contact.holder_of(cell.id, Machine.objects.get().id), what="holder known")
        row = Machine.objects.get()
        asking = threading.Thread(target=lambda: answers.append(log_requests.fetch(row, key, timeout_s=30)))
        asking.start()
        poll = machine.poll()
        while not poll.logs:
            machine.report(poll)
            poll = machine.poll()
        machine.report(poll, logs=[LogChunk(poll.logs[0].request_id, 0, 21, SECRET)])
        asking.join(30)
    assert answers[0].text == SECRET
    assert holds(kept, "a key that is kept")
    assert not holds(kept, SECRET)


def test_what_a_shell_types_and_prints_is_not_in_the_append_only_file(kept: Path) -> None:
    async def through() -> list[bytes]:
        pool = streams.connect(settings.BORG_REDIS_URL)
        try:
            stream = streams.ShellStream(pool, "f" * 32, "out")
            await stream.put(SECRET.encode(), b"more")
            assert 0 < await pool.ttl(f"borg:shell:{'f' * 32}:out") <= 120
            taken = await streams.ShellStream(pool, "f" * 32, "out").take()
            await stream.drop()
            return taken
        finally:
            await pool.aclose()

    assert asyncio.run(through()) == [SECRET.encode(), b"more"]
    assert not holds(kept, SECRET)
