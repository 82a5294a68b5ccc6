"""Tests of when machines are polled, with a clock that the tests set."""

from __future__ import annotations

import random

import pytest

from scheduling.machines.poll_times import (
    BURST,
    GAP_S,
    LONGEST_GAP_S,
    MOST_PER_S,
    REFILL_PER_S,
    EarlyAnswerPace,
    Timetable,
    early_rate,
    poll_interval,
)


@pytest.mark.parametrize(
    ("machines", "setting", "interval"), [(1, 0, 2.0), (1500, 0, 3.0), (10_000, 0, 5.0), (10, 0.5, 0.5)]
)
def test_the_interval_grows_with_the_machines_within_bounds(machines: int, setting: float, interval: float) -> None:
    assert poll_interval(machines, setting) == interval


def test_what_is_due_comes_soonest_first_and_once() -> None:
    table: Timetable[str] = Timetable()
    for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 9.0)):
        table.put(name, at)
    table.put("a", 2.5)  # moved
    table.drop("c")
    assert table.soonest() == 2.0
    assert list(table.due(5.0)) == ["b", "a"]
    assert list(table.due(5.0)) == []
    assert table.soonest() == 9.0


def test_moving_things_for_ever_keeps_the_heap_small() -> None:
    rng = random.Random(1)
    table: Timetable[int] = Timetable()
    for step in range(20_000):
        table.put(step % 50, rng.random() * 100)
    assert len(table) == 50
    assert len(table._heap) <= 64 + 4 * 50 + 1
    assert sorted(table.due(101.0)) == list(range(50))


def test_a_chatty_machine_is_slowed_down_and_a_quiet_one_is_not() -> None:
    patience, now, polls = EarlyAnswerPace(), 100.0, 0
    while now < 200.0:
        now += patience.gap_s(now)
        polls += 1
    assert polls <= BURST + 100 * REFILL_PER_S + 1
    assert patience.gap_s(now + 60.0) == GAP_S


def test_the_only_machine_of_a_shard_may_change_all_the_time() -> None:
    """Start forty jobs in a row on the only machine of a shard. Its reports of changes must come without delay.

    Without a higher rate for few machines, the reports of the last jobs came seconds late.
    """
    pace, now, per_s = EarlyAnswerPace(), 100.0, early_rate(1)
    for _ in range(5 * BURST):
        gap_s = pace.gap_s(now, per_s=per_s)
        assert gap_s < GAP_S
        now += gap_s + 0.02
    assert [early_rate(machines) for machines in (0, 1, 100, 250, 10_000)] == [MOST_PER_S, MOST_PER_S, 5.0, 2.0, 2.0]


def test_a_busy_shard_waits_for_two_turns_before_it_polls_a_changing_machine_again() -> None:
    pace = EarlyAnswerPace()
    assert pace.gap_s(100.0, turn_s=0.01) == GAP_S
    assert pace.gap_s(101.0, turn_s=0.2) == 0.4
    assert pace.gap_s(102.0, turn_s=30.0) == LONGEST_GAP_S


def test_an_item_that_moves_to_later_keeps_its_entry_in_the_heap() -> None:
    table: Timetable[str] = Timetable()
    for at in range(1, 100):
        table.put("a", float(at))
    assert len(table._heap) == 1
    assert table.soonest() == 99.0
    table.put("a", 50.0)
    assert table.soonest() == 50.0
    assert list(table.due(100.0)) == ["a"]
    assert table.soonest() is None
