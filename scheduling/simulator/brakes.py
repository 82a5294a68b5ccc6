"""The brakes of a simulated cell: limits on how many tasks the cell evicts or stops. They decide as in production
(`scheduling.policy.brake_rules`), except that no SRE releases them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduling.core.vocabulary import events
from scheduling.policy import brake_rules
from scheduling.policy.brake_rules import BrakeKind, BrakeState, Bucket, Extent, StopsBrake
from scheduling.policy.cell_settings import CellSettings

Append = Callable[[events.Event], None]

AT_ONCE = 5_000
"""Largest number of tasks that are evicted from lost machines at once. Production has this limit per revision."""


@dataclass(slots=True)
class SimulatedBrakes:
    """The two brakes of a simulated cell. The brake `lost` limits how many tasks of lost machines are evicted; the
    brake `stops` limits how many tasks are stopped. `lost`, `stops`: their states. `since`: the time at which the brake
    `lost` last changed its state. `calm_since`: since when only few machines are lost. `bucket`: limits the rate of
    evictions while the brake `lost` is not open.
    """

    lost: BrakeState = BrakeState.OPEN
    since: float = 0.0
    calm_since: float | None = None
    bucket: Bucket = field(default_factory=lambda: Bucket(0.0, 0.0))
    stops: StopsBrake = field(default_factory=StopsBrake)

    def lost_allowance(self, extent: Extent, waiting: int, settings: CellSettings, now: float, append: Append) -> int:
        """Return how many tasks may now be evicted from lost machines, and change the state of the brake `lost` if
        needed. `extent`: how many machines, lost machines and running tasks the cell has. `waiting`: how many tasks are
        on lost machines. `append`: adds an event to the journal.
        """
        if self.lost is BrakeState.OPEN and not waiting:
            return brake_rules.lost_allowance(self.lost, 0.0, settings, most=AT_ONCE)
        if self.lost is BrakeState.OPEN or not brake_rules.few(extent, settings):
            self.calm_since = None
        elif self.calm_since is None:
            self.calm_since = now
        calm_s = now - self.calm_since if self.calm_since is not None else 0.0
        state = brake_rules.lost_state(extent, settings, self.lost, calm_s=calm_s, held_s=now - self.since)
        if state is not self.lost:
            if self.lost is BrakeState.OPEN:
                self.bucket = Bucket(0.0, now)
            self.lost, self.since = state, now
            append(events.BrakeSet(brake=BrakeKind.LOST.value, state=state.value, wanted=waiting))
        if state is not BrakeState.OPEN:
            self.bucket = brake_rules.lost_bucket(self.bucket, now, brake_rules.lost_rate(extent, settings))
        return brake_rules.lost_allowance(state, self.bucket.level, settings, most=AT_ONCE)

    def lost_spend(self, number: int) -> None:
        """Subtract evicted tasks from the number of tasks that may be evicted from lost machines."""
        if self.lost is not BrakeState.OPEN:
            self.bucket = Bucket(self.bucket.level - number, self.bucket.at)

    def may_stop(self, number: int, running: int, settings: CellSettings, now: float, append: Append) -> bool:
        """Return whether the cell may stop `number` of its `running` tasks now. The brake `stops` decides this, and
        counts the tasks if it lets them be stopped. `append`: adds an event to the journal.
        """
        if number <= 0:
            return True
        before = self.stops
        decision = brake_rules.stops_decision(
            before, number, now=now, running=lambda: running, settings=lambda: settings
        )
        self.stops = decision.brake
        if not decision.allows:
            self.stops = StopsBrake(self.stops.state, self.stops.level, self.stops.at, now, self.stops.until)
        if self.stops.state is not before.state:
            append(events.BrakeSet(brake=BrakeKind.STOPS.value, state=self.stops.state.value, wanted=number))
        return decision.allows
