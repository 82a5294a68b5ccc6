"""The times at which machines are asked for new secrets. Pure; times are the event loop's, in seconds."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

JITTER = 0.2
# A machine that connects too late for its rotation is asked within this time, because a whole cell may return together.
SPREAD_S = 600.0
# A machine that was asked and offered nothing (its disk is full, its Borglet is too old) is asked again after this.
AGAIN_S = 600.0


@dataclass(slots=True)
class Rotation:
    """Rotation of the secret on one connection. `asked`: an offer is welcome."""

    asked: bool = False
    _due: float = math.inf
    _accepted: str = ""
    _hurried: bool = False

    def plan(self, age_s: float, interval_s: float, now: float, rng: random.Random) -> None:
        """The secret is `age_s` old, and may become `interval_s`, give or take `JITTER`; 0: as old as it likes."""
        if interval_s <= 0:
            return
        left_s = interval_s * rng.uniform(1 - JITTER, 1 + JITTER) - age_s
        self._due = now + (left_s if left_s > 0 else rng.uniform(0, min(SPREAD_S, interval_s)))

    def hurry(self, now: float) -> None:
        """Request a rotation soon. Idempotent."""
        if not self._hurried:
            self._hurried, self._due = True, now

    def accept(self, digest: str) -> None:
        """Record that the offer was accepted. The next poll reports it."""
        self._accepted, self.asked, self._due = digest, False, math.inf

    def say(self, now: float) -> tuple[bool, str]:
        """Return the fields of the next poll: whether to make an offer, and the offer that was accepted."""
        accepted, self._accepted = self._accepted, ""
        if now < self._due:
            return False, accepted
        self.asked, self._due = True, now + AGAIN_S
        return True, accepted
