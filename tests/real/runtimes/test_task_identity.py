"""Tests of the file with a task's identity token: it exists at the start, is replaced as a whole, and is private."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from borglet.runtimes.home.taskdirs import TaskDirectory, TaskRecord
from tests.real.runtimes.machine import Machine, a_task, end_of, key, text_of

SAY = 'cat "$BORG_IDENTITY_FILE"; echo " $BORG_API_URL"'


async def test_an_identity_that_came_before_the_start_is_there_at_the_first_instruction(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        runtime.api_url = "https://portal"
        await runtime.identify(key(), "first")
        await runtime.start(a_task("sh", "-c", SAY), run=1)
        await end_of(runtime)
        assert await text_of(runtime) == "first https://portal\n"


async def test_a_running_task_finds_a_new_one_in_the_same_place(machine: Machine) -> None:
    script = 'until [ "$$(cat "$BORG_IDENTITY_FILE")" = second ]; do sleep 0.02; done; echo seen'
    async with machine.runtime() as runtime:
        await runtime.identify(key(), "first")
        await runtime.start(a_task("sh", "-c", script), run=1)
        await runtime.identify(key(), "second")
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.status == 0
        assert await text_of(runtime) == "seen\n"


async def test_a_second_run_has_the_identity_of_the_first(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.identify(key(), "kept")
        for run in (1, 2):
            await runtime.start(a_task("sh", "-c", SAY), run=run)
            await end_of(runtime)
        assert await text_of(runtime) == "kept \nkept \n"


async def test_it_goes_with_the_task(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.identify(key(), "mine")
        await runtime.start(a_task("true"), run=1)
        await end_of(runtime)
        await runtime.remove(key())
        await runtime.identify(key(), "too late")
    assert not list(machine.home.rglob("token"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_only_the_tasks_user_reads_it_and_no_trick_of_the_task_moves_it(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    directory = TaskDirectory(tmp_path, key())
    directory.prepare(TaskRecord(a_task("true"), 1, 0.0), owner=(12345, 12345))
    directory.write_identity("one")
    about = directory.identity.stat()
    assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (12345, 0o400)
    assert directory.identity.parent.stat().st_uid == 0  # the task can't put a link in its place
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    directory.identity.with_name("token.new").symlink_to(victim)
    directory.write_identity("two")
    assert (victim.read_text(), directory.identity.read_text()) == ("untouched", "two")


def test_a_task_that_an_earlier_release_started_gets_one(tmp_path: Path) -> None:
    directory = TaskDirectory(tmp_path, key())
    directory.work.mkdir(parents=True)
    directory.write_identity("one")
    assert directory.identity.read_text() == "one"
