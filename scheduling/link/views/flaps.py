"""Tasks whose state changes again and again: their changes are coalesced before they are written (§3.3). No I/O.

    compare ─► changes of one task ─► FlapDamper ─┬─ at once ─► rows + journal
                                                  └─ held ─► the newest state later, with the number of skipped changes

A task that crashes every minute, or fails its health check every minute, would write thousands of events per day that
nobody reads one by one. Each incarnation has an allowance of `BURST` changes, which grows again by one per `REFILL_S`:

* While the allowance lasts, each change is written at once. So the first changes of a task are always visible at once.
* A task that stops being up is always written at once, because names must not lead to it. This uses the allowance too.
* A task that is up again after it used up its allowance is written as soon as it has stayed up for some time: 30 s, or
  longer if it continues to flap, at most `STEADY_MOST_S`. Until then it counts as not up.
* Other changes of a task that is not up are held until the allowance has grown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from borglet.messages import Health
from scheduling.core.vocabulary.states import Observation
from scheduling.link.views.report_changes import View

BURST = 12
REFILL_S = 600.0
STEADY_S, STEADY_MOST_S = 30.0, 300.0
_LOWEST = -4.0  # the allowance of a task that has flapped for long

Key = tuple[int, int]  # task id, incarnation
_State = tuple[str, str, bool, int, str]


@dataclass(slots=True)
class _History:
    """What was last written about one incarnation, and a change that is held back (`held`). `since`: when `held` began
    to be up or not up.
    """

    allowance: float
    at: float
    written: _State
    held: Observation | None = None
    since: float = 0.0
    skipped: int = 0

    def grow(self, now: float) -> None:
        self.allowance = min(BURST, self.allowance + (now - self.at) / REFILL_S)
        self.at = now

    def spend(self) -> None:
        self.allowance = max(_LOWEST, self.allowance - 1)

    @property
    def steady_s(self) -> float:
        """Return for how many seconds the task must be up before this is written to the database."""
        return min(STEADY_MOST_S, STEADY_S * 2.0 ** max(0, math.ceil(-self.allowance)))


@dataclass(slots=True)
class FlapDamper:
    """Holds back changes of tasks on one machine whose state changes too often. Times are seconds of any clock that
    does not go back.
    """

    _known: dict[Key, _History] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether a change is held back."""
        return any(one.held is not None for one in self._known.values())

    def passed(self, seen: Iterable[Observation], now: float) -> list[Observation]:
        """Return those observations in `seen` that must be written now. The others are held back, and replace what was
        held back before.
        """
        return [found for one in seen if (found := self._pass(one, now)) is not None]

    def due(self, now: float) -> list[Observation]:
        """Return the observations that were held back and must be written now."""
        found = []
        for one in self._known.values():
            if one.held is None:
                continue
            one.grow(now)
            if now - one.since >= one.steady_s if one.held.up else one.allowance >= 1:
                found.append(_released(one, one.held))
        return found

    def rebase(self, view: View, now: float) -> None:
        """Adopt the written states from `view`, which has just been read from the database. Forget incarnations that
        are no longer in it, and those that have not changed for long.
        """
        if not self._known:
            return
        rows = {(expected.task_id, key.incarnation): expected for key, expected in view.run.items()}
        for key, one in list(self._known.items()):
            row = rows.get(key)
            one.grow(now)
            if row is None or (one.held is None and one.allowance >= BURST):
                del self._known[key]
                continue
            one.written = (row.phase, row.health, row.up, row.restarts, row.address)
            if one.held is not None and _state(one.held) == one.written:
                one.held = None

    def _pass(self, seen: Observation, now: float) -> Observation | None:
        key = (seen.task_id, seen.incarnation)
        one = self._known.get(key)
        if one is None:
            # Most tasks start once and never change again; nothing is stored about them.
            if seen.restarts or seen.health == Health.UNHEALTHY.value:
                self._known[key] = _History(BURST - 1, now, _state(seen))
            return seen
        one.grow(now)
        state = _state(seen)
        if one.held is not None and state == _state(one.held):
            return None
        if one.held is not None and seen.exit is None:
            seen = replace(seen, exit=one.held.exit)
        if one.held is None or one.held.up != seen.up:
            one.since = now
        one.skipped += one.held is not None
        if (one.written[2] and not seen.up) or one.allowance >= 1:
            return _released(one, seen)
        # A task that is again as it was written has nothing to write, but its changes count.
        unchanged = state == one.written and seen.exit is None
        one.skipped += unchanged
        one.held = None if unchanged else seen
        return None


def _released(one: _History, seen: Observation) -> Observation:
    skipped, one.skipped, one.held, one.written = one.skipped, 0, None, _state(seen)
    one.spend()
    return replace(seen, skipped=skipped) if skipped else seen


def _state(seen: Observation) -> _State:
    return seen.phase, seen.health, seen.up, seen.restarts, seen.address
