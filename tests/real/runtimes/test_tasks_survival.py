"""Tests of tasks that survive their Borglet or supervisor, or are cleaned up with a true reason if they cannot."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from borglet.messages import EndCause, ShellClaims
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory, TaskRecord
from borglet.runtimes.oci.oci import OciSettings
from borglet.runtimes.process import ProcessSettings
from borglet.runtimes.supervisor.ptys import ShellRefused
from tests.real.runtimes.machine import (
    Machine,
    a_task,
    end_of,
    eventually,
    is_alive,
    key,
    line_of,
    may_limit,
    processes_of,
    python,
    supervisor_pid,
    text_of,
)

REPOSITORY = Path(__file__).parents[3]


def kill_a_borglet_that_started(machine: Machine, *command: str) -> None:
    """Start a task by a Borglet in another process, and kill that process with SIGKILL."""
    argv = [sys.executable, "-m", "tests.real.runtimes.owner", str(machine.home)]
    with subprocess.Popen(
        [*argv, "oci" if machine.contained else machine.settings.isolation, *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        owner.kill()
    assert owner.returncode == -signal.SIGKILL


async def test_a_task_outlives_the_borglet_and_its_exit_reaches_the_next(machine: Machine) -> None:
    kill_a_borglet_that_started(
        machine, "sh", "-c", "echo up; while ! [ -e go ]; do sleep 0.02; done; echo end; exit 5"
    )
    async with machine.runtime() as runtime:
        (adopted,) = await runtime.presences()
        assert adopted.exit is None
        assert adopted.run == 2
        assert adopted.task.name == "aa/ada/web/0"
        assert (await runtime.sample())[key()].processes >= 1
        (machine.work_of() / "go").touch()
        end = await end_of(runtime)
        assert end.exit is not None
        assert (end.exit.cause, end.exit.status) == (EndCause.EXITED, 5)
        assert await text_of(runtime) == "up\nend\n"


async def test_a_task_that_ended_in_between_keeps_its_exit(machine: Machine) -> None:
    kill_a_borglet_that_started(machine, "sh", "-c", "exit 6")
    exit_file = machine.home / "tasks" / f"{key().job}.0.1" / "exit.json"
    await eventually(exit_file.exists, "exit.json")
    async with machine.runtime() as runtime:
        (ended,) = await runtime.presences()
        assert ended.exit is not None
        assert (ended.exit.cause, ended.exit.status) == (EndCause.EXITED, 6)
        # found at adoption, and therefore not reported again
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.next_end(), 0.05)


async def test_an_adopted_task_can_be_stopped(machine: Machine) -> None:
    kill_a_borglet_that_started(machine, "sleep", "100")
    async with machine.runtime() as runtime:
        await runtime.stop(key(), notice_s=5, cause=EndCause.STOPPED, detail="drain")
        end = await end_of(runtime)
        assert end.exit is not None
        assert (end.exit.cause, end.exit.signal) == (EndCause.STOPPED, signal.SIGTERM)


DAEMON_AND_CHILD = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(100)
    os._exit(0)
os.wait()
print('up', flush=True)
time.sleep(100)
"""


async def test_when_the_supervisor_is_killed_nothing_of_the_task_is_left(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(python(DAEMON_AND_CHILD), run=1)
        await line_of(runtime)
        supervisor = supervisor_pid(machine)
        pids = processes_of(machine)
        assert len(pids) == 2
        os.kill(supervisor, signal.SIGKILL)
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.cause is EndCause.SUPERVISOR_LOST
        assert end.exit.detail == "the task's supervisor was killed"
        assert not [pid for pid in pids if is_alive(pid)]
        # the exit is on the disk too, and the task can be started again
        assert TaskDirectory(machine.home, key()).exit() == end.exit
        await runtime.start(a_task("true"), run=2)
        assert (await end_of(runtime)).run == 2


async def test_the_kernel_ends_a_task_whose_supervisor_dies_with_nobody_above(bare_machine: Machine) -> None:
    """Kill a task's supervisor while no Borglet runs. The kernel must end the task too.

    Containers are excluded: a task in a container lives until the next Borglet starts.
    """
    kill_a_borglet_that_started(bare_machine, "sleep", "100")
    supervisor = supervisor_pid(bare_machine)
    (task,) = processes_of(bare_machine)
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not is_alive(task), "the task's end")


async def test_supervisor_and_borglet_killed_together(machine: Machine) -> None:
    kill_a_borglet_that_started(machine, "python3", "-c", DAEMON_AND_CHILD)
    supervisor = supervisor_pid(machine)
    pids = await eventually(lambda: len(found := processes_of(machine)) == 2 and found, "the daemon")
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not is_alive(supervisor), "the supervisor's end")
    async with machine.runtime() as runtime:
        (ended,) = await runtime.presences()
        assert ended.exit is not None
        assert ended.exit.cause is EndCause.SUPERVISOR_LOST
        assert not [pid for pid in pids if is_alive(pid)]


async def leave_behind(machine: Machine, *, run: int = 1, **changes: object) -> None:
    """Create the files of a task whose supervisor is gone. No process is started.

    `changes`: fields of the supervisor's file that differ from those of this process; without any, there is no such
    file.
    """
    machine.open()
    directory = TaskDirectory(machine.home, key())
    directory.prepare(TaskRecord(a_task("true"), run, 1.0), owner=None)
    if changes:
        here = SupervisorId(os.getpid(), 1, Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        directory.write_supervisor(msgspec.structs.replace(here, **changes))


async def test_a_reused_pid_is_not_taken_for_the_supervisor(machine: Machine) -> None:
    """Record this test process's id, with another start time, as a supervisor.

    The supervisor must count as lost, and this process must not be killed.
    """
    await leave_behind(machine, pid=os.getpid(), started=1)
    (TaskDirectory(machine.home, key()).path / "begun").touch()
    async with machine.runtime() as runtime:
        (ended,) = await runtime.presences()
        assert ended.exit is not None
        assert ended.exit.cause is EndCause.SUPERVISOR_LOST


async def test_after_a_restart_of_the_machine_the_cause_is_that(machine: Machine) -> None:
    await leave_behind(machine, boot_id="of-another-boot")
    async with machine.runtime() as runtime:
        (ended,) = await runtime.presences()
        assert ended.exit is not None
        assert ended.exit.cause is EndCause.MACHINE_RESTARTED


async def test_a_first_start_cut_short_by_the_borglets_death_never_was(machine: Machine) -> None:
    await leave_behind(machine)
    async with machine.runtime() as runtime:
        assert await runtime.presences() == []
        await runtime.start(a_task("true"), run=1)
        assert (await end_of(runtime)).key == key()


async def test_a_later_start_cut_short_by_the_borglets_death_is_not_a_failure(machine: Machine) -> None:
    await leave_behind(machine, run=2)
    async with machine.runtime() as runtime:
        (ended,) = await runtime.presences()
        assert ended.exit is not None
        assert (ended.exit.cause, ended.exit.detail) == (
            EndCause.STOPPED,
            "the Borglet ended while it restarted the task",
        )


async def test_unreadable_files_are_cleared_away_and_strangers_left_alone(machine: Machine) -> None:
    await leave_behind(machine)
    directory = TaskDirectory(machine.home, key())
    (directory.path / "task.json").write_text('{"task": {"key"')
    stranger = machine.home / "tasks" / "notes"
    stranger.mkdir()
    async with machine.runtime() as runtime:
        assert await runtime.presences() == []
        assert not directory.path.exists()
        assert stranger.is_dir()


async def test_a_supervisor_asked_by_sigterm_ends_its_task_in_order(machine: Machine) -> None:
    """Send SIGTERM to a supervisor, as init does when the machine shuts down. It must stop its task normally."""
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sleep", "100"), run=1)
        os.kill(supervisor_pid(machine), signal.SIGTERM)
        end = await end_of(runtime)
        assert end.exit is not None
        assert (end.exit.cause, end.exit.signal) == (EndCause.STOPPED, signal.SIGTERM)


async def test_nonsense_on_the_control_fifo_does_no_harm(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sleep", "100"), run=1)
        directory = TaskDirectory(machine.home, key())
        directory.control.write_bytes(b"stop\nstop x y\n\xff\xfe\n" + b"\n" * 100)
        await eventually(lambda: "unknown request" in directory.complaint(), "the complaint")
        await runtime.stop(key(), notice_s=5, cause=EndCause.STOPPED)
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.cause is EndCause.STOPPED


async def test_a_bottomless_folder_of_a_task_stops_no_borglet(machine: Machine) -> None:
    """Delete a folder that is deeper than Python's stack, the longest path, and the number of file descriptors."""
    dig = "import os\nfor _ in range(1500):\n os.mkdir('d' * 10); os.chdir('d' * 10)\nopen('bottom', 'w')"
    async with machine.runtime() as runtime:
        await runtime.start(python(dig), run=1)
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.status == 0
        await runtime.remove(key())
    async with machine.runtime() as runtime:
        assert await runtime.presences() == []
        assert runtime.capacity()["disk"] > 0
    assert os.listdir(machine.home / "trash") == []


async def test_a_shell_never_opens_outside_of_what_holds_a_task(tmp_path: Path) -> None:
    """Restart the Borglet with another runtime, and open a shell in a task of the first. The shell must be rejected.

    The second runtime would open it outside of what isolates the task.
    """
    contained = Machine(tmp_path / "home", OciSettings(disk_interval_s=0.0))
    open_ = Machine(tmp_path / "home", ProcessSettings(disk_interval_s=0.0))
    order = [contained, open_] if may_limit() else [open_]
    for before, after in zip(order, reversed(order), strict=True):
        async with before.runtime() as runtime:
            await runtime.start(a_task("sleep", "100"), run=1)
        if before is after:  # without root there is no other runtime, so the file is changed to name one
            directory = TaskDirectory(before.home, key())
            kept = directory.kept()
            assert kept is not None
            directory.write_kept(msgspec.structs.replace(kept, runtime="oci"))
        async with after.runtime() as runtime:
            claims = ShellClaims("ab" * 16, "m1", key(), "ada", 0.0, 60.0, 60.0, 600.0, command=["id"])
            with pytest.raises(ShellRefused, match=r"was started by the runtime .*restart the task"):
                await runtime.open_shell(claims)
            await runtime.stop(key(), notice_s=0, cause=EndCause.STOPPED)
            await end_of(runtime)
            await runtime.remove(key())


async def test_a_task_of_a_borglet_without_identities_gets_one(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sleep", "100"), run=1)
        folder = TaskDirectory(machine.home, key()).identity.parent
        if folder.exists():
            folder.rmdir()
        await runtime.identify(key(), "token")
        assert (folder / "token").read_text() == "token"


async def test_adoption_does_not_wait_for_the_trash(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(a_task("sleep", "100"), run=1)
    for number in range(3000):
        (machine.home / "trash" / f"{number}").mkdir()
    async with machine.runtime() as runtime:
        assert len(await runtime.presences()) == 1
        assert os.listdir(machine.home / "trash"), "it was waited for"
        await eventually(lambda: not os.listdir(machine.home / "trash"), "the trash is deleted")
