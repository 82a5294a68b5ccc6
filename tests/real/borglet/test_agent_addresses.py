"""Tests of tasks that have their own network address: the Borglet probes and reports them there (§8.1)."""

from __future__ import annotations

import asyncio

from borglet.agent import Agent
from borglet.health_prober import ProbeAnswer
from borglet.identity.saved_state import MemoryStore
from borglet.messages import HealthCheck, Phase, Poll, Report, TaskKey
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from tests.doubles import NoPackages
from tests.real.borglet.cell import BOUND_S
from tests.unit.borglet.builders import desired, key, run_task

CHECK = HealthCheck("tcp", "http")


class Housed(SimulatedRuntime):
    """A simulated runtime in which task 1 has its own network address."""

    def addresses(self) -> dict[TaskKey, str]:
        return {key(1): "10.20.30.4"}


class Noting:
    """A prober that reports every task healthy and records the addresses that it was given."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    async def probe(self, check: HealthCheck, port: int, address: str = "") -> ProbeAnswer:
        self.asked.add(address)
        return ProbeAnswer(True, holds_s=60.0)


def test_it_is_probed_and_reported_where_clients_reach_it() -> None:
    async def story() -> Report:
        loop, prober = asyncio.get_running_loop(), Noting()
        runtime = Housed(Simulation(lambda: 1000.0, start_delay_s=0.0), {})
        agent = Agent(runtime, MemoryStore(), prober, NoPackages(), clock=lambda: 1000.0 + loop.time())
        changed = asyncio.Event()
        agent.subscribe(changed.set)
        await agent.open()
        tasks = [run_task(index, health=CHECK, ports={"http": 20_000 + index}) for index in (0, 1)]
        agent.polled(1, Poll(1, desired=desired(1, tasks)))
        async with asyncio.timeout(BOUND_S):
            while True:
                changed.clear()
                report = agent.report([], 1, Poll(1))
                if [task.phase for task in report.tasks] == [Phase.UP, Phase.UP] and len(prober.asked) == 2:
                    break
                await changed.wait()
        await agent.close()
        assert prober.asked == {"", "10.20.30.4"}
        return report

    report = asyncio.run(story())
    assert {task.key.index: task.address for task in report.tasks} == {0: "", 1: "10.20.30.4"}
