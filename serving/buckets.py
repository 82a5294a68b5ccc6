"""Token buckets, which limit how many requests a caller may send. Pure: callers give the time.

A bucket of a rate of 300 requests per second has 3,000 tokens when it is full. Each request takes one token, and 300
tokens return per second. So a caller may send 3,000 requests at once, and 300 per second over a longer time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

# A full bucket has the tokens that return within this time.
WINDOW_S = 10
_ROUNDING_S = 1e-6


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit on requests. `name`: its name in headers, such as `token`. `per_s`: requests per second."""

    name: str
    per_s: int

    @property
    def quota(self) -> int:
        """Return how many requests a caller may send at once after a pause."""
        return self.per_s * WINDOW_S


class Bucket:
    """The tokens of one caller. All times are seconds of one monotonic clock.

    `full_at`: when the bucket is full again. `unshared_s`: the tokens that were taken since the last exchange with
    other processes (`serving.shared_buckets`), in seconds of their return.
    """

    __slots__ = ("full_at", "rate", "unshared_s")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self.full_at = now
        self.unshared_s = 0.0

    def wait_s(self, now: float) -> float:
        """Return the seconds until the caller may send the next request; 0 if it may send the request now."""
        wait_s = self.full_at - now + 1 / self.rate.per_s - WINDOW_S
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, now: float) -> None:
        """Take the token of one request."""
        cost_s = 1 / self.rate.per_s
        self.full_at = max(self.full_at, now) + cost_s
        self.unshared_s += cost_s

    def left(self, now: float) -> int:
        """Return how many requests the caller may send now."""
        missing_s = max(0.0, self.full_at - now)
        return max(0, int((WINDOW_S - missing_s + _ROUNDING_S) * self.rate.per_s))

    def refill_s(self, now: float) -> int:
        """Return after how many whole seconds the bucket is full, if no more requests arrive."""
        return max(0, ceil(self.full_at - now - _ROUNDING_S))
