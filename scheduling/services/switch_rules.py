"""Decides the steps of a switch of a service from some tracks to another one (§8.1). Pure.

    wait until enough tasks of the new track are up ─► step ─► wait ─► step ─► … ─► wait once more ─► finished
       │ too many of its tasks fail, or the wait is too long
       └─► the weights return to those before the switch

The new track gets `step` per cent more of the clients at each step. The other tracks keep their proportions.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import NamedTuple

import msgspec

WHOLE = 100  # per cent


class SwitchState(StrEnum):
    """The state of a switch. `scheduling/README.md` explains each value."""

    SWITCHING = "switching"
    STOPPING = "stopping"  # all clients use the new track, and the jobs of the old tracks are being stopped
    DONE = "done"
    RETURNED = "returned"  # the gate failed, and the weights are those before the switch
    ENDED = "ended"  # a person has set the weights or begun another switch meanwhile


IN_PROGRESS = (SwitchState.SWITCHING, SwitchState.STOPPING)


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch. Times are in seconds since the epoch.

    `to`: the new track. `before`: the weights to which a failed switch returns. `step`: in per cent of the clients.
    `every_s`: the time between two steps. `gated`: whether steps wait for the health of the new track. `enough`: which
    share of its tasks must be up, in per cent. `within_s`: how long a step may wait for them. `stop_old`: whether to
    stop the jobs of the old tracks, which had clients, at the end. `old_jobs`: the ids of these jobs. `confirmed`: how
    many running tasks the stop may end. `due`: when the next step may happen. `reason`: why the switch has ended as it
    did.
    """

    to: str
    before: dict[str, int]
    step: int
    every_s: int
    gated: bool
    enough: int
    within_s: int
    stop_old: bool
    old_jobs: list[int]
    confirmed: int = 0
    began: float
    due: float
    state: SwitchState = SwitchState.SWITCHING
    ended: float | None = None
    reason: str = ""


class TrackHealth(NamedTuple):
    """The tasks of the new track. `wanted`: how many should be up, with those that failed for good. `failing`: how many
    are not up because they failed since the switch began. `first`: such a task, as `job/index`; may be empty.
    """

    wanted: int
    up: int
    failing: int = 0
    first: str = ""


class Move(Enum):
    """What happens to a switch now."""

    WAIT = auto()
    STEP = auto()
    FINISH = auto()
    RETURN = auto()


def next_move(switch: Switch, weights: Mapping[str, int], health: TrackHealth, now: float) -> tuple[Move, str]:
    """Return what happens to a switch now, and why it returns. `weights`: the present ones."""
    if not health.wanted:
        return Move.RETURN, f"track {switch.to} has no live task any more"
    if switch.gated and health.failing * WHOLE > health.wanted * (WHOLE - switch.enough):
        some = f"{health.failing} of {health.wanted} tasks" if health.failing > 1 else "a task"
        named = f", first {health.first}" if health.failing > 1 else f", {health.first},"
        return Move.RETURN, f"{some} of track {switch.to}{named if health.first else ''} failed"
    if now < switch.due:
        return Move.WAIT, ""
    if not switch.gated or health.up * WHOLE >= health.wanted * switch.enough:
        return (Move.STEP if share_of(weights, switch.to) < WHOLE else Move.FINISH), ""
    if now - switch.due >= switch.within_s:
        few = f"only {health.up} of {health.wanted} tasks of track {switch.to} were up"
        return Move.RETURN, f"{few} within {switch.within_s} s, and the switch asks for {switch.enough} %"
    return Move.WAIT, ""


def share_of(weights: Mapping[str, int], track: str) -> float:
    """Return the share of the clients that a track gets, in per cent."""
    total = sum(weights.values())
    return WHOLE * weights.get(track, 0) / total if total else 0.0


def stepped(switch: Switch, weights: Mapping[str, int]) -> dict[str, int]:
    """Return the weights after the next step, as whole per cent. The other tracks share the rest in the proportions
    that they had before the switch.
    """
    share = min(WHOLE, int(share_of(weights, switch.to)) + switch.step)
    others = {track: weight for track, weight in switch.before.items() if track != switch.to}
    total = sum(others.values())
    if not total:
        share = WHOLE
    rest = WHOLE - share
    found = {track: rest * weight // total if total else 0 for track, weight in others.items()}
    # The largest remainders get what the division left over.
    lacking = sorted(others, key=lambda track: (-(rest * others[track] % total) if total else 0, track))
    for track in lacking[: rest - sum(found.values())]:
        found[track] += 1
    return {**found, switch.to: share}
