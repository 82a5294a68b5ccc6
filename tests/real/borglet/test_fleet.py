"""Tests of simulated machines: the usage and the ends of their tasks, and a hundred machines on one link shard."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

import pytest

from borglet.__main__ import build_parser
from borglet.fleet import Fleet, FleetSecrets, FleetSettings
from borglet.machine_specs import uniform_fleet
from borglet.messages import EndCause, Phase, RunTask
from borglet.runtimes.base.runtime import StartFailed
from borglet.runtimes.simulated import SimulatedRuntime, Simulation, usage_ratios
from tests.real.borglet.cell import BOUND_S, Authority, Conversation, running_shard
from tests.unit.borglet.builders import check, desired, key, run_task

LIMIT = {"cpu": 1000, "ram": 2**30}


def runtime(seed: int = 0) -> SimulatedRuntime:
    return SimulatedRuntime(Simulation(lambda: 5.0, seed, start_delay_s=0.0), {})


@pytest.mark.parametrize(
    ("prod", "priority", "cpu", "ram"),
    [(True, 200, 0.42, 0.63), (False, 118, 0.61, 0.48), (False, 110, 0.34, 0.36), (False, 0, 0.15, 0.12)],
)
def test_usage_has_the_means_of_its_kind(prod: bool, priority: int, cpu: float, ram: float) -> None:
    drawn = [usage_ratios(run_task(index, prod=prod, priority=priority), seed=1)[0] for index in range(3000)]
    assert statistics.mean(ratio[0] for ratio in drawn) == pytest.approx(cpu, abs=0.02)
    assert statistics.mean(ratio[1] for ratio in drawn) == pytest.approx(ram, abs=0.02)
    assert statistics.stdev(ratio[0] for ratio in drawn) > 0.1


def test_usage_is_the_same_for_the_same_seed_and_stays_below_the_ram_limit() -> None:
    async def samples(seed: int) -> list[object]:
        machine = runtime(seed)
        for index in range(50):
            await machine.start(run_task(index, limit=LIMIT), run=1)
        found = [await machine.sample() for _ in range(3)]
        assert max(usage.ram_bytes for usage in found[0].values()) <= LIMIT["ram"]
        return list(found)

    first = asyncio.run(samples(1))
    assert first == asyncio.run(samples(1))
    assert first != asyncio.run(samples(2))
    assert first[0] != first[1]


def test_a_batch_task_finishes_when_its_environment_says_so() -> None:
    async def whole() -> None:
        machine = runtime()
        await machine.start(run_task(env={"SIM_DURATION_S": "0.01"}), run=1)
        presence = await asyncio.wait_for(machine.next_end(), BOUND_S)
        assert presence.exit is not None
        assert (presence.exit.cause, presence.exit.status, presence.exit.at) == (EndCause.EXITED, 0, 5.0)
        with pytest.raises(StartFailed, match=r"env.SIM_DURATION_S: 'soon' is not a number of seconds"):
            await machine.start(run_task(1, env={"SIM_DURATION_S": "soon"}), run=1)
        await machine.start(run_task(2), run=1)
        with pytest.raises(ValueError, match="still runs"):
            await machine.remove(key(2))
        await machine.remove(key(0))
        assert [presence.key for presence in await machine.presences()] == [key(2)]

    asyncio.run(whole())


def test_a_fleet_dials_no_faster_than_its_shard_welcomes(authority: Authority, tmp_path: Path) -> None:
    machines = uniform_fleet(30, {"cpu": 4000, "ram": 2**34})
    secrets = FleetSecrets("aa", authority.pem, {machine.hostname: "secret" for machine in machines})

    async def whole() -> None:
        async with running_shard(authority) as shard:
            shard.welcoming.clear()
            fleet = Fleet(machines, secrets, shard.url, tmp_path, settings=FleetSettings(connecting=4))
            task = asyncio.get_running_loop().create_task(fleet.run())
            async with asyncio.timeout(BOUND_S):
                while shard.greeted < 4:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert (shard.greeted, len(shard.credentials)) == (4, 4)
            shard.welcoming.set()
            assert len({(await shard.arrival()).hello.hostname for _ in machines}) == 30
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(whole())


def test_simulated_machines_report_windows_of_usage_unless_told_otherwise() -> None:
    assert FleetSettings().window_s == 300
    assert (
        build_parser().parse_args(["fleet", "--home", "x", "--link", "https://x:1", "--machines", "1"]).window_s == 300
    )


def test_a_hundred_machines_connect_run_and_report(authority: Authority, tmp_path: Path) -> None:
    machines = uniform_fleet(100, {"cpu": 4000, "ram": 2**34})
    secrets = FleetSecrets("aa", authority.pem, {machine.hostname: "secret" for machine in machines})

    def tasks_of(machine: int) -> list[RunTask]:
        return [run_task(machine * 10 + index, limit=LIMIT, health=check()) for index in range(3)]

    async def serve_one(conversation: Conversation) -> int:
        number = int(conversation.hello.hostname.removeprefix("sim-"))
        report = await conversation.until(
            lambda found: (
                [task.phase for task in found.tasks] == [Phase.UP] * 3
                and all(task.health == "healthy" for task in found.tasks)
            ),
            desired(1, tasks_of(number)),
        )
        return report.usage.cpu_milli

    async def whole() -> None:
        async with running_shard(authority) as shard:
            settings = FleetSettings(start_delay_s=0.0, sample_interval_s=0.1)
            fleet = Fleet(machines, secrets, shard.url, tmp_path, settings=settings)
            task = asyncio.get_running_loop().create_task(fleet.run())
            conversations = [await shard.arrival() for _ in machines]
            assert len({one.hello.hostname for one in conversations}) == 100
            await asyncio.gather(*(serve_one(one) for one in conversations))
            async with asyncio.timeout(BOUND_S):
                while (await conversations[0].poll()).usage.cpu_milli == 0:
                    await asyncio.sleep(0.01)
            assert fleet.connected == 100
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(whole())
