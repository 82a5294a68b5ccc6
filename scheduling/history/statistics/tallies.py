"""Tallies: counts, sums and histograms of what happened in a cell, per hour. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

HOUR_S = 3600
# The hour of a tally over all hours.
TOTAL = 0
# Upper bounds of the buckets of a histogram, in seconds. The last bucket of a histogram has no upper bound.
BOUNDS_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0)


class Figure(StrEnum):
    """The kinds of tallies. The comment beside each kind describes the labels that divide it."""

    EVICTIONS = "evictions"  # cause
    RUNNING = "running"  # none; the sum is the time that tasks were running, in seconds
    START = "start"  # part of the time from submission to running: queue, install, start, total
    PACKAGE_INSTALL = "package-install"  # package, as tenant/name
    PACKAGE_TOTAL = "package-total"  # package, as tenant/name
    DELAY = "delay"  # first or again: whether the task waited for its first placement
    PENDING = "pending"  # reason; the sum is the time that tasks were pending, in seconds


# The figures that have a histogram.
TIMED = (Figure.START, Figure.PACKAGE_INSTALL, Figure.PACKAGE_TOTAL, Figure.DELAY)


class TallyKey(NamedTuple):
    """The key of a tally. `hour`: the start of the hour in seconds since the epoch, or `TOTAL` for all hours. `prod`:
    whether it counts tasks of prod priority.
    """

    hour: int
    figure: Figure
    prod: bool
    label: str


@dataclass(slots=True)
class Tally:
    """A number of occurrences, the sum of their values, and a histogram of the values. `buckets`: the number of values
    up to each bound in `BOUNDS_S`, and of all larger ones.
    """

    number: int = 0
    total: float = 0.0
    buckets: list[int] = field(default_factory=list)

    def add(self, value: float, *, number: int = 1) -> None:
        """Add `number` occurrences with the sum `value`."""
        self.number += number
        self.total += value

    def observe(self, seconds: float) -> None:
        """Add one occurrence of `seconds` to the sum and the histogram."""
        self.add(seconds)
        if not self.buckets:
            self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.buckets[next((n for n, bound in enumerate(BOUNDS_S) if seconds <= bound), len(BOUNDS_S))] += 1


class Tallies(dict[TallyKey, Tally]):
    """Tallies by key. `at` creates missing ones."""

    def at(self, time: float, figure: Figure, *, prod: bool, label: str = "") -> tuple[Tally, Tally]:
        """Return the tally of the hour that contains `time`, and the tally of all hours."""
        hour = int(time // HOUR_S) * HOUR_S
        first = self.setdefault(TallyKey(hour, figure, prod, label), Tally())
        return first, self.setdefault(TallyKey(TOTAL, figure, prod, label), Tally())


def percentile(buckets: Sequence[int], share: float) -> float | None:
    """Return the value in seconds below which the share `share` (0 to 1) of the occurrences lies, or None if there are
    none. Within a bucket, the values count as evenly spread. A value in the last bucket is its lower bound.
    """
    number = sum(buckets)
    if not number:
        return None
    wanted, below = share * number, 0
    for place, found in enumerate(buckets):
        if found and below + found >= wanted:
            low = BOUNDS_S[place - 1] if place else 0.0
            high = BOUNDS_S[place] if place < len(BOUNDS_S) else low
            return low + (high - low) * max(0.0, wanted - below) / found
        below += found
    return BOUNDS_S[-1]


def added(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of histograms. Empty histograms count as zero."""
    result = [0] * (len(BOUNDS_S) + 1)
    for one in histograms:
        for place, number in enumerate(one):
            result[place] += number
    return result


def per_task_week(evictions: int, running_s: float) -> float | None:
    """Return the evictions per task-week (Figure 3), or None if no task was running."""
    return None if running_s <= 0 or math.isnan(running_s) else evictions * 7 * 24 * HOUR_S / running_s
