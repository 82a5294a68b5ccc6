"""The times at which machines are polled next: a timetable of all machines, and a limit on early polls. Pure."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

SHORTEST_S, LONGEST_S = 2.0, 5.0
_MACHINES_PER_S = 500.0

# A machine whose state keeps changing is polled again after `GAP_S`, up to `BURST` times, and then at this rate. Where
# only a few machines share a shard, they may answer early more often, and the gap is shorter.
BURST = 40
REFILL_PER_S, MOST_PER_S = 2.0, 50.0
# While many machines connect, it waits for two turns of the shard's database work, at most `LONGEST_GAP_S`: an earlier
# report would not be stored sooner.
GAP_S = 0.05
LONGEST_GAP_S = 1.0

T = TypeVar("T", bound=Hashable)


def poll_interval(machines: int, setting_s: float = 0.0) -> float:
    """Return the seconds between two polls of one machine. `setting_s`: the cell's setting; 0: the number of
    `machines` decides.
    """
    return setting_s or min(LONGEST_S, max(SHORTEST_S, machines / _MACHINES_PER_S))


def early_rate(machines: int) -> float:
    """Return how many early answers per second each of the `machines` of a shard may give for a long time. A machine
    answers a poll early if its state changes.
    """
    return min(MOST_PER_S, max(REFILL_PER_S, _MACHINES_PER_S / max(1, machines)))


class Timetable(Generic[T]):
    """A set of items, each with a time, from which the earliest item can be found quickly. The time of an item may
    change, and it is cheap to change it to a later time.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._at: dict[T, float] = {}
        self._queued: dict[T, float] = {}  # the time of the item's valid entry in the heap
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._at)

    def put(self, item: T, at: float) -> None:
        """Add an item, or change its time."""
        self._at[item] = at
        queued = self._queued.get(item)
        if queued is not None and queued <= at:
            return
        self._queued[item] = at
        heapq.heappush(self._heap, (at, next(self._numbers), item))
        if len(self._heap) > 64 + 4 * len(self._at):
            self._heap = [(at, next(self._numbers), item) for item, at in self._at.items()]
            self._queued = dict(self._at)
            heapq.heapify(self._heap)

    def drop(self, item: T) -> None:
        self._at.pop(item, None)
        self._queued.pop(item, None)

    def soonest(self) -> float | None:
        """Return the earliest time, or None if there are no items."""
        while self._heap:
            queued, _, item = self._heap[0]
            if self._queued.get(item) != queued:
                heapq.heappop(self._heap)
            elif (at := self._at[item]) > queued:
                self._queued[item] = at
                heapq.heapreplace(self._heap, (at, next(self._numbers), item))
            else:
                return queued
        return None

    def due(self, now: float) -> Iterator[T]:
        """Remove and yield the items whose time has come, earliest first."""
        while (at := self.soonest()) is not None and at <= now:
            item = heapq.heappop(self._heap)[2]
            self.drop(item)
            yield item


@dataclass(slots=True)
class EarlyAnswerPace:
    """A limit on how soon a machine is polled again after an early answer. A machine answers a poll early if its state
    changes. After each of the first `BURST` early answers, the next poll follows in `GAP_S` seconds or sooner. After
    more early answers, it is delayed for longer.
    """

    left: float = BURST
    at: float = 0.0

    def gap_s(self, now: float, *, per_s: float = REFILL_PER_S, turn_s: float = 0.0) -> float:
        """Return the seconds to wait before the next poll. Each call uses one of the `BURST` quick polls, which are
        refilled over time. `per_s`: how many quick polls are refilled per second (see `early_rate`). `turn_s`: how long
        the shard's last round of database work took, if many machines connected in it; else 0.
        """
        self.left = min(BURST, self.left + (now - self.at) * per_s) if self.at else float(BURST)
        self.at = now
        self.left -= 1.0
        least_s = min(max(min(GAP_S, 1 / per_s), 2 * turn_s), LONGEST_GAP_S)
        return least_s if self.left >= 0 else max(least_s, -self.left / per_s)
