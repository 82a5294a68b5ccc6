"""Tests of the Borglet's control loop against shortages, inside its agent: from readings to the master's report."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass, replace

from borglet.agent import Agent, AgentSettings
from borglet.health_prober import SimulatedProber
from borglet.identity.saved_state import MemoryStore
from borglet.messages import EndCause, Phase, Poll, Report
from borglet.pressure.control_loop import Guard, GuardSettings
from borglet.pressure.cpu import CpuSettings
from borglet.pressure.memory_reserve import GIB, AvailableMemory
from borglet.runtimes.base.runtime import Runtime
from tests.doubles import NoPackages
from tests.unit.borglet.builders import desired, key, run_task
from tests.unit.borglet_pressure.machine import PLENTY, Drawn, Recorder

SHORT = AvailableMemory(8 * GIB, 0)
BATCH = {"latency_sensitive": False, "prod": False, "priority": 110, "limit": {"cpu": 1000, "ram": GIB}}


@dataclass
class Blind(Drawn):
    """Readings of a machine that fail, because the process has no file descriptor left."""

    asked: int = 0

    def memory(self) -> AvailableMemory:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files")


class Watched:
    """An agent that a test polls, on a machine whose readings the test sets."""

    def __init__(self, runtime: Runtime, readings: Drawn, settings: GuardSettings) -> None:
        self.now, self.sequence = 1000.0, 0
        self.agent = Agent(
            runtime,
            MemoryStore(),
            SimulatedProber(),
            NoPackages(),
            clock=lambda: self.now,
            settings=AgentSettings(sample_interval_s=0.01),
            guard=Guard(runtime, readings, settings=settings),
        )
        self.changed = asyncio.Event()
        self.agent.subscribe(self.changed.set)

    async def report(self, poll: Poll | None = None) -> Report:
        self.sequence += 1
        poll = poll or Poll(self.sequence)
        self.agent.polled(1, poll)
        return self.agent.report([], 1, poll)

    async def until(self, *phases: Phase) -> Report:
        async with asyncio.timeout(30.0):
            while True:
                self.changed.clear()
                report = await self.report()
                if [task.phase for task in report.tasks] == list(phases):
                    return report
                await self.changed.wait()


async def short_of_memory() -> None:
    readings = Drawn()
    runtime = Recorder()
    watched = Watched(runtime, readings, GuardSettings(memory_interval_s=0.01, least_interval_s=0.01))
    await watched.agent.open()
    tasks = [run_task(0), run_task(1, **BATCH)]
    watched.agent.polled(1, Poll(0, desired=desired(1, tasks)))
    await watched.until(Phase.UP, Phase.UP)
    await watched.agent.sample()
    assert runtime.batch_milli == 0
    readings.ram = SHORT
    sampling = asyncio.ensure_future(watched.agent.sample_forever())
    report = await watched.until(Phase.UP, Phase.ENDED)
    assert runtime.batch_milli == 400
    sampling.cancel()
    exit_ = report.tasks[1].exit
    assert exit_ is not None
    assert exit_.cause is EndCause.MACHINE_SHORT
    assert exit_.detail.startswith("the machine ran out of memory: 0 MiB of 8192 MiB are left")
    await watched.agent.close()


async def blind() -> None:
    """Run an agent whose readings of the machine all fail, and check that it goes on sampling its tasks."""
    readings = Blind()
    watched = Watched(Recorder(), readings, GuardSettings(least_interval_s=0.0))
    await watched.agent.open()
    sampling = asyncio.ensure_future(watched.agent.sample_forever())
    async with asyncio.timeout(30.0):
        while readings.asked < 20:
            await asyncio.wait([sampling], timeout=0.01)
    assert not sampling.done()
    sampling.cancel()
    await watched.agent.close()


async def starving() -> None:
    runtime = Recorder()
    readings = replace(Drawn(), ram=PLENTY, busy=1.0)
    patience = CpuSettings(floor_share=1.0, starved_after_s=0.0, remove_after_s=0.0, settle_s=0.0)
    watched = Watched(runtime, readings, GuardSettings(cpu=patience))
    await watched.agent.open()
    watched.agent.polled(1, Poll(0, desired=desired(1, [run_task(1, **BATCH)])))
    await watched.until(Phase.UP)
    runtime.threads = {key(1): 50}
    await watched.agent.sample()
    (removal,) = (await watched.report()).removals
    assert (removal.key, removal.reason) == (key(1), "cpu-starved")
    runtime.threads = {}
    watched.now += 5.0
    await watched.agent.sample()
    assert (await watched.report()).removals == []
    await watched.agent.close()


def test_a_short_machine_ends_its_batch_and_the_master_hears_why() -> None:
    asyncio.run(short_of_memory())


def test_a_machine_that_can_not_be_looked_at_is_looked_at_again() -> None:
    asyncio.run(blind())


def test_the_master_is_asked_to_take_a_starved_task_away_for_as_long_as_it_starves() -> None:
    asyncio.run(starving())
