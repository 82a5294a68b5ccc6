"""Decides when a machine is asked for a new secret. Times are seconds of the event loop's clock. No input or output."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

JITTER = 0.2
# A machine whose rotation is overdue is asked at a random time within this period, because a whole cell may connect
# together.
SPREAD_S = 600.0
# A machine that was asked and offered no secret, for example because its disk is full, is asked again after this time.
AGAIN_S = 600.0


@dataclass(slots=True)
class Rotation:
    """The replacement of one machine's secret. `asked`: whether the machine was asked for a new secret and may now
    offer one.
    """

    asked: bool = False
    _due: float = math.inf
    _accepted: str = ""
    _hurried: bool = False

    def plan(self, age_s: float, interval_s: float, now: float, rng: random.Random) -> None:
        """Plan when to replace a secret that is now `age_s` seconds old. It is replaced when it is about `interval_s`
        seconds old (randomly ± `JITTER`). If `interval_s` is 0, it is never replaced.
        """
        if interval_s <= 0:
            return
        left_s = interval_s * rng.uniform(1 - JITTER, 1 + JITTER) - age_s
        self._due = now + (left_s if left_s > 0 else rng.uniform(0, min(SPREAD_S, interval_s)))

    def hurry(self, now: float) -> None:
        """Ask for a new secret with the next poll. Idempotent."""
        if not self._hurried:
            self._hurried, self._due = True, now

    def accept(self, digest: str) -> None:
        """Record that the new secret of the machine was accepted. The next poll contains its digest `digest`."""
        self._accepted, self.asked, self._due = digest, False, math.inf

    def next_poll(self, now: float) -> tuple[bool, str]:
        """Return two values for the next poll: whether it asks the machine for a new secret, and the digest of the
        secret that was accepted since the last poll, or "" if none was accepted.
        """
        accepted, self._accepted = self._accepted, ""
        if now < self._due:
            return False, accepted
        self.asked, self._due = True, now + AGAIN_S
        return True, accepted
