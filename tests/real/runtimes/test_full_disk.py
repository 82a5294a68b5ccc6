"""Tests of tasks that end while the disk of the home is full: their exits are still reported correctly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from borglet.messages import EndCause
from borglet.runtimes.process import ProcessSettings
from tests.real.runtimes.conftest import _clean_up
from tests.real.runtimes.machine import Machine, a_task, end_of, key, line_of, supervisor_pid

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a disk as small as this")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Machine]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], check=True)
    machine = Machine(disk / "home", ProcessSettings(isolation="polled"))
    try:
        yield machine
        (disk / "filler").unlink()
        asyncio.run(_clean_up(machine))
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(machine: Machine) -> None:
    with (machine.home.parent / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


async def test_an_exit_status_is_kept_on_a_full_disk(small: Machine) -> None:
    async with small.runtime() as runtime:
        # If `sleep` receives the signal first, `wait` returns before the shell runs the trap.
        waiting = "trap 'exit 7' TERM; echo up; while :; do sleep 100 & wait; done"
        await runtime.start(a_task("sh", "-c", waiting), run=1)
        await line_of(runtime)
        fill(small)
        await runtime.stop(key(), notice_s=10.0, cause=EndCause.STOPPED)
        end = await end_of(runtime)
        assert end.exit is not None
        assert (end.exit.cause, end.exit.status) == (EndCause.STOPPED, 7)


async def test_a_lost_supervisor_is_reported_on_a_full_disk(small: Machine) -> None:
    async with small.runtime() as runtime:
        await runtime.start(a_task("sh", "-c", "echo up; sleep 100"), run=1)
        await line_of(runtime)
        reserve = small.home / "tasks" / f"{key().job}.0.1" / "exit.json.new"
        reserve.unlink()
        fill(small)
        os.kill(supervisor_pid(small), signal.SIGKILL)
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.cause is EndCause.SUPERVISOR_LOST
    async with small.runtime() as runtime:
        (adopted,) = await runtime.presences()
        assert adopted.exit is not None
        assert adopted.exit.cause is EndCause.SUPERVISOR_LOST
