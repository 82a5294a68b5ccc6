"""Tests of the rules of switches: the steps, the gate, and the way back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.services.switch_rules import Move, Switch, TrackHealth, next_move, share_of, stepped

BEFORE = {"blue": 100, "green": 0}
DUE = 1_000.0


def a_switch(**changes: Any) -> Switch:
    given: dict[str, Any] = {
        "to": "green",
        "before": BEFORE,
        "step": 10,
        "every_s": 60,
        "gated": True,
        "enough": 100,
        "within_s": 600,
    }
    rest: dict[str, Any] = {"stop_old": False, "old_jobs": [1], "began": 900.0, "due": DUE}
    return Switch(**given | rest | changes)


def move(health: TrackHealth, *, now: float = DUE, weights: dict[str, int] | None = None, **changes: Any) -> Move:
    return next_move(a_switch(**changes), BEFORE if weights is None else weights, health, now)[0]


def test_weight_moves_only_when_enough_tasks_are_up() -> None:
    assert move(TrackHealth(10, 9)) is Move.WAIT
    assert move(TrackHealth(10, 10)) is Move.STEP
    assert move(TrackHealth(10, 10), now=DUE - 1) is Move.WAIT, "the next step is not due"
    assert move(TrackHealth(10, 9), enough=90) is Move.STEP
    assert move(TrackHealth(10, 0), gated=False) is Move.STEP


def test_a_failing_task_returns_the_weights_at_once() -> None:
    assert move(TrackHealth(10, 9, 1), now=DUE - 50) is Move.RETURN
    assert move(TrackHealth(10, 9, 1), enough=90) is Move.STEP, "nine of ten are enough"
    assert move(TrackHealth(10, 8, 2), enough=90) is Move.RETURN
    assert move(TrackHealth(10, 0, 10), gated=False) is Move.STEP
    switch = a_switch()
    assert "a task of track green, g/3, failed" in next_move(switch, BEFORE, TrackHealth(9, 8, 1, "g/3"), DUE)[1]
    assert (
        "2 of 9 tasks of track green, first g/3 failed" in next_move(switch, BEFORE, TrackHealth(9, 7, 2, "g/3"), 0)[1]
    )


def test_a_step_that_waits_too_long_returns_the_weights() -> None:
    assert move(TrackHealth(10, 9), now=DUE + 599) is Move.WAIT
    assert move(TrackHealth(10, 9), now=DUE + 600) is Move.RETURN


@pytest.mark.parametrize("gated", [True, False])
def test_a_track_without_tasks_never_gets_clients(gated: bool) -> None:
    assert move(TrackHealth(0, 0), gated=gated) is Move.RETURN


def test_a_switch_ends_when_the_track_is_still_healthy_after_the_last_step() -> None:
    assert move(TrackHealth(3, 3), weights={"blue": 0, "green": 100}) is Move.FINISH
    assert move(TrackHealth(3, 3), weights={"blue": 0, "green": 100}, now=DUE - 1) is Move.WAIT
    assert move(TrackHealth(3, 2, 1), weights={"blue": 0, "green": 100}) is Move.RETURN


def test_steps_of_ten_per_cent_are_ten_steps() -> None:
    switch, weights, seen = a_switch(), dict(BEFORE), []
    while share_of(weights, "green") < 100:
        weights = stepped(switch, weights)
        seen.append((weights["blue"], weights["green"]))
    assert seen == [(100 - green, green) for green in range(10, 101, 10)]


@given(
    before=st.dictionaries(st.sampled_from("abcdx"), st.integers(0, 1000), min_size=1).filter(
        lambda w: sum(w.values())
    ),
    step=st.integers(1, 100),
)
def test_steps_move_clients_to_the_new_track_until_it_has_all(before: dict[str, int], step: int) -> None:
    switch, weights, steps = a_switch(to="x", before=before, step=step), before, 0
    while (share := share_of(weights, "x")) < 100:
        weights = stepped(switch, weights)
        assert share_of(weights, "x") > share
        assert sum(weights.values()) == 100
        assert all(weight >= 0 for weight in weights.values())
        steps += 1
    assert steps <= 100
