"""Usage of each task over five minutes, from samples a few seconds apart. History stores these windows, with the fields
of Google's published trace of 2019 (`instance_usage`). Pure.

    samples ─► the open window ─── its end ──► closed windows ─── reported, later ──► the master stores them
                                                     ◄── Poll.windows_until ──┘ deleted here

Windows begin at whole multiples of their length, so that those of all machines cover the same times. Each machine
reports them at its own moment, so that those of a cell do not arrive all at once.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from borglet.messages import RunTask, TaskKey, Usage, UsageWindow

WINDOW_S = 300
# The share of a window over which machines spread their reports of the one before it.
SPREAD = 0.6
# Windows kept without acknowledgement, those of one hour. The oldest are deleted first.
MOST_KEPT = 12
# The most windows in one report. The next reports contain the rest.
MOST_TOLD = 200

# A reported window is reported again if it is not acknowledged for so long.
RETELL_S = 30.0

QUANTILES = tuple(range(0, 101, 10))
TAIL = tuple(range(91, 100))


@dataclass(slots=True)
class _Open:
    """One task's open window."""

    cpu_milli: array[int] = field(default_factory=lambda: array("i"))
    ram_bytes: int = 0
    most_ram_bytes: int = 0
    cached_bytes: int = 0
    disk_bytes: int = 0
    throttled_milli: int = 0
    read_bytes_s: int = 0
    written_bytes_s: int = 0
    received_bytes_s: int = 0
    sent_bytes_s: int = 0
    most_threads: int = 0
    oom_kills: int = 0
    limit: Mapping[str, int] = field(default_factory=dict)

    def add(self, used: Usage, limit: Mapping[str, int]) -> None:
        self.cpu_milli.append(min(max(used.cpu_milli, 0), 2**31 - 1))
        self.ram_bytes += used.ram_bytes
        self.most_ram_bytes = max(self.most_ram_bytes, used.ram_bytes)
        self.cached_bytes += used.cached_bytes
        self.disk_bytes += used.disk_bytes
        self.throttled_milli += used.throttled_milli
        self.read_bytes_s += used.read_bytes_s
        self.written_bytes_s += used.written_bytes_s
        self.received_bytes_s += used.received_bytes_s
        self.sent_bytes_s += used.sent_bytes_s
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
            ram_bytes=self.ram_bytes // number,
            most_ram_bytes=self.most_ram_bytes,
            limit_cpu_milli=self.limit.get("cpu", 0),
            limit_ram_bytes=self.limit.get("ram", 0),
            cached_bytes=self.cached_bytes // number,
            disk_bytes=self.disk_bytes // number,
            throttled_milli=self.throttled_milli // number,
            read_bytes_s=self.read_bytes_s // number,
            written_bytes_s=self.written_bytes_s // number,
            received_bytes_s=self.received_bytes_s // number,
            sent_bytes_s=self.sent_bytes_s // number,
            most_threads=self.most_threads,
            oom_kills=self.oom_kills,
        )


def quantile(ordered: list[int], percent: int) -> int:
    """Return the least value that `percent` of the samples do not exceed; for 0, the least of all."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


class Windows:
    """The windows of one machine. Times are seconds since the epoch and never run backwards."""

    def __init__(self, rng: random.Random, *, span_s: int = WINDOW_S) -> None:
        self._rng, self._span_s = rng, span_s
        self._start = 0
        self._open: dict[TaskKey, _Open] = {}
        self._closed: dict[int, list[UsageWindow]] = {}  # by start, oldest first
        self._hush_until = 0.0
        self._delay_s = rng.uniform(0.0, SPREAD * span_s)

    def add(self, samples: Iterable[tuple[RunTask, Usage]], now: float) -> None:
        """Add the usage of running tasks over the last seconds."""
        start = int(now) // self._span_s * self._span_s
        if start != self._start:
            self._close()
            self._start = start
        for task, used in samples:
            window = self._open.get(task.key)
            if window is None:
                window = self._open[task.key] = _Open()
            window.add(used, task.limit)

    def due(self, now: float) -> list[UsageWindow]:
        """Return the windows to report now: only complete ones, the oldest first."""
        detail: list[UsageWindow] = []
        if now < self._hush_until:
            return detail
        for start, windows in self._closed.items():
            if now < start + self._span_s + self._delay_s or (detail and len(detail) + len(windows) > MOST_TOLD):
                break
            detail += windows
        if detail:
            self._hush_until = now + RETELL_S
        return detail

    def stored(self, until: float) -> None:
        """Delete the windows that end by then, because the master has them."""
        self._hush_until = 0.0
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
