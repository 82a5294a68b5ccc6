"""Tests that limits hold, in all modes, and that an end by a limit names that limit with figures."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from borglet.messages import EndCause, Slack
from borglet.runtimes.cgroups import cgroupfs
from borglet.runtimes.supervisor.proctable import threads_of
from tests.real.runtimes.machine import (
    BOUND_S,
    MIB,
    Machine,
    descendants,
    end_of,
    end_while_sampling,
    key,
    line_of,
    python,
    supervisor_pid,
    text_of,
)

HOG = "import time; held = [b'x' * 2**20 for _ in range(160)]; print('full', flush=True); time.sleep(100)"
HOG_IN_A_CHILD = f"import os\nif os.fork() == 0:\n    {HOG}\nos.wait(); import time; time.sleep(100)"


@pytest.mark.parametrize("program", [HOG, HOG_IN_A_CHILD], ids=["itself", "a child"])
async def test_a_task_over_its_memory_is_ended_with_the_figures(machine: Machine, program: str) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(python(program, limit={"ram": 64 * MIB}), run=1)
        kernel = runtime.attributes()["isolation.memory"] != "polled"
        # The kernel enforces the limit by itself. Without control groups, the samples enforce it.
        end = await (end_of(runtime) if kernel else end_while_sampling(runtime))
        assert end.exit is not None
        assert end.exit.cause is EndCause.OUT_OF_MEMORY
        assert "limit is 64 MiB" in end.exit.detail
        if kernel:
            assert await text_of(runtime) == ""  # the program never reached its output


# The program bounds itself: forty children that only wait.
FORKS = """
import os, sys, time
made = 0
until = time.monotonic() + 2  # the container engine may count for a moment, until it has ended
while made < 40:
    try:
        if os.fork() == 0:
            time.sleep(60); os._exit(0)
    except BlockingIOError:
        if time.monotonic() < until:
            time.sleep(0.05)
            continue
        print(made, flush=True); sys.exit(3)
    made += 1
print(made, flush=True)
time.sleep(60)
"""


async def test_forks_are_bounded(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(python(FORKS, max_processes=10), run=1)
        if runtime.attributes()["isolation.processes"] != "polled":
            end = await end_of(runtime)
            assert await text_of(runtime) == "9\n"
            assert end.exit is not None
            assert (end.exit.cause, end.exit.status) == (EndCause.EXITED, 3)
            assert "the kernel rejected" in end.exit.detail
            assert "forks at the limit of processes" in end.exit.detail
        else:
            assert await line_of(runtime) == "40"
            end = await end_while_sampling(runtime)
            assert end.exit is not None
            assert end.exit.cause is EndCause.OUT_OF_PROCESSES
            assert end.exit.detail == (
                "the task had 41 processes and threads, and its limit is 10; start fewer processes"
            )


async def test_a_task_over_its_disk_is_ended(machine: Machine) -> None:
    program = "open('f', 'wb').write(b'x' * 3_000_000); print('up', flush=True); import time; time.sleep(60)"
    async with machine.runtime() as runtime:
        await runtime.start(python(program, limit={"disk": 2 * MIB}), run=1)
        await line_of(runtime)
        end = await end_while_sampling(runtime)
        assert end.exit is not None
        assert end.exit.cause is EndCause.OUT_OF_DISK
        assert end.exit.detail.startswith("the task used 2.8")


async def test_a_limit_shrunk_below_what_is_used_ends_the_task(machine: Machine) -> None:
    program = "import time; held = b'x' * 60_000_000; print('up', flush=True); time.sleep(60)"
    async with machine.runtime() as runtime:
        task = python(program, limit={"ram": 200 * MIB})
        await runtime.start(task, run=1)
        await line_of(runtime)
        smaller = msgspec.structs.replace(task, limit={"ram": 32 * MIB}, priority=100)
        await runtime.resize(smaller)
        (presence,) = await runtime.presences()
        assert presence.task == smaller
        end = await end_while_sampling(runtime)
        assert end.exit is not None
        assert end.exit.cause is EndCause.OUT_OF_MEMORY
        assert "limit is 32 MiB" in end.exit.detail


async def test_limits_of_a_running_task_go_up_and_down_in_place(machine: Machine) -> None:
    """Raise and lower the limits of a running task.

    With version 1 of control groups the limit with swap must never be below the one without, so the order of writes
    matters.
    """
    program = "print('up', flush=True); import time; time.sleep(60)"
    async with machine.runtime() as runtime:
        task = python(program, limit={"ram": 64 * MIB})
        await runtime.start(task, run=1)
        await line_of(runtime)
        for mebibytes in (128, 32):
            limit = {"ram": mebibytes * MIB, "cpu": 1000}
            await runtime.resize(msgspec.structs.replace(task, limit=limit, max_processes=mebibytes))
            tree = runtime._runtime_home.tree
            if not tree.roots:
                assert runtime.attributes()["isolation.memory"] == "polled"
                continue
            groups = tree.groups_of(f"{key().job}.0.1")
            assert cgroupfs.memory_limit(groups) == mebibytes * MIB
            swap = Path(cgroupfs.memory_directory(groups)) / "memory.memsw.limit_in_bytes"
            assert not swap.exists() or int(swap.read_text()) == mebibytes * MIB
            assert cgroupfs.read_number(groups.get("pids") or groups["unified"], "pids.max") == mebibytes


async def test_a_grown_limit_lets_the_task_go_on(machine: Machine) -> None:
    program = (
        "import os, time\nprint('up', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        "held = b'x' * 100_000_000; print('held', flush=True); time.sleep(60)"
    )
    async with machine.runtime() as runtime:
        task = python(program, limit={"ram": 40 * MIB})
        await runtime.start(task, run=1)
        await line_of(runtime)
        await runtime.resize(msgspec.structs.replace(task, limit={"ram": 200 * MIB}))
        (machine.work_of() / "go").touch()
        await eventually_text(runtime, "up\nheld\n")
        await runtime.sample()
        (presence,) = await runtime.presences()
        assert presence.exit is None


async def eventually_text(runtime: object, wanted: str) -> None:
    deadline = time.monotonic() + BOUND_S / 2
    while (await text_of(runtime)) != wanted:  # type: ignore[arg-type]
        assert time.monotonic() < deadline


async def test_cpu_gets_its_share_or_a_lower_priority(machine: Machine) -> None:
    """Run a batch task. It gets a CPU share in its control group, or a lower scheduling priority without groups."""
    program = (
        "import os, threading, time; threading.Thread(target=time.sleep, args=[60]).start();"
        "print(os.nice(0), os.sched_getscheduler(0), flush=True); time.sleep(60)"
    )
    task = python(
        program, latency_sensitive=False, prod=False, priority=50, limit={"cpu": 2000}, slack=Slack(cpu=False)
    )
    async with machine.runtime() as runtime:
        await runtime.start(task, run=1)
        nice, policy = map(int, (await line_of(runtime)).split())
        tree = runtime._runtime_home.tree
        if tree.version == "v1" and tree.enforces("cpu"):
            group = Path(tree.groups_of(f"{key().job}.0.1")["cpu"])
            assert group.parent.name.endswith("-batch")
            if runtime.attributes()["isolation.cpu_classes"] == "cgroup-v1":
                assert (group / "cpu.idle").read_text() == (group.parent / "cpu.idle").read_text() == "1\n"
            # A task that is no longer best effort gets its share of the CPU for batch.
            await runtime.resize(msgspec.structs.replace(task, priority=110))
            assert (group / "cpu.shares").read_text() == "2048\n"
            if runtime.attributes()["isolation.cpu_quota"] != "none":
                assert (group / "cpu.cfs_quota_us").read_text() == "200000\n"
            assert (nice, policy) == (os.nice(0), os.SCHED_IDLE)
            # The task becomes latency-sensitive, with all its threads.
            if os.geteuid() == 0:
                await runtime.resize(msgspec.structs.replace(task, priority=200, latency_sensitive=True))
                threads = [thread for pid in descendants(supervisor_pid(machine)) for thread in threads_of(pid)]
                assert len(threads) >= 2
                assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_OTHER}
        else:
            assert (nice, policy) == (min(os.nice(0) + 15, 19), os.SCHED_IDLE)  # 19 is the largest
            await runtime.resize(msgspec.structs.replace(task, priority=110))
            if os.geteuid() == 0:
                (pid,) = descendants(supervisor_pid(machine))
                assert os.sched_getscheduler(pid) == os.SCHED_BATCH
                assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.nice(0) + 5, 19)


MOST_READS = 30  # per task; a dozen are enough, but a busy machine has other processes to read


async def test_a_sample_reads_little_of_each_task(machine: Machine) -> None:
    """Sample twelve tasks and count the system calls that read, because their number does not depend on the load."""
    count = 12
    async with machine.runtime() as runtime:
        for index in range(count):
            await runtime.start(python("import time; time.sleep(60)", key=key(index)), run=1)
        await runtime.sample()
        before = reads()
        await runtime.sample()
        took = reads() - before
        assert took < MOST_READS * count
        for index in range(count):
            await runtime.stop(key(index), notice_s=0, cause=EndCause.STOPPED)
        for _ in range(count):
            await end_of(runtime)


def reads() -> int:
    """Return the number of system calls that read in this process so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscr"])


async def test_the_supervisor_is_outside_the_tasks_limits(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(python("print('up', flush=True); import time; time.sleep(60)"), run=1)
        await line_of(runtime)
        membership = Path(f"/proc/{supervisor_pid(machine)}/cgroup").read_text()
        assert f"{key().job}.0.1" not in membership


async def test_a_task_may_be_limited_to_one_process(machine: Machine) -> None:
    """Limit a task to one process. Processes that only start it must not count.

    A container engine has more processes until shortly after the program has begun, so the program tries to fork for
    two seconds.
    """
    program = """
import os, time
for _ in range(200):
    try:
        if (child := os.fork()) == 0:
            os._exit(0)
    except BlockingIOError:
        print("alone", flush=True)
        break
    os.waitpid(child, 0)
    time.sleep(0.01)
"""
    async with machine.runtime() as runtime:
        await runtime.start(python(program, max_processes=1), run=1)
        end = await end_of(runtime)
        assert end.exit is not None
        if runtime.attributes()["isolation.processes"] != "polled":
            assert await text_of(runtime) == "alone\n"
