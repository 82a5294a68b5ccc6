"""Delays before the next attempt to reach a shard. Pure, except for the random numbers that it is given."""

from __future__ import annotations

import random

FIRST_S = 0.25
MOST_S = 5.0
# After an answer that says that a retry cannot help: a person has to change something first.
REFUSED_S = 60.0


class Backoff:
    """Full jitter below a doubling ceiling, so that many Borglets that lose one shard do not return at once."""

    def __init__(self, rng: random.Random, *, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._rng, self._first_s, self._most_s = rng, first_s, most_s
        self._attempts = 0

    def succeeded(self) -> None:
        self._attempts = 0

    def next_s(self, *, hopeless: bool = False) -> float:
        """Delay in seconds; the first is at most twice `first_s`."""
        if hopeless:
            return REFUSED_S * self._rng.uniform(0.5, 1.0)
        ceiling = min(self._most_s, 2 * self._first_s * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return float(self._rng.uniform(0.2, 1.0) * ceiling)
