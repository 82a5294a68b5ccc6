"""Distribution of machines over shards: a shard with too many asks some to connect again. Pure; times in seconds.

    each second: own machines, those of the other shards ─► Spread.surplus ─► so many are hung up on, any of them

All shards have one address, so a machine that connects again reaches any of them. A shard that joins fills up within
a minute or two; who was served by one that died dials at once by itself. Where the address always leads back here,
asking is soon given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# More than this share above the average, and more than so many machines, is too many.
TOLERANCE, FEW = 0.1, 10
# Of the machines here, this share a second may be asked to move.
RATE = 0.01
# So long after the first were asked, there should be fewer.
LOOK_AFTER_S = 10.0
LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class ConnectionBalance:
    """The balance of connections of one shard."""

    _asked: int = 0  # since `_since`
    _before: int = 0
    _since: float = 0.0
    _pause_s: float = LOOK_AFTER_S
    _quiet_until: float = 0.0

    def surplus(self, now: float, own: int, others: Sequence[int]) -> int:
        """Return how many machines to send away now. `others`: machines per other live shard."""
        average = (own + sum(others)) / (1 + len(others))
        if not others or own <= average * (1 + TOLERANCE) or own - average <= FEW:
            self._asked, self._pause_s = 0, LOOK_AFTER_S
            return 0
        if now < self._quiet_until:
            return 0
        if self._asked and now - self._since >= LOOK_AFTER_S:
            helped = self._before - own >= self._asked / 4
            self._pause_s = LOOK_AFTER_S if helped else min(LONGEST_PAUSE_S, 2 * self._pause_s)
            self._asked = 0
            if not helped:
                self._quiet_until = now + self._pause_s
                return 0
        if not self._asked:
            self._before, self._since = own, now
        number = min(max(1, round(RATE * own)), round(own - average))
        self._asked += number
        return number
