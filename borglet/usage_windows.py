"""Usage windows: the usage of each task during five minutes, computed from a sample every few seconds. Pure.

    samples ─► open window ─── five minutes ──► closed windows ─── a later report ──► the master stores them
                                                     ◄── Poll.windows_until ──┘ deleted here

A window has the fields of Google's published trace of 2019 (`instance_usage`). Windows begin at multiples of five
minutes, so the windows of all machines begin at the same times. Each machine waits for a random time before it reports
its windows, so that the reports of a cell do not all arrive at the same time.
"""

from __future__ import annotations

import math
import operator
import random
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from borglet.messages import RunTask, TaskKey, Usage, UsageWindow

WINDOW_S = 300
# Machines spread their reports of a window over this share of the next window.
SPREAD = 0.6
# The most windows that are kept without acknowledgement: those of one hour. The oldest are deleted first.
MOST_KEPT = 12
# The most windows in one report. The next reports contain the rest.
MOST_REPORTED = 200
# A window that is not acknowledged for this long is reported again.
REPEAT_S = 30.0

QUANTILES = tuple(range(0, 101, 10))
TAIL = tuple(range(91, 100))
# The fields of `Usage` whose mean over the samples is the field of the same name in `UsageWindow`.
MEANS = sorted({*Usage.__struct_fields__} & {*UsageWindow.__struct_fields__} - {"cpu_milli", "oom_kills"})
_means_of = operator.attrgetter(*MEANS)


@dataclass(slots=True)
class _OpenWindow:
    """The present usage window of one task, to which samples are added. `sums`: for each figure in `MEANS`, the sum of
    its samples.
    """

    cpu_milli: array[int] = field(default_factory=lambda: array("i"))
    sums: list[int] = field(default_factory=lambda: [0] * len(MEANS))
    most_ram_bytes: int = 0
    most_threads: int = 0
    oom_kills: int = 0
    limit: Mapping[str, int] = field(default_factory=dict)

    def add(self, used: Usage, limit: Mapping[str, int]) -> None:
        self.cpu_milli.append(min(max(used.cpu_milli, 0), 2**31 - 1))
        self.sums = list(map(operator.add, self.sums, _means_of(used)))
        self.most_ram_bytes = max(self.most_ram_bytes, used.ram_bytes)
        self.most_threads = max(self.most_threads, used.threads)
        self.oom_kills = max(self.oom_kills, used.oom_kills)
        self.limit = limit

    def close(self, key: TaskKey, start: int, span_s: int, rng: random.Random) -> UsageWindow:
        cpu, number = sorted(self.cpu_milli), len(self.cpu_milli)
        return UsageWindow(
            key=key,
            start=start,
            span_s=span_s,
            samples=number,
            cpu_milli=round(sum(cpu) / number),
            most_cpu_milli=cpu[-1],
            random_cpu_milli=self.cpu_milli[rng.randrange(number)],
            cpu_distribution=[quantile(cpu, percent) for percent in QUANTILES],
            cpu_tail=[quantile(cpu, percent) for percent in TAIL],
            most_ram_bytes=self.most_ram_bytes,
            limit_cpu_milli=self.limit.get("cpu", 0),
            limit_ram_bytes=self.limit.get("ram", 0),
            most_threads=self.most_threads,
            oom_kills=self.oom_kills,
            **{name: total // number for name, total in zip(MEANS, self.sums, strict=True)},
        )


def quantile(ordered: list[int], percent: int) -> int:
    """Return the smallest sample such that at least `percent` % of the samples are not greater. `ordered`: the samples,
    in ascending order.
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


class Windows:
    """Sums up the usage of a machine's tasks in windows of five minutes, and returns closed windows for reports.

    Times are seconds since the epoch and never run backwards.
    """

    def __init__(self, rng: random.Random, *, span_s: int = WINDOW_S) -> None:
        self._rng, self._span_s = rng, span_s
        self._start = 0
        self._open: dict[TaskKey, _OpenWindow] = {}
        self._closed: dict[int, list[UsageWindow]] = {}  # by start, oldest first
        self._silent_until = 0.0
        self._delay_s = rng.uniform(0.0, SPREAD * span_s)

    def add(self, samples: Iterable[tuple[RunTask, Usage]], now: float) -> None:
        """Add a usage sample of each running task to the task's open window. If the five minutes of the open windows
        are over, first close these windows.
        """
        start = int(now) // self._span_s * self._span_s
        if start != self._start:
            self._close()
            self._start = start
        for task, used in samples:
            if task.key not in self._open:
                self._open[task.key] = _OpenWindow()
            self._open[task.key].add(used, task.limit)

    def due(self, now: float) -> list[UsageWindow]:
        """Return the closed windows to report now, the oldest first."""
        found: list[UsageWindow] = []
        if now < self._silent_until:
            return found
        for start, windows in self._closed.items():
            if now < start + self._span_s + self._delay_s or (found and len(found) + len(windows) > MOST_REPORTED):
                break
            found += windows
        if found:
            self._silent_until = now + REPEAT_S
        return found

    def stored(self, until: float) -> None:
        """Delete the windows that end at `until` or earlier, because the master has stored them."""
        self._silent_until = 0.0
        for start in [start for start in self._closed if start + self._span_s <= until]:
            del self._closed[start]

    def _close(self) -> None:
        if self._open:
            self._closed[self._start] = [
                window.close(key, self._start, self._span_s, self._rng) for key, window in self._open.items()
            ]
        self._open = {}
        while len(self._closed) > MOST_KEPT:
            del self._closed[next(iter(self._closed))]
