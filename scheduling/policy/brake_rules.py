"""Brakes: limits on what a cell does automatically when this would disturb many tasks. Pure. Times are in seconds.

    lost    tasks of lost machines are placed elsewhere: at once ─► at a limited rate ─► only after an SRE allows it
    stops   the cell itself stops tasks (preemption, drains, …): at once ─► only after an SRE allows it

A lost machine is one that does not report. A network partition looks like many dead machines (§4), and a scheduler
with a bug may stop many tasks. Brakes do not limit actions that a person requests, such as killing or updating a job.
If such an action concerns many tasks, the person must confirm it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from scheduling.policy.cell_settings import CellSettings

# Up to this number of lost machines are always treated as dead.
ALWAYS_BELIEVED = 3
# Machines that went down within this time count as lost at the same time.
TOGETHER_S = 600.0
# Stops are counted over about this time. After it, the complete allowance is available again.
WINDOW_S = 300.0
# This number of tasks may always stop within the window, because a share of a small cell would be too few.
ALWAYS_STOPPED = 500
# A brake opens if nothing has been rejected because of it for this time.
FORGOTTEN_S = 600.0
# The brake keeps its state for this time before it relaxes, because machines reconnect one after the other, and the
# last of them must not lose their tasks.
CALM_S = 60.0
# The allowance of a rate grows for at most this time. Longer waiting does not increase it.
_BURST_S = 5.0


class BrakeKind(StrEnum):
    """The two brakes of a cell. `LOST` limits how many tasks of lost machines are placed on other machines per minute.
    `STOPS` limits how many tasks the cell stops.
    """

    LOST = "lost"
    STOPS = "stops"


class BrakeState(StrEnum):
    """The state of a brake: whether it lets the cell stop or move tasks, and what an SRE has decided."""

    OPEN = "open"
    BOUNDED = "bounded"  # only `lost`: at a limited rate
    HELD = "held"  # until an SRE releases it, or its cause has ended
    RELEASED = "released"  # by an SRE; the rate of `lost` is still limited
    KEPT = "kept"  # held, and confirmed by an SRE


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a cell is: the numbers of its machines, of those that do not report (`vanished`), and of its running
    tasks.
    """

    machines: int
    vanished: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """A token bucket: `level` tokens at the time `at`. The number of tokens grows with time, up to a maximum."""

    level: float
    at: float

    def at_time(self, now: float, *, per_s: float, most: float) -> Bucket:
        """Return the bucket at the time `now`. It gets `per_s` tokens per second, and has at most `most` tokens."""
        return Bucket(min(most, self.level + max(0.0, now - self.at) * per_s), max(now, self.at))


def few(extent: Extent, settings: CellSettings) -> bool:
    """Return whether so few machines are lost that they can be treated as dead. Return False if all machines of the
    cell are lost.
    """
    most = max(ALWAYS_BELIEVED, settings.believed_share * extent.machines)
    return extent.vanished == 0 or extent.vanished <= min(most, extent.machines - 1)


def lost_state(
    extent: Extent, settings: CellSettings, before: BrakeState, *, calm_s: float = CALM_S, held_s: float = CALM_S
) -> BrakeState:
    """Return the next state of the brake `lost`. The decision of an SRE is valid while too many machines are lost.

    The brake becomes stricter at once. It is `held` if very many or all machines are lost, because the machines may
    only be unreachable. It stays `held` for at least `CALM_S` seconds. It becomes `open` when only few machines have
    been lost for `CALM_S` seconds. `calm_s`: for how many seconds only few machines have been lost. `held_s`: for how
    many seconds the state has been `before`.
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
    """Return how many tasks per second may be evicted from lost machines while the brake `lost` limits the rate."""
    return min(settings.evictions_per_s, settings.vanished_share_per_min * extent.tasks / 60)


def lost_bucket(bucket: Bucket, now: float, per_s: float) -> Bucket:
    """Return the token bucket of the brake `lost` at the time `now`. Each eviction from a lost machine takes one token.
    `per_s`: new tokens per second. The maximum is at least one token, so that tasks can be evicted even at a slow rate.
    """
    return bucket.at_time(now, per_s=per_s, most=max(1.0, per_s * _BURST_S))


def stops_allowed(tasks: int, settings: CellSettings) -> float:
    """Return how many of the running `tasks` the cell may stop by itself within `WINDOW_S` seconds. If it tries to stop
    more, the brake `stops` prevents this.
    """
    return max(float(ALWAYS_STOPPED), settings.stop_share * tasks)


def stops_bucket(bucket: Bucket, now: float, allowed: float) -> Bucket:
    """Return the token bucket of the brake `stops` at the time `now`. Each stop of a task takes one token. After
    `WINDOW_S` seconds, an empty bucket has `allowed` tokens again, which is its maximum.
    """
    return bucket.at_time(now, per_s=allowed / WINDOW_S, most=allowed)


@dataclass(frozen=True, slots=True)
class StopsBrake:
    """The brake `stops` at one moment. `level`: how many tasks may stop at the time `at`; None: as many as the cell
    allows. `asked_at`: when a stop was last requested and rejected. `until`: when the release by an SRE ends.
    """

    state: BrakeState = BrakeState.OPEN
    level: float | None = None
    at: float = 0.0
    asked_at: float | None = None
    until: float | None = None

    def forgotten(self, now: float) -> bool:
        """Return whether the brake has rejected no stop of a task for `FORGOTTEN_S` seconds."""
        return self.asked_at is None or now - self.asked_at > FORGOTTEN_S


@dataclass(frozen=True, slots=True)
class StopsDecision:
    """The decision whether tasks may stop now, and the brake afterwards. If the brake is now held, `running` is the
    number of running tasks, `allowed` how many of them may stop within `WINDOW_S` seconds, and `left` how many of these
    had not stopped yet.
    """

    allows: bool
    brake: StopsBrake
    running: int = 0
    allowed: float = 0.0
    left: float = 0.0


def stops_decision(
    brake: StopsBrake, number: int, *, now: float, running: Callable[[], int], settings: Callable[[], CellSettings]
) -> StopsDecision:
    """Return whether the cell may stop `number` more running tasks by itself. If there are too many, the brake is held
    from now on. `running`, `settings`: return the number of running tasks and the cell's settings; they are called
    only if they are needed.
    """
    if brake.state in (BrakeState.HELD, BrakeState.KEPT) and not brake.forgotten(now):
        return StopsDecision(False, brake)
    if brake.state is BrakeState.RELEASED and brake.until is not None and brake.until > now:
        return StopsDecision(True, brake)
    tasks = running()
    allowed = stops_allowed(tasks, settings())
    level = allowed if brake.level is None or brake.state is not BrakeState.OPEN else brake.level
    bucket = stops_bucket(Bucket(level, brake.at), now, allowed)
    if bucket.level >= number:
        opened = StopsBrake(BrakeState.OPEN, bucket.level - number, now, brake.asked_at)
        return StopsDecision(True, opened)
    held = replace(brake, state=BrakeState.HELD, level=None, at=now, asked_at=now, until=None)
    return StopsDecision(False, held, tasks, allowed, bucket.level)


def lost_allowance(state: BrakeState, level: float, settings: CellSettings, *, most: int) -> int:
    """Return how many tasks may now be evicted from lost machines. `level`: the tokens in the brake's token bucket, one
    per eviction. `most`: the largest number of tasks that are evicted at once.
    """
    if state is BrakeState.OPEN:
        return most if settings.evictions_per_s else 0
    if state not in (BrakeState.BOUNDED, BrakeState.RELEASED):
        return 0
    return min(most, int(level))
