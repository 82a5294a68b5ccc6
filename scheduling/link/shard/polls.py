"""Poll machines at regular intervals. One timer serves all machines of a shard.

A machine is polled about `poll_interval` seconds after its last poll (randomly ± `JITTER`). A poll contains its hold:
the time after which the machine must answer. After a late answer, the next poll has a shorter hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import structlog

from scheduling.link.shard.connection import Connection
from scheduling.link.shard.metrics import ShardMetrics
from scheduling.machines.poll_times import Timetable

log = structlog.get_logger(__name__)

# A connection whose poll is not answered within this time after its hold is closed.
ANSWER_WITHIN_S = 10.0
JITTER = 0.1
# A machine that does not read its messages is not polled. It is checked again after this time.
_CONGESTED_S = 0.5
# A late answer shortens the next hold by at most this share of the interval.
_SHORTENED = 0.25


class Polls:
    """Sends polls to the machines of a shard, and plans the next polls. It uses three functions of its caller:
    `interval_s` returns the seconds between polls of a machine. `refresh` reads a machine's desired state again.
    `hang_up` closes a connection, for the given reason.
    """

    def __init__(
        self,
        figures: ShardMetrics,
        rng: random.Random,
        *,
        interval_s: Callable[[Connection], float],
        refresh: Callable[[int], None],
        hang_up: Callable[[Connection, str], None],
    ) -> None:
        self._figures, self._rng = figures, rng
        self._interval_s, self._refresh, self._hang_up = interval_s, refresh, hang_up
        self._timetable: Timetable[Connection] = Timetable()
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def drop(self, held: Connection) -> None:
        self._timetable.drop(held)

    def schedule(self, held: Connection, at: float) -> None:
        """Schedule the next call of `due` for a machine at the time `at`."""
        if held.closing:
            return
        self._timetable.put(held, at)
        if self._timer is None or at < self._timer_at:
            self._arm()

    def due(self, held: Connection, now: float) -> None:
        """Poll a machine at its scheduled time, or close its connection if it did not answer."""
        if held.waiting and now - held.asked_at >= held.hold_s + ANSWER_WITHIN_S:
            log.warning(
                "the machine did not answer a poll; its connection is closed",
                machine=held.hostname,
                waited_s=round(now - held.asked_at, 1),
            )
            self._hang_up(held, "no answer")
        elif held.wire.congested:
            self.schedule(held, now + _CONGESTED_S)
        else:
            self.ask(held)

    def ask(self, held: Connection) -> None:
        """Send a poll now, even if the machine has not answered an earlier one. The machine answers its polls in
        order.
        """
        now = asyncio.get_running_loop().time()
        if held.renew_identities_at <= now or (held.behind and held.desired is None):
            self._refresh(held.machine_id)
        interval_s = self._interval_s(held)
        late_s = now - held.asked_at - held.hold_s if held.hold_s > 0 else 0.0
        shortened_s = min(max(0.0, late_s), _SHORTENED * interval_s)
        if held.asked:
            self._figures.intervals.observe(now - held.asked_at)
        held.ask(now, interval_s * self._rng.uniform(1 - JITTER, 1 + JITTER) - shortened_s)
        self.schedule(held, now + held.hold_s + ANSWER_WITHIN_S)

    def probe(self, held: Connection) -> None:
        """Send a poll that the machine answers at once. The answer shows which desired state the machine has."""
        now = asyncio.get_running_loop().time()
        held.ask(now, 0.0)
        self.schedule(held, now + ANSWER_WITHIN_S)

    def _arm(self) -> None:
        soonest = self._timetable.soonest()
        if soonest is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        # The time is stored here, because uvloop's handle of an immediate call does not contain it.
        self._timer_at = soonest
        self._timer = asyncio.get_running_loop().call_at(soonest, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        self._figures.lateness.observe(now - self._timer_at)
        for held in list(self._timetable.due(now)):
            try:
                self.due(held, now)
            except Exception:
                # The other machines must be polled all the same.
                log.exception(
                    "the shard cannot poll a machine because of an error, so it closes the connection of the machine",
                    machine=held.hostname,
                )
                self._hang_up(held, "the shard failed")
        self._arm()
