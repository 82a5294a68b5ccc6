"""Tests of the Borglet's control loop against shortages: it throttles tasks first, and then ends the right ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from borglet.messages import Usage
from borglet.pressure.control_loop import Guard, GuardSettings, Orders
from borglet.pressure.memory_reserve import GIB, AvailableMemory
from borglet.pressure.readings import MachineReadings
from borglet.pressure.victims import PressureTenant
from tests.real.runtimes.machine import MIB, key
from tests.unit.borglet_pressure.machine import PLENTY, SLACK, Drawn, Recorder, batch, server

TIGHT = AvailableMemory(8 * GIB, 200 * MIB)
SHORT = AvailableMemory(8 * GIB, 100 * MIB)


def look(guard: Guard, *tenants: PressureTenant, now: float = 0.0) -> Orders:
    return asyncio.run(guard.look(tenants, now))


def test_while_memory_is_only_tight_batch_is_throttled_and_nobody_ends() -> None:
    readings, runtime = Drawn(), Recorder()
    guard = Guard(runtime, readings)
    tasks = server(0, ram=90), batch(1, ram=400, slack=SLACK)
    assert look(guard, *tasks) == Orders()
    assert runtime.batch_milli == 0
    assert runtime.grants[key(1)].ram_bytes > 2 * GIB
    readings.ram = TIGHT
    assert look(guard, *tasks, now=1.0) == Orders()
    assert runtime.batch_milli == 400
    assert runtime.grants[key(1)].ram_bytes == 400 * MIB
    readings.ram = PLENTY
    look(guard, *tasks, now=2.0)
    assert runtime.batch_milli == 0


def test_when_it_is_short_one_ends_and_is_waited_for() -> None:
    readings = Drawn(ram=SHORT)
    guard = Guard(Recorder(), readings)
    tasks = server(0, ram=90), batch(1, ram=300, priority=50), batch(2, ram=300, priority=110)
    orders = look(guard, *tasks)
    assert [victim.key for victim in orders.end] == [key(1)]
    assert look(guard, *tasks, now=1.0).end == ()  # the task is still ending
    assert [v.key for v in look(guard, *tasks, now=20.0).end] == [key(1)]  # the task has not ended in time
    assert [v.key for v in look(guard, tasks[0], tasks[2], now=21.0).end] == [key(2)]
    assert look(guard, tasks[0], now=22.0).end == ()


def test_a_full_disk_ends_who_holds_it_and_waits_for_the_files_to_go() -> None:
    readings = Drawn(files=AvailableMemory(100 * GIB, 900 * MIB))
    guard = Guard(Recorder(), readings)
    hog = batch(1)
    hog = replace(hog, usage=replace_disk(hog, 3 * GIB))
    orders = look(guard, server(0), hog)
    assert [victim.key for victim in orders.end] == [key(1)]
    assert "ran out of disk" in orders.end[0].detail
    other = replace(batch(2), usage=replace_disk(hog, 2 * GIB))
    assert look(guard, server(0), other, now=60.0).end == ()
    assert [v.key for v in look(guard, server(0), other, now=121.0).end] == [key(2)]


def test_what_nobody_uses_goes_before_anybody_ends() -> None:
    readings = Drawn(files=AvailableMemory(100 * GIB, 900 * MIB))

    async def free() -> int:
        readings.files = AvailableMemory(100 * GIB, 2 * GIB)
        return GIB

    hog = replace(batch(1), usage=replace_disk(batch(1), 3 * GIB))
    assert look(Guard(Recorder(), readings, free_disk=free), hog).end == ()


def replace_disk(tenant: PressureTenant, disk_bytes: int) -> Usage:
    return msgspec.structs.replace(tenant.usage, disk_bytes=disk_bytes)


def test_threads_are_counted_only_on_a_busy_machine_and_a_greedy_server_gets_a_ceiling() -> None:
    readings, runtime = Drawn(busy=0.5), Recorder()
    runtime.threads = {key(1): 3}
    guard = Guard(runtime, readings)
    tasks = server(0, 4000), batch(1)
    for now in range(0, 60, 5):
        look(guard, *tasks, now=now)
    assert runtime.grants == {}
    readings.busy = 1.0
    for now in range(60, 120, 5):
        look(guard, *tasks, now=now)
    assert 1000 <= runtime.grants[key(0)].cpu_milli < 4000


def test_a_machine_that_nobody_here_can_help_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    readings = Drawn(ram=SHORT)
    guard = Guard(Recorder(), readings)
    told = "the machine ran out of memory: 100 MiB of 8192 MiB are left, and the Borglet keeps 163.8 MiB free"
    told += "; the Borglet ends no task, because all tasks are prod and within their limits"

    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    for now in range(5):
        look(guard, server(0, ram=90), now=now)
    assert warnings() == [told]
    readings.ram = PLENTY
    look(guard, server(0, ram=90), now=6)
    readings.ram = SHORT
    look(guard, server(0, ram=90), now=7)
    assert warnings() == [told, told]


def test_batch_leaves_the_idle_class_where_others_than_tasks_hold_the_machine() -> None:
    readings, runtime = Drawn(busy=1.0), Recorder()
    runtime.threads = {key(1): 1}
    guard = Guard(runtime, readings)
    tasks = server(0, 300), batch(1)
    seen = []
    for now in range(0, 15, 5):
        look(guard, *tasks, now=now)
        seen.append(runtime.batch_idle)
    assert seen == [True, False, False]
    readings.busy = 0.5
    for now in range(15, 80, 5):
        look(guard, *tasks, now=now)
    assert runtime.batch_idle


def test_a_server_within_its_limit_keeps_batch_idle() -> None:
    runtime = Recorder()
    runtime.threads = {key(1): 1}
    guard = Guard(runtime, Drawn(busy=1.0))
    for now in range(0, 100, 5):
        look(guard, server(0, 3900, limit=4000), batch(1), now=now)
    assert runtime.batch_idle


def test_a_pause_ends_early_when_memory_gets_tight() -> None:
    readings = Drawn()
    guard = Guard(Recorder(), readings, settings=GuardSettings(memory_interval_s=0.01, least_interval_s=0.01))

    async def until_tight() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(0.05, lambda: setattr(readings, "ram", TIGHT))
        await guard.pause(30.0)
        return loop.time() - began

    assert asyncio.run(until_tight()) < 10


def test_readings_of_a_machine(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n")
    (tmp_path / "stat").write_text("cpu 10 0 10 70 10 0 0 0 5 5\ncpu0 1 1\n")
    readings = MachineReadings(tmp_path, {"ram": 7}, proc=tmp_path)
    assert readings.memory() == AvailableMemory(1024_000, 409_600, 7)
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "memory").write_text(
        "some avg10=80.00 avg60=1.00 avg300=0.00 total=9\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=3\n"
    )
    assert readings.memory().stalled == 0.125
    readings.busy_share()
    (tmp_path / "stat").write_text("cpu 95 0 20 75 10 0 0 0 5 5\n")
    assert readings.busy_share() == 0.95
    assert readings.busy_share() == 0.0
    assert MachineReadings(tmp_path, {}).memory().total > 0
    assert readings.disk().total >= readings.disk().available > 0
