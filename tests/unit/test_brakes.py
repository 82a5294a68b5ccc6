"""Tests of the limits on what a cell does by itself when machines fail, with virtual time.

They decide when tasks are moved, at which rate, and when the cell waits for an SRE.
"""

from __future__ import annotations

import pytest

from scheduling.policy.brake_rules import (
    BrakeState,
    Bucket,
    Extent,
    lost_bucket,
    lost_rate,
    lost_state,
    stops_allowed,
    stops_bucket,
)
from scheduling.policy.cell_settings import CellSettings

SETTINGS = CellSettings()
OPEN, BOUNDED, HELD = BrakeState.OPEN, BrakeState.BOUNDED, BrakeState.HELD


@pytest.mark.parametrize(
    ("machines", "vanished", "state"),
    [
        (1000, 0, OPEN),
        (1000, 50, OPEN),
        (1000, 51, BOUNDED),
        (1000, 500, BOUNDED),
        (1000, 501, HELD),
        (10, 3, OPEN),
        (10, 4, BOUNDED),
        (10, 6, HELD),
        (4, 3, OPEN),
        (3, 3, HELD),
        (1, 1, HELD),
        (0, 0, OPEN),
    ],
)
def test_the_more_machines_vanish_together_the_less_is_done_about_it(machines, vanished, state) -> None:
    assert lost_state(Extent(machines, vanished, 100), SETTINGS, OPEN) is state


@pytest.mark.parametrize("word", [BrakeState.RELEASED, BrakeState.KEPT])
def test_a_word_of_an_sre_holds_as_long_as_so_many_are_gone(word) -> None:
    assert lost_state(Extent(10, 8, 100), SETTINGS, word) is word
    assert lost_state(Extent(10, 4, 100), SETTINGS, word) is BOUNDED
    assert lost_state(Extent(10, 0, 100), SETTINGS, word) is OPEN
    assert lost_state(Extent(10, 8, 100), SETTINGS, BOUNDED) is HELD


@pytest.mark.parametrize("before", [BOUNDED, HELD, BrakeState.KEPT, BrakeState.RELEASED])
def test_those_that_come_back_last_lose_no_task_for_it(before) -> None:
    assert lost_state(Extent(100, 2, 100), SETTINGS, before, calm_s=59.0) is BOUNDED
    assert lost_state(Extent(100, 2, 100), SETTINGS, before, calm_s=60.0) is OPEN
    assert lost_state(Extent(100, 0, 100), SETTINGS, before, calm_s=0.0) is BOUNDED
    assert lost_state(Extent(100, 2, 100), SETTINGS, OPEN, calm_s=0.0) is OPEN


def test_the_brake_turns_at_most_twice_a_minute_when_machines_come_and_go() -> None:
    """Simulate an overloaded link: most machines vanish for ten seconds, return for ten, and so on.

    The state of the limit must change at most twice per minute.
    """
    state, turns, held_s, calm_s = OPEN, 0, 0.0, 0.0
    for second in range(600):
        vanished = 0 if second // 10 % 2 else 80
        calm_s = calm_s + 1.0 if vanished == 0 else 0.0
        before, state = (state, lost_state(Extent(100, vanished, 100), SETTINGS, state, calm_s=calm_s, held_s=held_s))
        turns += state is not before
        held_s = held_s + 1.0 if state is before else 0.0
    assert 1 <= turns <= 2 * 600 / 60


def test_the_rate_is_a_share_of_the_cell_and_never_more_than_it_can_place() -> None:
    assert lost_rate(Extent(30, 10, 300), SETTINGS) == pytest.approx(300 * 0.05 / 60)
    assert lost_rate(Extent(10_000, 1000, 150_000), SETTINGS) == 100


def left_in(seconds: float, per_s: float, every_s: float = 1.0) -> int:
    """Return the number of tasks that leave within `seconds`, if as many leave every `every_s` seconds as are allowed.

    `per_s`: the allowed rate in tasks per second.
    """
    bucket, total, now = Bucket(0.0, 1000.0), 0, 1000.0
    while now < 1000.0 + seconds:
        now += every_s
        bucket = lost_bucket(bucket, now, per_s)
        total += int(bucket.level)
        bucket = Bucket(bucket.level - int(bucket.level), bucket.at)
    return total


@pytest.mark.parametrize("per_s", [0.25, 1.0, 3.5, 100.0])
def test_no_more_leave_than_the_rate_gives_however_often_one_looks(per_s) -> None:
    for every_s in (0.2, 1.0, 4.0):
        assert left_in(60, per_s, every_s) <= 60 * per_s + 1
    assert left_in(60, per_s) >= 60 * per_s - 1


def test_a_rate_is_not_saved_up() -> None:
    assert lost_bucket(Bucket(0.0, 0.0), 3600.0, 10.0).level == 50
    assert lost_bucket(Bucket(0.0, 0.0), 3600.0, 0.01).level == 1
    assert lost_bucket(Bucket(0.5, 100.0), 50.0, 10.0).level == 0.5  # a clock that went back gives nothing


def test_the_cell_stops_a_share_of_itself_within_the_window_and_always_some() -> None:
    assert stops_allowed(10, SETTINGS) == 500
    assert stops_allowed(100_000, SETTINGS) == 30_000
    empty = Bucket(0.0, 1000.0)
    assert stops_bucket(empty, 1150.0, 20_000).level == pytest.approx(10_000)
    assert stops_bucket(empty, 9000.0, 20_000).level == 20_000
