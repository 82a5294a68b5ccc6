"""Decides whether a job has reached the state for which another job waits. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from scheduling.core.vocabulary.states import JobGoal, JobState

FINISHED = "finished"


class GoalState(Enum):
    """`OPEN`: the job may still reach its goal. `REACHED`: it has reached it. `MISSED`: it cannot reach it any more."""

    OPEN = 0
    REACHED = 1
    MISSED = 2


@dataclass(frozen=True, slots=True)
class OtherJob:
    """What the rule needs of the job that another job waits for. `updating`: whether an update of the job is open,
    which may add or restart tasks. `state`, `outcome`, `up`, `total`, `dead`, `max_running`, `kind`: as in
    `scheduling.models.Job`.
    """

    name: str
    state: str
    outcome: str
    up: int
    total: int
    dead: int
    max_running: int = 0
    updating: bool = False
    kind: str = "job"


def goal_state(goal: JobGoal, other: OtherJob | None) -> GoalState:
    """Return whether `other` has reached the goal. `other`: None if its row was deleted, so it has ended in an
    unknown way.

    A job has succeeded if it ended with the outcome `finished`: no task failed or was killed, except tasks that an
    update removed. Such a job has also run.
    """
    if other is not None and other.state != JobState.DEAD:
        living = other.total - other.dead
        wanted = min(living, other.max_running or living)
        runs = other.up >= wanted > 0 and not other.updating
        return GoalState.REACHED if goal is JobGoal.RUNNING and runs else GoalState.OPEN
    if goal is JobGoal.ENDED or (other is not None and other.outcome == FINISHED):
        return GoalState.REACHED
    return GoalState.MISSED
