"""Distributes machines over shards. A shard with too many machines closes some connections, so that these machines
connect again. No I/O.

    each second: own machines, those of the other shards ─► ConnectionBalance.surplus ─► connections to close

All shards have one common address, so a machine that connects again reaches any of them. A new shard gets its share of
machines within a minute or two. If the machines always come back to this shard, it soon stops closing connections.
Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A shard has too many machines if it exceeds the average by this share and by this number.
TOLERANCE, FEW = 0.1, 10
# Share of the shard's machines that may be asked to move per second.
RATE = 0.01
# Time after which the number of machines should have decreased.
LOOK_AFTER_S = 10.0
LONGEST_PAUSE_S = 600.0


@dataclass(slots=True)
class ConnectionBalance:
    """Computes how many connections one shard should close, so that all shards serve about the same number of
    machines.
    """

    _asked: int = 0  # machines that were asked to connect again since `_since`
    _before: int = 0  # own machines at `_since`
    _since: float = 0.0
    _pause_s: float = LOOK_AFTER_S
    _quiet_until: float = 0.0

    def surplus(self, now: float, own: int, others: Sequence[int]) -> int:
        """Return how many connections this shard should close at the time `now`.

        `own`: the number of machines of this shard. `others`: the number of machines of each other live shard.
        """
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
