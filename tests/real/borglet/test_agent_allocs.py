"""Tests of an agent that cannot create the folder of an alloc, a reserved part of a machine: it tries again later."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from borglet.agent import Agent
from borglet.health_prober import SimulatedProber
from borglet.identity.saved_state import MemoryStore
from borglet.messages import Poll, RunAlloc, TaskKey
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from tests.doubles import FailingRuntime, NoPackages
from tests.real.borglet.cell import BOUND_S
from tests.unit.borglet.builders import desired

SHELF = TaskKey("cd" * 16, 0, 1)


def test_what_failed_is_tried_again_with_the_next_sample(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        runtime = FailingRuntime(SimulatedRuntime(Simulation(lambda: 1000.0, start_delay_s=0.0), {}))
        runtime.fail("hold_allocs", OSError("No space left on device"))
        agent = Agent(runtime, MemoryStore(), SimulatedProber(), NoPackages(), clock=lambda: 1000.0 + loop.time())
        await agent.open()
        alloc = RunAlloc(SHELF, "aa/ada/shelf/0", {"disk": 5}, 200, True, True)
        agent.polled(1, Poll(1, desired=msgspec.structs.replace(desired(1, []), allocs=[alloc])))
        async with asyncio.timeout(BOUND_S):
            while "tries again" not in caplog.text:
                await asyncio.sleep(0)
        assert agent.report([], 1, Poll(1)).allocs == []
        await agent.sample()
        assert [held.key for held in agent.report([], 1, Poll(2)).allocs] == [SHELF]
        await agent.close()

    asyncio.run(story())
