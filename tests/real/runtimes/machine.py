"""Builders and waiting functions for tests of the process runtime."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from borglet.messages import LogRequest, RunTask, TaskKey
from borglet.runtimes.base.runtime import Presence
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.home.taskdirs import TaskDirectory
from borglet.runtimes.oci.bundle import INIT
from borglet.runtimes.oci.oci import ENGINE, FIRST_UID, UIDS, OciRuntime, OciSettings
from borglet.runtimes.process import ProcessRuntime, ProcessSettings
from borglet.runtimes.supervisor import proctable

# Batch tasks get the CPU that others leave. While tests run in parallel this can be little.
BOUND_S = 110.0
MIB = 2**20


TENANTS: dict[str, Any] = {"first_uid": FIRST_UID, "uids": UIDS}  # settings: one user per tenant


def key(index: int = 0, incarnation: int = 1) -> TaskKey:
    return TaskKey("ab" * 16, index, incarnation)


def a_task(*command: str, **changes: Any) -> RunTask:
    fields: dict[str, Any] = {
        "key": key(),
        "name": "aa/ada/web/0",
        "command": list(command),
        "env": {},
        "limit": {"cpu": 500, "ram": 256 * MIB, "disk": 100 * MIB},
        "ports": {"http": 20001},
        "priority": 200,
        "latency_sensitive": True,
        "prod": True,
        "spec_version": 1,
        "notice_s": 10.0,
    }
    return RunTask(**(fields | changes))


def python(program: str, **changes: Any) -> RunTask:
    """Return a task that runs a Python program. `changes`: other fields of the task."""
    return a_task("python3", "-I", "-S", "-c", program, **changes)


@dataclass
class Machine:
    home: Path
    settings: ProcessSettings | OciSettings

    @property
    def contained(self) -> bool:
        return isinstance(self.settings, OciSettings)

    def open(self) -> SupervisedRuntime:
        if isinstance(self.settings, OciSettings):
            return OciRuntime(self.home, self.settings)
        return ProcessRuntime(self.home, self.settings)

    def work_of(self, task: TaskKey | None = None) -> Path:
        """Return the path of a task's working directory on the machine."""
        return TaskDirectory(self.home, task or key()).work

    def with_settings(self, **changes: Any) -> Machine:
        self.settings = replace(self.settings, **changes)
        return self

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[SupervisedRuntime]:
        runtime = self.open()
        await runtime.presences()
        try:
            yield runtime
        finally:
            await runtime.close()


def open_to_users(machine: Machine) -> Machine:
    """Allow all users to pass through the folders above the home, which pytest closes, and return the machine."""
    for folder in machine.home.parents:
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    return machine


async def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true result of `condition`, or fail after a bound with the text `what`."""
    deadline = time.monotonic() + BOUND_S / 2
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.01)
    return answer


async def end_of(runtime: SupervisedRuntime) -> Presence:
    return await asyncio.wait_for(runtime.next_end(), BOUND_S / 2)


async def end_while_sampling(runtime: SupervisedRuntime) -> Presence:
    """Sample and enforce limits repeatedly, as the agent does, until a task ends, and return its record."""
    end = asyncio.ensure_future(runtime.next_end())
    deadline = time.monotonic() + BOUND_S / 2
    while not end.done():
        assert time.monotonic() < deadline, "no end came"
        await runtime.sample()
        await asyncio.wait([end], timeout=0.02)
    return end.result()


async def text_of(runtime: SupervisedRuntime, stream: str = "stdout", task: TaskKey | None = None) -> str:
    chunk = await runtime.read_log(LogRequest("r", task or key(), stream, offset=0, limit_bytes=MIB))
    assert chunk.error == ""
    return chunk.text


async def line_of(runtime: SupervisedRuntime, task: TaskKey | None = None) -> str:
    """Wait for the first whole line of the task's output and return it."""
    deadline = time.monotonic() + BOUND_S / 2
    while "\n" not in (text := await text_of(runtime, task=task)):
        assert time.monotonic() < deadline, "the task wrote nothing"
        await asyncio.sleep(0.01)
    return text.splitlines()[0]


def supervisor_pid(machine: Machine, task: TaskKey | None = None) -> int:
    supervisor = TaskDirectory(machine.home, task or key()).supervisor()
    assert supervisor is not None
    return supervisor.pid


def is_alive(pid: int) -> bool:
    process = proctable.read(pid)
    return process is not None and process.state != b"Z"


def descendants(pid: int) -> list[int]:
    return proctable.descendants(proctable.children_of(proctable.table()), pid)


def processes_of(machine: Machine, task: TaskKey | None = None) -> list[int]:
    """Return the ids of the task's own processes.

    The init of a container, the program that starts it, and processes that have ended are left out.
    """
    found = descendants(supervisor_pid(machine, task))
    return [pid for pid in found if (program := command_line(pid)[0]) and not _opens_a_container(program)]


def _opens_a_container(program: bytes) -> bool:
    return program == INIT.encode() or Path(os.fsdecode(program)).name == ENGINE


async def process_of(machine: Machine, task: TaskKey | None = None) -> int:
    """Wait until the task has exactly one process of its own, and return its id."""
    found: list[int] = await eventually(
        lambda: len(now := processes_of(machine, task)) == 1 and now, "the task's own process"
    )
    return found[0]


def command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return [b""]


def may_limit() -> bool:
    """Return whether this user can create control groups. If so, the mode `auto` must use them."""
    return os.geteuid() == 0
