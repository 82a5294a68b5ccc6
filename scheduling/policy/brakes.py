"""Brakes: limits on what a cell does by itself when many tasks would be disturbed. Pure; times in seconds.

    lost    tasks of machines that vanished are placed elsewhere: at once ─► at a rate ─► not before an SRE's word
    stops   tasks that we stop ourselves (preemption, drains, …): at once ─► not before an SRE's word

A partition looks like many dead machines (§4), and a bug in a scheduler like a wish. What a person asks for – a kill,
an update of a job – is not limited here: it has its own confirmations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from scheduling.policy.cell_settings import CellSettings

# So few machines may always be dead together.
ALWAYS_BELIEVED = 3
# Machines that went down within this vanished together.
TOGETHER_S = 600.0
# Stops are counted over about so long: a full allowance comes back in this time.
WINDOW_S = 300.0
# So few tasks may always be stopped within the window: a small cell has no shares worth speaking of.
ALWAYS_STOPPED = 500
# A brake that nobody has pulled at for so long lets go.
FORGOTTEN_S = 600.0
# Machines come back one after the other, and the last of them must not lose their tasks for that. A link that is
# overloaded loses machines and finds them again: so the brake also stays as it is for this long before it relaxes.
CALM_S = 60.0
# What a rate gives is used up within this: who waits longer doesn't save it.
_BURST_S = 5.0


class BrakeKind(StrEnum):
    LOST = "lost"
    STOPS = "stops"


class BrakeState(StrEnum):
    OPEN = "open"
    BOUNDED = "bounded"  # of `lost` alone: at a rate
    HELD = "held"  # until an SRE releases it, or what it is about is over
    RELEASED = "released"  # by an SRE; `lost` is bounded still
    KEPT = "kept"  # held, and an SRE knows


@dataclass(frozen=True, slots=True)
class Extent:
    """Numbers of a cell's `machines`, of `vanished` ones among them, and of its running `tasks`."""

    machines: int
    vanished: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A level that fills with time."""

    level: float
    at: float

    def at_time(self, now: float, *, per_s: float, most: float) -> Bucket:
        return Bucket(min(most, self.level + max(0.0, now - self.at) * per_s), max(now, self.at))


def few(extent: Extent, settings: CellSettings) -> bool:
    """Return whether so few machines vanished that they are treated as dead. Never all machines of the cell."""
    most = max(ALWAYS_BELIEVED, settings.believed_share * extent.machines)
    return extent.vanished == 0 or extent.vanished <= min(most, extent.machines - 1)


def lost_state(
    extent: Extent, settings: CellSettings, before: BrakeState, *, calm_s: float = CALM_S, held_s: float = CALM_S
) -> BrakeState:
    """The state of the brake on rescheduling. An SRE's word holds as long as so many machines are gone.

    Where all are gone it holds, however few they were: there is nowhere else, and they may only be cut off. It
    tightens at once. It relaxes when its conditions have held for `CALM_S`: `calm_s` is for how long only few machines
    have been gone, `held_s` for how long the brake has been in the state `before`.
    """
    some_left = extent.vanished < extent.machines
    if few(extent, settings):
        if before is BrakeState.OPEN or calm_s >= CALM_S:
            return BrakeState.OPEN
        return before if held_s < CALM_S else BrakeState.BOUNDED
    if some_left and extent.vanished <= max(ALWAYS_BELIEVED, settings.vanished_most_share * extent.machines):
        return before if before is BrakeState.HELD and held_s < CALM_S else BrakeState.BOUNDED
    return before if before in (BrakeState.RELEASED, BrakeState.KEPT) else BrakeState.HELD


def lost_rate(extent: Extent, settings: CellSettings) -> float:
    """Return how many tasks per second may leave vanished machines while the rate is bounded."""
    return min(settings.evictions_per_s, settings.vanished_share_per_min * extent.tasks / 60)


def lost_bucket(bucket: Bucket, now: float, per_s: float) -> Bucket:
    """A task may leave at once even at a slow rate, and then none before its time."""
    return bucket.at_time(now, per_s=per_s, most=max(1.0, per_s * _BURST_S))


def stops_allowed(tasks: int, settings: CellSettings) -> float:
    """Return how many of the running tasks may be stopped within the window without a confirmation."""
    return max(float(ALWAYS_STOPPED), settings.stop_share * tasks)


def stops_bucket(bucket: Bucket, now: float, allowed: float) -> Bucket:
    return bucket.at_time(now, per_s=allowed / WINDOW_S, most=allowed)
