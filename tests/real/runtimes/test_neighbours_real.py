"""Tests of isolation between real tasks (§6.2): a task that misbehaves does not affect its neighbour."""

from __future__ import annotations

import asyncio
import time

from borglet.messages import EndCause, Slack, TaskKey
from borglet.pressure.control_loop import Guard, GuardSettings
from borglet.pressure.cpu import CpuSettings
from borglet.pressure.memory_reserve import AvailableMemory
from borglet.pressure.readings import MachineReadings
from borglet.pressure.victims import PressureTenant
from borglet.runtimes.process import ProcessRuntime
from tests.real.runtimes.machine import (
    BOUND_S,
    MIB,
    Machine,
    descendants,
    end_of,
    end_while_sampling,
    eventually,
    key,
    line_of,
    python,
    supervisor_pid,
    text_of,
)
from tests.unit.borglet_pressure.machine import Drawn

# This program counts and forks each time. Without memory or processes left it would end.
NEIGHBOUR = """
import os, time
held = b'x' * 20_000_000
count = 0
while True:
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    count += 1
    print(count, flush=True)
    time.sleep(0.05)
"""
# This program exceeds its limit by far, up to a bound in the program.
MEMORY_HOG = "held = [b'x' * 2**20 for _ in range(300)]; import time; time.sleep(60)"
# Every process forks: 2, 4, 8 …, up to a bound of five hundred in the program.
FORK_BOMB = """
import os, time
for _ in range(9):
    try:
        os.fork()
    except BlockingIOError:
        pass
print('refused or done', flush=True)
time.sleep(60)
"""
PRESENT = "import time; held = b'x' * {} * 2**20; print('held', flush=True); time.sleep(60)"


async def goes_on(runtime: ProcessRuntime, task: TaskKey) -> None:
    """Wait until the task has printed three more numbers, and check that it is still in its first run."""

    async def count() -> int:
        return len((await text_of(runtime, task=task)).split())

    before, deadline = await count(), time.monotonic() + BOUND_S / 2
    while await count() < before + 3:
        assert time.monotonic() < deadline, f"it stopped at {before}"
        await asyncio.sleep(0.02)
    (presence,) = [presence for presence in await runtime.presences() if presence.key == task]
    assert presence.exit is None
    assert presence.run == 1


async def test_a_memory_hog_dies_alone(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(python(NEIGHBOUR, key=key(0), limit={"ram": 64 * MIB}), run=1)
        await line_of(runtime, key(0))
        hog = python(MEMORY_HOG, key=key(1), limit={"ram": 64 * MIB}, priority=300)
        await runtime.start(hog, run=1)
        kernel = runtime.attributes()["isolation.memory"] != "polled"
        end = await (end_of(runtime) if kernel else end_while_sampling(runtime))
        assert end.key == key(1)
        assert end.exit is not None
        assert end.exit.cause is EndCause.OUT_OF_MEMORY
        assert "limit is 64 MiB" in end.exit.detail
        await goes_on(runtime, key(0))
        usage = (await runtime.sample())[key(0)]
        assert usage.oom_kills == 0


async def test_a_fork_bomb_dies_alone(machine: Machine) -> None:
    async with machine.runtime() as runtime:
        await runtime.start(python(NEIGHBOUR, key=key(0), max_processes=8), run=1)
        await line_of(runtime, key(0))
        await runtime.start(python(FORK_BOMB, key=key(1), limit={}, max_processes=40), run=1)
        kernel = runtime.attributes()["isolation.processes"] != "polled"
        pid = supervisor_pid(machine, key(1))
        if kernel:
            await eventually(lambda: len(descendants(pid)) >= 30, "the bomb")
            await line_of(runtime, key(1))
            assert len(descendants(pid)) <= 42  # and the processes that manage the container, outside of it
            await goes_on(runtime, key(0))
            await runtime.stop(key(1), notice_s=0.0, cause=EndCause.STOPPED)
            end = await end_of(runtime)
        else:
            end = await end_while_sampling(runtime)
            assert end.exit is not None
            assert end.exit.cause is EndCause.OUT_OF_PROCESSES
        assert end.key == key(1)
        assert descendants(pid) == []  # no process is left
        await goes_on(runtime, key(0))


async def test_a_machine_out_of_memory_ends_its_lowest_priority_and_says_why(machine: Machine) -> None:
    """Report that the machine's memory runs out. The task of the lowest priority must end, with figures in the reason.

    The reading of the memory is invented. The tasks and their ends are real.
    """
    async with machine.runtime() as runtime:
        serving = python(PRESENT.format(60), key=key(0), limit={"ram": 128 * MIB})
        batch = {"latency_sensitive": False, "prod": False, "limit": {"ram": 128 * MIB}}
        low = python(PRESENT.format(40), key=key(1), priority=110, **batch)
        lowest = python(PRESENT.format(40), key=key(2), priority=10, slack=Slack(ram=True), **batch)
        tasks = {task.key: task for task in (serving, low, lowest)}
        for task in tasks.values():
            await runtime.start(task, run=1)
        for task in tasks:
            await line_of(runtime, task)
        readings = Drawn(ram=AvailableMemory(2048 * MIB, 1024 * MIB))
        guard = Guard(runtime, readings)

        async def look(now: float) -> list[TaskKey]:
            tenants = [PressureTenant(tasks[one], usage) for one, usage in (await runtime.sample()).items()]
            orders = await guard.look(tenants, now)
            for victim in orders.end:
                await runtime.stop(victim.key, notice_s=0.0, cause=EndCause.MACHINE_SHORT, detail=victim.detail)
            return [victim.key for victim in orders.end]

        assert await look(0.0) == []
        readings.ram = AvailableMemory(2048 * MIB, 40 * MIB)
        assert await look(1.0) == [key(2)]
        end = await end_of(runtime)
        assert end.exit is not None
        assert (end.key, end.exit.cause) == (key(2), EndCause.MACHINE_SHORT)
        assert end.exit.detail.startswith(
            "the machine ran out of memory: 40 MiB of 2048 MiB are left, and the Borglet keeps 64 MiB"
        )
        assert "its limit is 128 MiB, and its priority is 10" in end.exit.detail
        assert await look(2.0) == [key(1)]
        assert (await end_of(runtime)).key == key(1)
        assert await look(3.0) == []  # production within its limits stays in any case


async def test_threads_that_are_ready_are_counted(machine: Machine) -> None:
    spin = "import threading; [threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start() for _ in 'ab']"
    async with machine.runtime() as runtime:
        await runtime.start(python(f"print('up', flush=True)\n{spin}", key=key(0)), run=1)
        await runtime.start(python("print('up', flush=True); import time; time.sleep(60)", key=key(1)), run=1)
        for task in (key(0), key(1)):
            await line_of(runtime, task)
        deadline = time.monotonic() + BOUND_S / 2
        # Of two threads that spin under one interpreter lock, one is ready. A thread is also ready before it sleeps.
        while (found := await runtime.ready([key(0), key(1), key(7)])) != {key(0): 1, key(1): 0}:
            assert time.monotonic() < deadline, found


SPIN = """
import os
print('up', flush=True)
for _ in range(os.cpu_count() - 1):
    if os.fork() == 0:
        break
while True:
    pass
"""


async def test_a_greedy_server_is_capped_until_batch_has_its_floor(machine: Machine) -> None:
    """Run a greedy server beside a batch task. The server is capped until the batch task gets its minimum of CPU.

    Everything is real, but the control loop waits less than in production.
    """
    async with machine.runtime() as runtime:
        isolation = runtime.attributes()
        if not isolation["isolation.cpu_classes"].startswith("cgroup-") or (isolation["isolation.cpu_quota"] == "none"):
            return
        greedy = python(SPIN, key=key(0), limit={"cpu": 100})
        batch = python(SPIN, key=key(1), limit={"cpu": 100}, latency_sensitive=False, prod=False, priority=110)
        tasks = {task.key: task for task in (greedy, batch)}
        for task in tasks.values():
            await runtime.start(task, run=1)
        patience = CpuSettings(floor_share=0.2, starved_after_s=0.5, settle_s=0.5)
        guard = Guard(runtime, MachineReadings(machine.home, {}), settings=GuardSettings(cpu=patience))
        floor = 0.2 * runtime.capacity()["cpu"]
        starved, deadline = 0, time.monotonic() + BOUND_S / 2
        while True:
            usages = await runtime.sample()
            if usages[key(1)].throttled_milli == 0 and usages[key(1)].cpu_milli < floor / 4:
                starved += 1
            elif starved and usages[key(1)].cpu_milli >= floor * 0.7:
                break  # the batch task starved before, and has its floor now
            assert time.monotonic() < deadline, (starved, usages[key(1)].cpu_milli)
            await guard.look([PressureTenant(tasks[one], usage) for one, usage in usages.items()], time.monotonic())
            await asyncio.sleep(0.3)
