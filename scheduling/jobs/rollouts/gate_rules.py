"""Decides whether the canary tasks of an update are promoted, and whether the update is rolled back (§2.3). Pure.

    a task of the new version fails  ─► ROLL_BACK, if the job file asks for it
    the update is late               ─► ROLL_BACK, or STOP
    all canary tasks are ready       ─► PROMOTE, or PAUSE until a person resumes the update

A paused update is left alone. Only one that waits for its promotion by hand is still rolled back if a task fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Gate(Enum):
    """What happens to an update now."""

    WAIT = auto()
    PROMOTE = auto()
    PAUSE = auto()
    ROLL_BACK = auto()
    STOP = auto()


@dataclass(frozen=True, slots=True)
class Watched:
    """An open update. `canary`: number of canary tasks; 0: all tasks may change. `by_hand`: a person promotes them.
    `ready`: all of them have the new version and have been up long enough. `fails`: a task of the new version fails.
    `late`: the deadline of the update has passed.
    """

    canary: int
    by_hand: bool
    ready: bool
    fails: bool
    late: bool
    rollback: bool
    paused: bool


def gate(update: Watched) -> Gate:
    """Return what happens to an update now."""
    if update.fails and update.rollback and (not update.paused or (update.canary and update.by_hand)):
        return Gate.ROLL_BACK
    if update.paused:
        return Gate.WAIT
    if update.late:
        return Gate.ROLL_BACK if update.rollback else Gate.STOP
    if update.canary and update.ready:
        return Gate.PAUSE if update.by_hand else Gate.PROMOTE
    return Gate.WAIT
