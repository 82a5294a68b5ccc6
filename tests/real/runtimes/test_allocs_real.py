"""Tests of several jobs' tasks in one alloc, a reserved part of a machine (§2.4), with real processes and disk."""

from __future__ import annotations

import asyncio
import os

import msgspec
import pytest

from borglet.messages import EndCause, RunAlloc, RunTask, TaskKey
from borglet.runtimes.home.allocfolders import AllocFolders
from borglet.runtimes.home.taskdirs import directory_name, log_directory
from tests.real.runtimes.machine import (
    MIB,
    Machine,
    a_task,
    end_of,
    eventually,
    key,
    line_of,
    may_limit,
    python,
    text_of,
)

SHELF = TaskKey("cd" * 16, 0, 1)
HELPER = TaskKey("ef" * 16, 0, 1)


def an_alloc(name: TaskKey = SHELF, **changed: object) -> RunAlloc:
    limit = {"cpu": 1000, "ram": 512 * MIB, "disk": 200 * MIB}
    return RunAlloc(name, "aa/ada/shelf/0", limit, 200, True, True, **changed)  # type: ignore[arg-type]


def server(program: str, **changed: object) -> RunTask:
    return a_task("sh", "-c", program, alloc=SHELF, **changed)


def helper(program: str, **changed: object) -> RunTask:
    return a_task("sh", "-c", program, key=HELPER, name="aa/ada/logsaver/0", alloc=SHELF, ports={}, **changed)


async def test_a_helper_reads_what_the_server_beside_it_writes_and_logs(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("echo served; echo 7 > $BORG_ALLOC_DIR/shared/hits; sleep 100"), run=1)
        assert await line_of(runtime) == "served"
        hits = machine.home / "allocs" / directory_name(SHELF) / "shared" / "hits"
        await eventually(lambda: hits.exists() and hits.read_text(), "hits")
        await runtime.start(
            helper("echo $$(cat $BORG_ALLOC_DIR/shared/hits $BORG_ALLOC_DIR/logs/*/stdout.*); sleep 100"), run=1
        )
        assert await line_of(runtime, HELPER) == "7 served"


async def test_a_log_saver_copies_all_that_lies_beside_a_log(machine: Machine) -> None:
    """Run a log saver as in `examples/shelf-logs.jsonnet`: it copies the logs of the server in the same alloc."""
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("echo served; sleep 100"), run=1)
        assert await line_of(runtime) == "served"
        logs = machine.home / "allocs" / directory_name(SHELF) / "logs" / directory_name(key())
        await eventually(lambda: list(logs.glob("times.stdout.*")), "when it was printed")
        await runtime.start(helper('cp -r "$BORG_ALLOC_DIR"/logs/. $TMPDIR/saved && echo saved'), run=1)
        await end_of(runtime)
        assert await text_of(runtime, task=HELPER) == "saved\n"


async def test_what_a_task_left_in_its_alloc_is_its_next_incarnations_to_change(machine: Machine) -> None:
    """Append to a file of the alloc from two incarnations of one task. The second may change the file of the first."""
    save = "umask 077; cd $BORG_ALLOC_DIR/shared && mkdir -p saved && echo x >> saved/log && echo ok"
    later = TaskKey(HELPER.job, HELPER.index, HELPER.incarnation + 1)
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(helper(save), run=1)
        await end_of(runtime)
        await runtime.remove(HELPER)
        await runtime.start(msgspec.structs.replace(helper(save), key=later), run=1)
        await end_of(runtime)
        assert await text_of(runtime, task=later) == "ok\n"


async def test_an_alloc_survives_its_tasks(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("echo one >> $BORG_ALLOC_DIR/shared/log"), run=1)
        await end_of(runtime)
        await runtime.start(server("echo two >> $BORG_ALLOC_DIR/shared/log"), run=2)
        await end_of(runtime)
        await runtime.remove(key())
        assert [report.key for report in runtime.allocs()] == [SHELF]
        await runtime.start(helper("cat $BORG_ALLOC_DIR/shared/log"), run=1)
        await end_of(runtime)
        assert await text_of(runtime, task=HELPER) == "one\ntwo\n"


async def test_it_goes_when_it_should_and_the_last_has_left_and_its_logs_stay(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("echo bye; sleep 100"), run=1)
        assert await line_of(runtime) == "bye"
        await runtime.hold_allocs([], [SHELF])
        assert [report.name for report in runtime.allocs()] == ["aa/ada/shelf/0"]
        await runtime.stop(key(), notice_s=0, cause=EndCause.STOPPED)
        await end_of(runtime)
        await runtime.remove(key())
        assert runtime.allocs() == []
        assert not (machine.home / "allocs" / directory_name(SHELF)).exists()
        assert not (machine.home / "logs" / directory_name(key())).is_symlink()
        assert await text_of(runtime) == "bye\n"


async def test_an_alloc_that_nobody_names_is_left_alone(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.hold_allocs([], [])
        assert [report.key for report in runtime.allocs()] == [SHELF]


async def test_what_it_holds_on_the_disk_is_reported(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("head -c 3000000 /dev/urandom > $BORG_ALLOC_DIR/shared/big"), run=1)
        await end_of(runtime)
        await runtime.sample()
        (report,) = runtime.allocs()
        assert 3_000_000 <= report.disk_bytes < 3_200_000


async def test_the_next_borglet_finds_it(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("echo up; sleep 100"), run=1)
        assert await line_of(runtime) == "up"
    async with machine.runtime() as runtime:
        assert [(report.key, report.name) for report in runtime.allocs()] == [(SHELF, "aa/ada/shelf/0")]
        await runtime.hold_allocs([], [SHELF])
        assert runtime.allocs()  # a task is inside
        assert await text_of(runtime) == "up\n"


async def test_logs_of_tasks_long_gone_are_forgotten_while_the_alloc_lives_on(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([an_alloc()], [])
        await runtime.start(server("echo old"), run=1)
        await end_of(runtime)
        await runtime.remove(key())
        changed = log_directory(machine.home, directory_name(key())).stat().st_mtime
        keep_s = machine.settings.retention.keep_s
        assert await runtime.sweep(changed + keep_s - 60) == []
        assert await runtime.sweep(changed + keep_s + 60) == [directory_name(key())]
        assert list((machine.home / "logs").iterdir()) == []


def test_a_planted_link_leads_nowhere(machine: Machine) -> None:
    machine.home.mkdir(parents=True)
    folders = AllocFolders(machine.home)
    logs = machine.home / "logs"
    logs.mkdir()
    name = directory_name(key())
    for target in ("/etc", "../allocs/../../etc/logs/x", f"../allocs/{directory_name(SHELF)}/logs/other"):
        os.symlink(target, logs / name)
        assert log_directory(machine.home, name) == logs / name
        (logs / name).unlink()
    os.symlink(f"../allocs/{directory_name(SHELF)}/logs/{name}", logs / name)
    assert log_directory(machine.home, name) == folders.folder(SHELF) / "logs" / name


@pytest.mark.parametrize("bad", ["../x", "a/b", ""])
async def test_an_alloc_with_an_unsafe_key_is_not_a_folder(machine: Machine, bad: str) -> None:
    async with machine.runtime() as runtime:
        with pytest.raises(ValueError, match="task key"):
            await runtime.hold_allocs([an_alloc(TaskKey(bad, 0, 1)), an_alloc()], [])
        assert [alloc.key for alloc in runtime.allocs()] == [SHELF], "the other is held all the same"


@pytest.mark.skipif(not may_limit(), reason="only root may make control groups, on any machine")
async def test_those_inside_share_one_envelope_of_memory(machine: Machine) -> None:
    """Run a task whose own limit is above the alloc's memory. Only this task is ended, at the alloc's limit."""
    if machine.settings.isolation == "polled":
        return
    small = RunAlloc(SHELF, "aa/ada/shelf/0", {"cpu": 1000, "ram": 96 * MIB, "disk": MIB}, 200, True, True)
    hog = (
        "held = []\nfor _ in range(200):\n    held.append(bytearray(1 << 20)); print(len(held), flush=True)\n"
        "import time; time.sleep(100)"
    )
    limit = {"cpu": 500, "ram": 512 * MIB, "disk": 100 * MIB}
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([small], [])
        await runtime.start(a_task("sleep", "100", key=HELPER, ports={}), run=1)
        await runtime.start(python(hog, alloc=SHELF, limit=limit), run=1)
        end = await end_of(runtime)
        assert end.key == key()
        assert end.exit is not None
        assert end.exit.cause is EndCause.OUT_OF_MEMORY
        assert 40 <= len((await text_of(runtime)).splitlines()) <= 96


@pytest.mark.skipif(not may_limit(), reason="only root may make control groups, on any machine")
async def test_a_task_that_fills_the_envelope_dies_alone(machine: Machine) -> None:
    """Run two tasks in an alloc, one of which exceeds the alloc's memory. The other must keep running.

    Version 1 of control groups reports an out-of-memory event to every group below the one that ran out.
    """
    if machine.settings.isolation == "polled":
        return
    small = RunAlloc(SHELF, "aa/ada/shelf/0", {"cpu": 1000, "ram": 96 * MIB, "disk": MIB}, 200, True, True)
    hog = (
        "import time\nheld = []\nfor _ in range(200):\n    held.append(bytearray(1 << 20))\n    time.sleep(0.001)\n"
        "time.sleep(100)"
    )
    async with machine.runtime() as runtime:
        await runtime.hold_allocs([small], [])
        beside = {"alloc": SHELF, "limit": {"cpu": 500, "ram": 32 * MIB, "disk": 100 * MIB}}
        await runtime.start(a_task("sleep", "100", key=HELPER, ports={}, **beside), run=1)
        await runtime.start(python(hog, alloc=SHELF, limit={"ram": 512 * MIB}), run=1)
        end = await end_of(runtime)
        assert end.key == key()
        assert end.exit is not None
        assert end.exit.cause is EndCause.OUT_OF_MEMORY
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.next_end(), 1.5)
