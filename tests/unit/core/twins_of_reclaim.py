"""A slow and simple version of the estimator of reservations. The kernels must agree with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from scheduling.core.reclamation.usage_history import KINDS
from scheduling.core.vocabulary.reclamation_presets import OFF, Preset

FLOOR = (10, 16 * 2**20, 16 * 2**20)
UNIT = (1, 2**20, 2**20)
WINDOW_S = (300.0, 1800.0, 1800.0)


@dataclass
class Remembered:
    limit: int
    estimate: float
    peak: float = 0.0
    before: float = 0.0


@dataclass
class SlowHistory:
    """Estimates of reservations, computed for one task and one resource at a time."""

    known: dict[tuple[int, int], list[Remembered]] = field(default_factory=dict)
    observed_s: dict[tuple[int, int], float] = field(default_factory=dict)

    def look(
        self,
        key: tuple[int, int],
        limit: tuple[int, ...],
        reservation: tuple[int, ...],
        used: tuple[int, ...] | None,
        preset: Preset,
        passed_s: float,
        *,
        fixed: bool = False,
    ) -> tuple[tuple[int, ...], str]:
        """Return the new reservation by kind of resource, and the verdict: raised, lowered or held.

        `used`: the sample, or None if none came. `passed_s`: seconds since the last call. `fixed`: whether the
        reservation must be the limit.
        """
        passed_s = min(passed_s, 30.0)
        for old in [old for old in self.known if old[0] == key[0] and old != key]:
            del self.known[old], self.observed_s[old]
        memory = self.known.setdefault(key, [Remembered(limit[r], reservation[r]) for r in KINDS])
        observed_s = self.observed_s.setdefault(key, 0.0)
        fixed = fixed or preset is OFF
        wanted, verdict = [], "held"
        for r in KINDS:
            one = memory[r]
            turns = [math.floor(at * (1 / WINDOW_S[r])) for at in (observed_s, observed_s + passed_s)]
            if one.limit != limit[r]:
                one.limit, one.estimate = limit[r], reservation[r]
            exceeded = False
            if fixed or limit[r] == 0:
                one.estimate = limit[r]
            elif used is not None:
                self._one(one, r, used[r], preset, passed_s, turn=turns[0] != turns[1], settled=observed_s >= 300.0)
                exceeded = used[r] > reservation[r]
            wanted.append(min(limit[r], math.ceil(one.estimate / UNIT[r]) * UNIT[r]))
            change = wanted[r] - reservation[r]
            matters = abs(change) >= 0.05 * limit[r]
            if change > 0 and (fixed or exceeded or matters):
                verdict = "raised"
            elif change < 0 and matters and verdict == "held":
                verdict = "lowered"
        if used is not None:
            self.observed_s[key] += passed_s
        return tuple(wanted), verdict

    def _one(
        self, one: Remembered, r: int, used: int, preset: Preset, passed_s: float, *, turn: bool, settled: bool
    ) -> None:
        if turn:
            one.before, one.peak = one.peak, 0.0
        one.peak = max(one.peak, used)
        target = min(one.limit, max(FLOOR[r], max(one.peak, one.before) * (1 + preset.margin[r])))
        if used > one.estimate:
            one.estimate = target
        elif settled and one.estimate > target:
            one.estimate = target + (one.estimate - target) * 0.5 ** (passed_s / preset.half_life_s)
