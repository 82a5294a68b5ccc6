"""The pauses before `make up` starts an ended process again. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Restarts:
    """The pauses before restarts of a process. Each pause is twice as long as the one before, from `first_s` up to
    `longest_s` seconds. After a run of at least `reset_after_s` seconds, the next pause is `first_s` again.
    """

    first_s: float = 0.2
    longest_s: float = 10.0
    reset_after_s: float = 30.0
    failures: int = 0
    total: int = 0

    def ended(self, ran_s: float) -> float:
        """Record that a run has ended after `ran_s` seconds. Return the delay in seconds before the next run."""
        self.failures = 1 if ran_s >= self.reset_after_s else self.failures + 1
        self.total += 1
        return min(self.longest_s, self.first_s * 2.0 ** min(self.failures - 1, 32))
