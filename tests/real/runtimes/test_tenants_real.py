"""Tests of tasks of different tenants as ordinary processes under root: they cannot affect each other."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from borglet.messages import EndCause, RunTask, ShellClaims, TaskKey
from borglet.runtimes.base.task_users import TASK_UID
from borglet.runtimes.home.supervised_runtime import SupervisedRuntime
from borglet.runtimes.home.taskdirs import TaskDirectory, directory_name
from borglet.runtimes.oci.oci import FIRST_UID, UIDS, OciSettings
from borglet.runtimes.process import ProcessSettings
from borglet.runtimes.runtime_choice import RuntimeWishes, open_runtime
from tests.real.runtimes.machine import (
    BOUND_S,
    TENANTS,
    Machine,
    a_task,
    end_of,
    is_alive,
    key,
    line_of,
    may_limit,
    open_to_users,
    process_of,
    python,
    supervisor_pid,
    text_of,
)

pytestmark = pytest.mark.skipif(not may_limit(), reason="only root has users to give")

SHELF = TaskKey("cd" * 16, 0, 1)
EVE = TaskKey("ef" * 16, 0, 1)
SIBLING = TaskKey("ab" * 16, 1, 1)
KEEP = """umask 000; echo hidden > secret; echo hidden > $TMPDIR/secret
echo hidden > $BORG_ALLOC_DIR/shared/secret; echo ready; exec sleep 100"""

# The task of another tenant tries this. Paths and numbers come in its environment.
ATTACK = """
import ctypes, errno, json, os, resource, signal
assert os.getuid() != 0
libc = ctypes.CDLL(None, use_errno=True)
tried = {}
def attempt(name, action):
    try:
        action()
        tried[name] = 'done'
    except OSError as error:
        tried[name] = errno.errorcode[error.errno]
def call(function, *arguments):
    if function(*arguments) == -1:
        raise OSError(ctypes.get_errno(), 'refused')
class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]
pid, buffer = int(os.environ['VICTIM']), ctypes.create_string_buffer(8)
here, there = Part(ctypes.addressof(buffer), 8), Part(0x400000, 8)
for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP, signal.SIGUSR1, 0):
    attempt(f'kill {number}', lambda: os.kill(pid, number))
attempt('pidfd', lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
attempt('group', lambda: os.killpg(os.getpgid(pid), signal.SIGKILL))
attempt('ptrace', lambda: call(libc.ptrace, 16, pid, None, None))
attempt('memory', lambda: call(libc.process_vm_readv, pid, ctypes.byref(here), ctypes.c_ulong(1),
                               ctypes.byref(there), ctypes.c_ulong(1), ctypes.c_ulong(0)))
attempt('limits', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, 1)))
attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
attempt('cores', lambda: os.sched_setaffinity(pid, {0}))
attempt('class', lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
for name in ('environ', 'mem', 'fd/1', 'cwd/secret', 'root/etc/hostname'):
    attempt(name, lambda: open(f'/proc/{pid}/{name}', 'rb').read(16))
for path in os.environ['PATHS'].split(':'):
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(16))
print(json.dumps(tried), flush=True)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return open_to_users(Machine(tmp_path / "home", ProcessSettings(disk_interval_s=0.0, **TENANTS)))


def victim(**changes: object) -> RunTask:
    return a_task("sh", "-c", KEEP, alloc=SHELF, **changes)


@asynccontextmanager
async def cleaned(machine: Machine) -> AsyncIterator[SupervisedRuntime]:
    """Yield a runtime, and stop all its tasks after the block."""
    async with machine.runtime() as runtime:
        try:
            yield runtime
        finally:
            running = [presence for presence in await runtime.presences() if presence.exit is None]
            for presence in running:
                await runtime.stop(presence.key, notice_s=0, cause=EndCause.STOPPED)
            for _ in running:
                await end_of(runtime)


async def test_a_task_can_not_signal_trace_or_read_another_tenants(machine: Machine) -> None:
    async with cleaned(machine) as runtime:
        await runtime.identify(key(), "identity")
        await runtime.start(victim(env={"SECRET": "hidden"}), run=1)
        assert await line_of(runtime) == "ready"
        pid = await process_of(machine)
        directory, shelf = TaskDirectory(machine.home, key()), machine.home / "allocs" / directory_name(SHELF)
        paths = [
            directory.work,
            directory.work / "secret",
            directory.tmp / "secret",
            directory.identity,
            directory.path / "task.json",
            directory.control,
            machine.home / "logs",
            shelf / "shared",
            shelf / "shared" / "secret",
            shelf / "logs",
            machine.home / "tenants.json",
        ]
        env = {"VICTIM": str(pid), "PATHS": ":".join(map(str, paths))}
        await runtime.start(python(ATTACK, key=EVE, name="aa/eve/mischief/0", env=env), run=1)
        end = await end_of(runtime)
        assert end.key == EVE
        assert end.exit is not None
        assert end.exit.status == 0, await text_of(runtime, "stderr", EVE)
        tried = json.loads(await text_of(runtime, task=EVE))
        assert set(tried.values()) <= {"EPERM", "EACCES"}, tried
        assert len(tried) == 18 + len(paths)
        assert is_alive(pid)
        assert is_alive(supervisor_pid(machine))
        assert os.sched_getscheduler(pid) != os.SCHED_IDLE


async def test_each_tenant_has_a_user_and_its_tasks_share_files(machine: Machine) -> None:
    async with cleaned(machine) as runtime:
        assert runtime.attributes()["isolation.user"] == "tenant"
        await runtime.start(victim(), run=1)
        assert await line_of(runtime) == "ready"
        read = a_task("sh", "-c", "id -u; id -g; cat $BORG_ALLOC_DIR/shared/secret", key=SIBLING, alloc=SHELF)
        await runtime.start(read, run=1)
        await end_of(runtime)
        uid = machine.work_of().stat().st_uid
        assert FIRST_UID <= uid < FIRST_UID + UIDS
        assert await text_of(runtime, task=SIBLING) == f"{uid}\n{uid}\nhidden\n"
        await runtime.start(a_task("true", key=EVE, name="aa/eve/x/0"), run=1)
        await end_of(runtime)
        assert machine.work_of(EVE).stat().st_uid != uid


async def test_a_user_that_the_job_file_names_may_enter_its_alloc(machine: Machine) -> None:
    machine.with_settings(users=frozenset({"nobody"}))
    async with cleaned(machine) as runtime:
        await runtime.start(victim(), run=1)
        assert await line_of(runtime) == "ready"
        read = a_task("sh", "-c", "id -un; cat $BORG_ALLOC_DIR/shared/secret", key=SIBLING, alloc=SHELF, user="nobody")
        await runtime.start(read, run=1)
        await end_of(runtime)
        assert await text_of(runtime, task=SIBLING) == "nobody\nhidden\n"


async def whoami(runtime: SupervisedRuntime) -> str:
    command = ["sh", "-c", "id -u; id -G; cat secret"]
    claims = ShellClaims("s" * 32, "host", key(), "ann", 0.0, 2.0**40, 60.0, 60.0, command)
    shell = await runtime.open_shell(claims)
    try:
        found = b""
        while piece := await asyncio.wait_for(shell.read(4096), BOUND_S / 2):
            found += piece
    finally:
        await shell.close()
    return " ".join(found.decode().split())


async def test_what_an_earlier_release_started_runs_on_and_gets_its_tenants_user_at_its_next_start(
    machine: Machine,
) -> None:
    machine.with_settings(first_uid=0, uids=0, default_user=str(TASK_UID))
    async with machine.runtime() as earlier:
        await earlier.start(victim(), run=1)
        assert await line_of(earlier) == "ready"
        pid = await process_of(machine)
    machine.with_settings(default_user="", **TENANTS)
    shelf = machine.home / "allocs" / directory_name(SHELF)
    async with cleaned(machine) as runtime:
        await runtime.identify(key(), "renewed")
        neighbour = a_task("sh", "-c", "echo x; exec sleep 100", key=SIBLING, alloc=SHELF)
        await runtime.start(neighbour, run=1)
        assert [presence.exit for presence in await runtime.presences()] == [None, None]
        assert is_alive(pid)
        assert os.stat(f"/proc/{pid}").st_uid == TASK_UID
        assert await whoami(runtime) == f"{TASK_UID} {TASK_UID} hidden"
        assert stat.S_IMODE(shelf.stat().st_mode) == 0o711, "the alloc stays open while such a task lives there"
        await runtime.stop(key(), notice_s=0, cause=EndCause.STOPPED)
        await end_of(runtime)
        script = "set -e; cat secret $TMPDIR/secret; echo more >> secret; echo more >> $BORG_ALLOC_DIR/shared/secret"
        await runtime.start(a_task("sh", "-c", script, alloc=SHELF), run=2)
        end = await end_of(runtime)
        assert end.exit is not None
        assert end.exit.status == 0, await text_of(runtime, "stderr")
        uid = machine.work_of(SIBLING).stat().st_uid
        assert (machine.work_of() / "secret").stat().st_uid == uid != TASK_UID
        assert (shelf / "shared" / "secret").stat().st_uid == uid
        assert (stat.S_IMODE(shelf.stat().st_mode), shelf.stat().st_gid) == (0o710, uid)


async def test_a_shell_is_the_tasks_user(machine: Machine) -> None:
    async with cleaned(machine) as runtime:
        await runtime.start(victim(), run=1)
        assert await line_of(runtime) == "ready"
        uid = machine.work_of().stat().st_uid
        assert await whoami(runtime) == f"{uid} {uid} hidden"


async def test_a_container_gets_a_number_of_its_own_after_a_change_of_the_runtime(tmp_path: Path) -> None:
    tasks = [key(0), key(1)]
    before = open_to_users(Machine(tmp_path / "home", ProcessSettings(**TENANTS)))
    async with before.runtime() as runtime:
        for task in tasks:
            await runtime.start(a_task("true", key=task), run=1)
            await end_of(runtime)
    shared = {before.work_of(task).stat().st_uid for task in tasks}
    assert len(shared) == 1
    box = Machine(tmp_path / "home", OciSettings())
    async with cleaned(box) as runtime:
        for task in tasks:
            await runtime.start(a_task("sleep", "100", key=task), run=2)
        own = {box.work_of(task).stat().st_uid for task in tasks}
    assert len(own) == 2


@pytest.mark.parametrize(
    ("user", "isolation"), [("", "tenant"), ("nobody", "own")], ids=["by default", "a user by choice"]
)
def test_the_process_runtime_of_root_has_a_user_per_tenant_unless_told_otherwise(
    machine: Machine, user: str, isolation: str
) -> None:
    async def look() -> dict[str, str]:
        runtime = open_runtime(machine.home, RuntimeWishes(runtime="process", task_user=user))
        attributes = runtime.attributes()
        await runtime.close()
        return attributes

    assert asyncio.run(look())["isolation.user"] == isolation
