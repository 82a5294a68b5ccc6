"""Start, watch and stop the supervisors of tasks. If a supervisor was killed, kill the processes of its task."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import marshal
import os
import select
import signal
import time

from borglet.messages import EndCause
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.home.taskdirs import SupervisorId, TaskDirectory
from borglet.runtimes.supervisor import interpreters, proctable

log = logging.getLogger(__name__)

# The largest pipe of an ordinary user. The kernel accepts a command and environment of up to twice this size.
MAX_LAUNCH_BYTES = 2**20
START_TIMEOUT_S = 20.0
BEGIN_TIMEOUT_S = 5.0
KILL_TIMEOUT_S = 5.0
KILL_POLL_S = 0.01
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


async def spawn(directory: TaskDirectory, launch: dict[str, object], groups: dict[str, str]) -> SupervisorId:
    """Start a supervisor, which starts the task. Return the supervisor when the task's program runs.

    This function writes supervisor.json before it sends `launch` to the supervisor, and the supervisor waits for
    `launch`. So if this Borglet is killed, the next Borglet finds every supervisor that may have started a task. Raises
    `StartFailed` if the supervisor or the program does not start.
    """
    content = marshal.dumps(launch)
    if len(content) > MAX_LAUNCH_BYTES:
        raise StartFailed(
            f"command, env: together they have {len(content)} bytes, and the limit is {MAX_LAUNCH_BYTES}; shorten them"
        )
    reader, writer = os.pipe()
    answer, answer_writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MAX_LAUNCH_BYTES)
        actions = [
            (os.POSIX_SPAWN_DUP2, reader, 0),
            (os.POSIX_SPAWN_DUP2, answer_writer, 1),
            (os.POSIX_SPAWN_OPEN, 2, str(directory.path / "supervisor.log"), LOG_FLAGS, 0o600),
        ]
        pid = interpreters.spawn("task_supervisor", "borg-task", directory.name, file_actions=actions)
    except OSError as error:
        os.close(writer)
        os.close(answer)
        raise StartFailed(
            f"the machine cannot start the task's supervisor: {error}; an SRE can check the machine's memory"
        ) from error
    finally:
        os.close(reader)
        os.close(answer_writer)
    try:
        process = proctable.read(pid)
        assert process is not None, "our own child stays in the table until we reap it"
        supervisor = SupervisorId(pid, process.started, proctable.boot_id(), groups)
        directory.write_supervisor(supervisor)
        try:
            os.write(writer, content)
        except BrokenPipeError as error:
            raise StartFailed(_ended_early(directory)) from error
    finally:
        os.close(writer)
    await _await_start(answer, directory, pid)
    return supervisor


async def _await_start(answer: int, directory: TaskDirectory, pid: int) -> None:
    """Wait until the supervisor reports that the task's program runs. `answer`: the file descriptor of the pipe for the
    report; it is closed at the end. Raises `StartFailed` if the program does not start, or not in time.
    """
    try:
        text = await interpreters.read_answer(answer, START_TIMEOUT_S)
    except TimeoutError as error:
        os.kill(pid, signal.SIGKILL)
        raise StartFailed(
            f"the task's supervisor did not answer within {START_TIMEOUT_S:g} s; an SRE can check the machine's load"
        ) from error
    finally:
        os.close(answer)
    word, _, reason = text.partition(" ")
    if word == "failed":
        raise StartFailed(reason)
    if word != "started":
        raise StartFailed(_ended_early(directory))


def _ended_early(directory: TaskDirectory) -> str:
    why = directory.complaint() or "it was killed"
    return f"the task's supervisor ended before the task started: {why}; an SRE can check the machine's memory"


async def lives(supervisor: SupervisorId, directory: TaskDirectory, pidfd: int) -> bool:
    """Return whether a supervisor that an earlier Borglet started still runs. If the supervisor has not started its
    task yet, first wait a limited time until the supervisor starts the task or ends.
    """
    gone = select.poll()
    gone.register(pidfd, select.POLLIN)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - supervisor.started / os.sysconf("SC_CLK_TCK")
    deadline = time.monotonic() + (BEGIN_TIMEOUT_S if age_s < BEGIN_TIMEOUT_S else 0.0)
    while not directory.begun() and not gone.poll(0) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    return not gone.poll(0)


def open_pidfd(supervisor: SupervisorId) -> int:
    """Return a file descriptor that becomes readable when the supervisor ends. Return -1 if the supervisor has already
    ended.
    """
    try:
        pidfd = os.pidfd_open(supervisor.pid)
    except ProcessLookupError:
        return -1
    if proctable.still_runs(supervisor.pid, supervisor.started):
        return pidfd
    os.close(pidfd)
    return -1


def send_stop(directory: TaskDirectory, *, notice_s: float, cause: EndCause, detail: str) -> None:
    """Ask the supervisor to stop its task. If the supervisor cannot be reached, only write a log line."""
    text = " ".join(detail.split())[:1000]
    try:
        _send(directory, f"stop {int(max(0.0, notice_s) * 1000)} {cause.value} {text}\n")
    except OSError as error:
        log.warning("task %s: cannot ask the supervisor to stop the task: %s", directory.name, error)


def send_signal(directory: TaskDirectory) -> None:
    """Ask the supervisor to send SIGHUP to the first process of its task. Raises OSError if the supervisor cannot be
    reached.
    """
    _send(directory, "signal\n")


def _send(directory: TaskDirectory, request: str) -> None:
    control = os.open(directory.control, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.write(control, request.encode(errors="replace"))
    finally:
        os.close(control)


async def kill_leftovers(directory: TaskDirectory, groups: dict[str, str]) -> set[int]:
    """Kill all processes of a task whose supervisor has ended: the members of its control groups `groups`, and the
    processes with the task's marker in their environment.

    Return the pids of the processes that still exist after `KILL_TIMEOUT_S` seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + KILL_TIMEOUT_S
    while True:
        left = cgroupfs.kill(groups)
        for pid in proctable.with_environment(directory.marker):
            if proctable.send_signal(pid, signal.SIGKILL):
                left.add(pid)
        if not left or loop.time() > deadline:
            cgroupfs.remove(groups)
            return left
        await asyncio.sleep(KILL_POLL_S)
