"""Delays between attempts to reach a server. Pure: the caller passes the source of random numbers."""

from __future__ import annotations

import random

FIRST_S = 0.25
MOST_S = 5.0
# The longest delay after an answer that a retry cannot change, because a person must act first.
REFUSED_S = 60.0


class Backoff:
    """Random delays below an upper bound. The bound doubles after each attempt. Because the delays are random, Borglets
    that lose their shard do not all connect again at the same time.
    """

    def __init__(self, rng: random.Random, *, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._rng, self._first_s, self._most_s = rng, first_s, most_s
        self._attempts = 0

    def succeeded(self) -> None:
        self._attempts = 0

    def next_s(self, *, hopeless: bool = False) -> float:
        """Return the delay before the next attempt, in seconds. The first delay is at most twice `first_s`.

        `hopeless`: a new attempt soon would probably fail too, so the delay is long.
        """
        if hopeless:
            return REFUSED_S * self._rng.uniform(0.5, 1.0)
        ceiling = min(self._most_s, 2 * self._first_s * 2 ** min(self._attempts, 30))
        self._attempts += 1
        return float(self._rng.uniform(0.2, 1.0) * ceiling)
