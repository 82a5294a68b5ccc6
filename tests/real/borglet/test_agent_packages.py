"""Tests of the agent of a Borglet: what it passes between its state, its package manager and its runtime."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from borglet.agent import Agent
from borglet.health_prober import SimulatedProber
from borglet.identity.saved_state import MemoryStore
from borglet.messages import PackageRef, Phase, Poll, Report, RunTask
from borglet.packages.base import PackageMissing, SimulatedPackages, mounts
from borglet.runtimes.base.runtime import NO_TREES
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from tests.doubles import NoPackages
from tests.real.borglet.cell import BOUND_S
from tests.unit.borglet.builders import desired, package, policy, run_task, stop_task

APP, LIB = package("app@v1"), package("lib@v2", "b")
TASK = run_task(packages=[APP, LIB], restart=policy(backoff_s=0.01, max_failures=2))


class Shelf(NoPackages):
    """A package manager whose installations end when a test sets `open`."""

    def __init__(self) -> None:
        self.wanted: list[list[str]] = []
        self.open = asyncio.Event()
        self.cancelled = 0
        self.error: Exception | None = None

    async def install(self, packages: Sequence[PackageRef]) -> None:
        self.wanted.append([each.name for each in packages])
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error

    def trees(self, packages: Sequence[PackageRef]) -> Mapping[str, Path]:
        return mounts(packages, lambda each: Path("/store", each.digest[-1]))

    def installed(self) -> list[str]:
        return [APP.digest] if self.open.is_set() else []


class Noting(SimulatedRuntime):
    def __init__(self) -> None:
        super().__init__(Simulation(lambda: 1000.0, start_delay_s=0.0), {})
        self.trees: list[Mapping[str, Path]] = []

    async def start(self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES) -> None:
        self.trees.append(trees)
        await super().start(task, run=run)


class Played:
    """An agent of a Borglet, with methods that stand for its master."""

    def __init__(self, shelf: Shelf) -> None:
        self.runtime = Noting()
        loop = asyncio.get_running_loop()
        self.agent = Agent(self.runtime, MemoryStore(), SimulatedProber(), shelf, clock=lambda: 1000.0 + loop.time())
        self.changed = asyncio.Event()
        self.agent.subscribe(self.changed.set)
        self.sequence = 0

    def wants(self, revision: int, run: list[RunTask], *, stop: bool = False) -> None:
        self.sequence += 1
        wanted = desired(revision, run, [stop_task()] if stop else [])
        self.agent.polled(1, Poll(self.sequence, desired=wanted))

    async def until(self, holds: Callable[[Report], bool]) -> Report:
        async with asyncio.timeout(BOUND_S):
            while True:
                self.changed.clear()
                report = self.agent.report([], 1, Poll(self.sequence))
                if holds(report):
                    return report
                await self.changed.wait()


def phase(report: Report) -> Phase:
    return report.tasks[0].phase


def test_the_runtime_gets_the_trees_of_what_was_installed() -> None:
    async def story() -> None:
        shelf = Shelf()
        played = Played(shelf)
        await played.agent.open()
        played.wants(1, [TASK])
        assert (await played.until(lambda report: phase(report) is Phase.INSTALLING)).packages == []
        await asyncio.sleep(0)
        assert (shelf.wanted, played.runtime.trees) == ([["app@v1", "lib@v2"]], [])
        shelf.open.set()
        report = await played.until(lambda report: phase(report) is Phase.UP)
        assert report.packages == [APP.digest]
        assert played.runtime.trees == [{"app": Path("/store/a"), "lib": Path("/store/b")}]
        assert list(played.runtime.trees[0]) == ["app", "lib"]
        await played.agent.close()

    asyncio.run(story())


def test_a_stop_ends_the_installation() -> None:
    async def story() -> None:
        shelf = Shelf()
        played = Played(shelf)
        await played.agent.open()
        played.wants(1, [TASK])
        await asyncio.sleep(0)
        played.wants(2, [], stop=True)
        await played.until(lambda report: phase(report) is Phase.ENDED)
        await asyncio.sleep(0)
        assert (shelf.cancelled, played.runtime.trees) == (1, [])
        await played.agent.close()

    asyncio.run(story())


def test_what_can_not_be_installed_is_tried_again_and_then_given_up() -> None:
    async def story() -> None:
        for error in (PackageMissing("package 'app@v1': none has it"), ValueError("none has it")):
            shelf = Shelf()
            shelf.error = error
            shelf.open.set()
            played = Played(shelf)
            await played.agent.open()
            played.wants(1, [TASK])
            report = await played.until(lambda report: phase(report) is Phase.ENDED)
            told = report.tasks[0].exit
            assert told is not None
            assert "none has it; crash loop: 3 failures" in told.detail
            assert (len(shelf.wanted), played.runtime.trees) == (3, [])
            await played.agent.close()

    asyncio.run(story())


def test_a_borglet_that_installs_nothing_says_so() -> None:
    async def story() -> None:
        runtime = SimulatedRuntime(Simulation(lambda: 1000.0), {})
        agent = Agent(runtime, MemoryStore(), SimulatedProber(), NoPackages(), clock=lambda: 1000.0)
        await agent.open()
        agent.polled(1, Poll(1, desired=desired(1, [TASK])))
        await asyncio.sleep(0)
        told = agent.report([], 1, Poll(1)).tasks[0].exit
        assert told is not None
        assert told.detail == "package 'app@v1': this Borglet installs no packages"
        await agent.close()

    asyncio.run(story())


def test_simulated_machines_install_once_and_report_it() -> None:
    async def story() -> None:
        packages = SimulatedPackages(0.001, random.Random(1))
        await packages.install([APP, LIB])
        await packages.install([APP])
        assert packages.installed() == [APP.digest, LIB.digest]
        assert list(packages.trees([LIB])) == ["lib"]

    asyncio.run(story())
