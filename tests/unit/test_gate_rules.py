"""Tests of the rules for canary tasks and automatic rollback."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.jobs.rollouts.gate_rules import Gate, Watched, gate

CANARY = Watched(canary=2, by_hand=False, ready=False, fails=False, late=False, rollback=True, paused=False)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Gate.WAIT),
        ({"ready": True}, Gate.PROMOTE),
        ({"ready": True, "by_hand": True}, Gate.PAUSE),
        ({"ready": True, "by_hand": True, "paused": True}, Gate.WAIT),
        ({"fails": True}, Gate.ROLL_BACK),
        ({"fails": True, "canary": 0}, Gate.ROLL_BACK),
        ({"fails": True, "rollback": False}, Gate.WAIT),
        ({"fails": True, "paused": True}, Gate.WAIT),
        ({"fails": True, "paused": True, "by_hand": True}, Gate.ROLL_BACK),
        ({"fails": True, "paused": True, "by_hand": True, "canary": 0}, Gate.WAIT),
        ({"late": True}, Gate.ROLL_BACK),
        ({"late": True, "rollback": False}, Gate.STOP),
        ({"late": True, "paused": True}, Gate.WAIT),
        ({"canary": 0, "ready": True}, Gate.WAIT),
    ],
)
def test_the_gate_of_an_update(changes: dict[str, object], expected: Gate) -> None:
    assert gate(dataclasses.replace(CANARY, **changes)) is expected


@given(
    st.builds(
        Watched,
        canary=st.integers(0, 2),
        by_hand=st.booleans(),
        ready=st.booleans(),
        fails=st.booleans(),
        late=st.booleans(),
        rollback=st.booleans(),
        paused=st.booleans(),
    )
)
def test_no_update_is_promoted_that_fails_is_late_or_is_paused(update: Watched) -> None:
    what = gate(update)
    if what in (Gate.PROMOTE, Gate.PAUSE):
        assert update.ready
        assert update.canary
        assert not update.late
        assert not update.paused
        assert not update.fails or not update.rollback
    if what is Gate.ROLL_BACK:
        assert update.rollback
        assert update.fails or update.late
