"""Tests of windows of usage: percentiles, times, and how long windows are kept."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borglet.agent import Agent
from borglet.health_prober import SimulatedProber
from borglet.identity.saved_state import MemoryStore
from borglet.messages import OLDEST_PROTOCOL, PROTOCOL, Phase, Poll, Report, Usage, UsageWindow, decode_to_shard, encode
from borglet.runtimes.simulated import SimulatedRuntime, Simulation
from borglet.usage_windows import MOST_KEPT, MOST_REPORTED, REPEAT_S, SPREAD, WINDOW_S, Windows, quantile
from tests.doubles import NoPackages
from tests.unit.borglet.builders import desired, key, run_task

LATE = WINDOW_S * (1 + SPREAD)  # every machine has reported by then


def windows() -> Windows:
    return Windows(random.Random(1))


def filled(*cpu_milli: int, start: int = 0) -> Windows:
    made = windows()
    for number, cpu in enumerate(cpu_milli):
        made.add([(run_task(), Usage(cpu_milli=cpu, ram_bytes=10 * cpu, threads=cpu))], start + 5.0 * number)
    made.add([], start + WINDOW_S)
    return made


def test_a_window_says_what_its_samples_were() -> None:
    (window,) = filled(*range(100, 0, -2)).due(LATE)
    assert (window.key, window.start, window.span_s, window.samples) == (key(), 0, WINDOW_S, 50)
    assert (window.cpu_milli, window.most_cpu_milli, window.ram_bytes, window.most_ram_bytes) == (51, 100, 510, 1000)
    assert window.cpu_distribution == [2, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]
    assert window.cpu_tail == [92, 92, 94, 94, 96, 96, 98, 98, 100]
    assert window.random_cpu_milli in range(2, 101, 2)
    assert (window.most_threads, window.limit_cpu_milli) == (100, run_task().limit.get("cpu", 0))


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=80), st.integers(0, 100))
def test_a_quantile_is_the_least_value_that_so_many_do_not_exceed(values: list[int], percent: int) -> None:
    found = quantile(sorted(values), percent)
    assert 100 * sum(value <= found for value in values) >= percent * len(values)
    assert 100 * sum(value < found for value in values) < max(percent, 1) * len(values)


def test_windows_lie_on_whole_multiples_and_are_reported_when_they_are_over() -> None:
    made = windows()
    made.add([(run_task(), Usage(cpu_milli=1))], 1234.0)
    assert made.due(1234.0) == []
    made.add([(run_task(), Usage(cpu_milli=2))], 1500.0)
    (window,) = made.due(1500.0 + LATE)
    assert (window.start, window.samples) == (1200, 1)


def test_machines_tell_at_moments_of_their_own() -> None:
    moments = []
    for seed in range(50):
        made = Windows(random.Random(seed))
        made.add([(run_task(), Usage())], 0.0)
        made.add([], WINDOW_S)
        moments.append(next(s for s in range(WINDOW_S, 2 * WINDOW_S) if made.due(s)))
    assert max(moments) - min(moments) > 0.4 * WINDOW_S
    assert max(moments) <= LATE + 1


def test_a_window_is_reported_until_it_is_stored_and_not_too_often() -> None:
    made = filled(1)
    first = made.due(LATE)
    assert first
    assert made.due(LATE + 1) == []
    assert made.due(LATE + REPEAT_S) == first
    made.stored(WINDOW_S - 1)
    assert made.due(LATE + REPEAT_S + 1) == first
    made.stored(WINDOW_S)
    assert made.due(LATE + 3 * REPEAT_S) == []


def test_a_machine_that_is_cut_off_keeps_an_hour() -> None:
    made = windows()
    for number in range(20):
        made.add([(run_task(), Usage())], float(number * WINDOW_S))
    starts = [window.start for window in made.due(30.0 * WINDOW_S)]
    assert starts == [number * WINDOW_S for number in range(19 - MOST_KEPT, 19)]


def test_a_report_holds_no_more_than_it_should_and_whole_windows_alone() -> None:
    made = windows()
    tasks = [run_task(index) for index in range(150)]
    for number in range(3):
        made.add([(task, Usage()) for task in tasks], float(number * WINDOW_S))
    told = made.due(9.0 * WINDOW_S)
    assert len(told) == 150 <= MOST_REPORTED
    made.stored(WINDOW_S)
    assert {window.start for window in made.due(9.0 * WINDOW_S)} == {WINDOW_S}


@pytest.mark.parametrize("cpu", [-5, 2**40])
def test_figures_that_can_not_be_are_bounded(cpu: int) -> None:
    (window,) = filled(cpu).due(LATE)
    assert 0 <= window.cpu_milli < 2**31


def test_a_window_travels_in_a_report() -> None:
    (window,) = filled(7).due(LATE)
    report = Report(1, 1, "", "", 0, [], windows=[window])
    answer = decode_to_shard(encode(report))
    assert isinstance(answer, Report)
    assert answer.windows == [window]
    assert isinstance(answer.windows[0], UsageWindow)
    assert len(encode(window)) < 300


def test_an_agent_tells_the_windows_of_what_it_runs_until_they_are_stored() -> None:
    now = [0.0]

    async def scenario() -> None:
        runtime = SimulatedRuntime(Simulation(lambda: now[0], start_delay_s=0.0), {"cpu": 1000})
        agent = Agent(runtime, MemoryStore(), SimulatedProber(), NoPackages(), clock=lambda: now[0])
        await agent.open()
        try:
            agent.polled(1, Poll(1, desired=desired(1, [run_task()])))
            while agent.state.incarnations()[0].phase is not Phase.UP:
                await asyncio.sleep(0.001)
            for second in range(0, 3 * WINDOW_S, 60):
                now[0] = float(second)
                await agent.sample()
            for protocol in (OLDEST_PROTOCOL, PROTOCOL):
                now[0] += REPEAT_S
                report = agent.report([], 1, Poll(2), protocol=protocol)
                sent = decode_to_shard(encode(report))
                assert isinstance(sent, Report)
                assert [(window.key, window.start) for window in sent.windows] == [(key(), 0), (key(), WINDOW_S)]
            agent.polled(1, Poll(3, windows_until=WINDOW_S))
            assert [window.start for window in agent.report([], 1, Poll(3)).windows] == [WINDOW_S]
        finally:
            await agent.close()

    asyncio.run(scenario())
