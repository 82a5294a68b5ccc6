"""Tests of the rule that decides whether a job has reached the state for which another job waits."""

from __future__ import annotations

import pytest

from scheduling.core.vocabulary.states import JobGoal, JobState
from scheduling.jobs.dependencies.rules import GoalState, OtherJob, goal_state

SUCCEEDED, ENDED, RUNNING = JobGoal.SUCCEEDED, JobGoal.ENDED, JobGoal.RUNNING
OPEN, REACHED, MISSED = GoalState.OPEN, GoalState.REACHED, GoalState.MISSED


def live(*, up: int, dead: int = 0, max_running: int = 0) -> OtherJob:
    return OtherJob("load", JobState.RUNNING.value, "", up, 3, dead, max_running)


def dead(outcome: str) -> OtherJob:
    return OtherJob("load", JobState.DEAD.value, outcome, 0, 3, 3)


@pytest.mark.parametrize(
    ("other", "states"),
    [
        (live(up=0), (OPEN, OPEN, OPEN)),
        (live(up=2), (OPEN, OPEN, OPEN)),
        (live(up=3), (OPEN, OPEN, REACHED)),
        (live(up=1, dead=2), (OPEN, OPEN, REACHED)),
        (live(up=0, dead=3), (OPEN, OPEN, OPEN)),
        (live(up=1, max_running=2), (OPEN, OPEN, OPEN)),
        (live(up=2, max_running=2), (OPEN, OPEN, REACHED)),
        (live(up=1, dead=2, max_running=2), (OPEN, OPEN, REACHED)),
        (dead("finished"), (REACHED, REACHED, REACHED)),
        (dead("failed"), (MISSED, REACHED, MISSED)),
        (dead("killed"), (MISSED, REACHED, MISSED)),
        (None, (MISSED, REACHED, MISSED)),
    ],
)
def test_a_goal_is_open_reached_or_missed(other: OtherJob | None, states: tuple[GoalState, ...]) -> None:
    assert tuple(goal_state(goal, other) for goal in (SUCCEEDED, ENDED, RUNNING)) == states
