"""Delays before a process is restarted. They grow while it keeps failing. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Restarts:
    """The delay doubles from `first_s` to `longest_s`. A run of `forgiven_after_s` resets it."""

    first_s: float = 0.2
    longest_s: float = 10.0
    forgiven_after_s: float = 30.0
    failures: int = 0
    total: int = 0

    def ended(self, ran_s: float) -> float:
        """Count the end of a run of `ran_s` seconds. Return the delay in seconds before the next run."""
        self.failures = 1 if ran_s >= self.forgiven_after_s else self.failures + 1
        self.total += 1
        return min(self.longest_s, self.first_s * 2.0 ** min(self.failures - 1, 32))
