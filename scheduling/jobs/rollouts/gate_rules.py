"""Decides whether the canary tasks of an update are promoted, and whether the update is rolled back (§2.3). Pure.

    a task of the new version fails  ─► ROLL_BACK, if the job file asks for it
    the update is late               ─► ROLL_BACK, or STOP
    all canary tasks are up          ─► PROMOTE after `canary_s` seconds, or PAUSE until a person resumes the update

A paused update is left alone, unless it waits for its promotion: then a failing canary task still rolls it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Gate(Enum):
    """What happens to an update now."""

    WAIT = auto()
    UP = auto()  # all canary tasks are up, and were not before
    DOWN = auto()  # a canary task is no longer up
    PROMOTE = auto()
    PAUSE = auto()
    ROLL_BACK = auto()
    STOP = auto()


@dataclass(frozen=True, slots=True)
class Watched:
    """An open update. `canary`: number of canary tasks; 0: all tasks may change. `canary_s`: how long they must be up,
    in seconds; None: a person promotes them. `up_s`: how long all of them have the new version and are up, in seconds;
    None: since now, or not yet. `ready`: whether this holds now. `fails`: a task of the new version fails. `late`: the
    deadline of the update has passed.
    """

    canary: int
    canary_s: float | None
    up_s: float | None
    ready: bool
    fails: bool
    late: bool
    rollback: bool
    paused: bool


def gate(update: Watched) -> Gate:
    """Return what happens to an update now."""
    if update.fails and update.rollback and (update.canary or not update.paused):
        return Gate.ROLL_BACK
    if update.paused:
        return Gate.WAIT
    if update.late:
        return Gate.ROLL_BACK if update.rollback else Gate.STOP
    if not update.canary:
        return Gate.WAIT
    if not update.ready:
        return Gate.WAIT if update.up_s is None else Gate.DOWN
    if update.canary_s is None:
        return Gate.PAUSE
    if (update.up_s or 0.0) >= update.canary_s:
        return Gate.PROMOTE
    return Gate.UP if update.up_s is None else Gate.WAIT
