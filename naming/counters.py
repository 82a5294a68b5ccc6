"""Counters of a resolver. `naming.metrics` converts them into metrics on request. Pure.

    sockets, primary, follower ─► ServerCounters of a process ─► Board, which the workers share ─► add_up ─► metrics

For most queries, only one counter is incremented: an element of the list `short`. Its index is the last octet of the
answer's flags.
"""

from __future__ import annotations

import mmap
import zlib
from bisect import bisect_left
from collections.abc import Iterable

import msgspec

RCODES = 16
LAG_BOUNDS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_SLOT = 2**20  # octets for one process; the system provides memory only for used pages


def _zeros(number: int) -> list[int]:
    return msgspec.field(default_factory=lambda: [0] * number)


def increment(counts: dict[str, int], key: str, by: int = 1) -> None:
    """Add `by` to the counter of `key`."""
    counts[key] = counts.get(key, 0) + by


class CellFigures(msgspec.Struct):
    """Figures of a cell. `snapshot_at`: when the names of the cell were last stored in a file, in seconds since the
    epoch; 0: never.
    """

    revision: int
    serial: int
    jobs: int = 0
    placed: int = 0
    serving: int = 0
    snapshot_at: float = 0.0


class ServerCounters(msgspec.Struct):
    """The counters of one worker process. After a restart of the worker, its counters continue.

    The field `streams` and the fields after it are not counters. They describe the present state of a worker.
    """

    short: list[int] = _zeros(256)  # answers of the short path, by the last octet of their flags
    udp: list[int] = _zeros(RCODES)  # answers of the long path, by RCODE
    tcp: list[int] = _zeros(RCODES)
    unanswered: int = 0  # datagrams that get no answer
    truncated: int = 0
    errors: int = 0
    limited: dict[str, int] = msgspec.field(default_factory=dict)  # by verdict
    transfers: dict[str, int] = msgspec.field(default_factory=dict)  # by kind
    notify_failures: dict[str, int] = msgspec.field(default_factory=dict)  # by secondary
    snapshot_failures: int = 0
    lags: list[int] = _zeros(len(LAG_BOUNDS_S) + 1)
    lag_sum_s: float = 0.0
    streams_bounded: dict[str, int] = msgspec.field(default_factory=dict)  # closed or rejected, by limit
    streams: int = 0  # open TCP connections
    status: str = "loading"
    unheard_s: float = 0.0
    cells: dict[str, CellFigures] = msgspec.field(default_factory=dict)
    secondaries: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)  # cell -> address -> serial

    def count(self, answer: bytes, counts: list[int]) -> None:
        """Count an answer that `naming.dns.resolver` built. `counts`: the counters `udp` or `tcp`, depending on how the
        query arrived.
        """
        counts[answer[3] & 15] += 1
        if answer[2] & 2:
            self.truncated += 1

    def observe_lag(self, seconds: float) -> None:
        """Record the seconds from the commit of an event to the first answers that include the event."""
        self.lags[bisect_left(LAG_BOUNDS_S, seconds)] += 1
        self.lag_sum_s += seconds


def add_up(many: Iterable[ServerCounters]) -> ServerCounters:
    """Return the sum of the counters of all processes. `status` is the worst status of all processes. The figures of
    snapshot files and secondaries are those of the first process.
    """
    first, *others = many
    total = msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=ServerCounters)
    for one in others:
        for name in ("short", "udp", "tcp", "lags"):
            setattr(total, name, [a + b for a, b in zip(getattr(total, name), getattr(one, name), strict=True)])
        for name in ("unanswered", "truncated", "errors", "snapshot_failures", "lag_sum_s", "streams"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        for name in ("limited", "transfers", "notify_failures", "streams_bounded"):
            for key, number in getattr(one, name).items():
                increment(getattr(total, name), key, number)
        total.status = max(total.status, one.status, key=("ok", "stale", "loading").index)
        total.unheard_s = max(total.unheard_s, one.unheard_s)
        for cell, figures in one.cells.items():
            mine = total.cells.setdefault(cell, figures)
            if figures.revision < mine.revision:
                mine.revision, mine.serial = figures.revision, figures.serial
    return total


class Board:
    """The memory that a parent process shares with its worker processes. One part per worker contains the counters of
    this worker. In another part, the parent counts the restarts of each worker.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._memory = mmap.mmap(-1, _SLOT * (workers + 1))

    def write(self, number: int, figures: ServerCounters) -> None:
        """Write the counters of the worker `number` to the shared memory. If they need too much space, keep the
        previous counters.
        """
        self._put(number, msgspec.msgpack.encode(figures))

    def read(self, number: int) -> ServerCounters | None:
        """Return the counters of the worker `number`. Return None if the worker has not written any counters, or is
        writing now.
        """
        data = self._take(number)
        return None if data is None else msgspec.msgpack.decode(data, type=ServerCounters)

    def others(self, number: int) -> list[ServerCounters]:
        """Return the counters of all workers except worker `number`."""
        found = [self.read(other) for other in range(self._workers) if other != number]
        return [figures for figures in found if figures is not None]

    def ended(self, number: int) -> None:
        """Count a restart of a worker. Only the parent calls this method."""
        restarts = self.restarts()
        restarts[number] += 1
        self._put(self._workers, msgspec.msgpack.encode(restarts))

    def restarts(self) -> list[int]:
        """Return the number of restarts of each worker."""
        data = self._take(self._workers)
        return [0] * self._workers if data is None else msgspec.msgpack.decode(data, type=list[int])

    def _put(self, slot: int, data: bytes) -> None:
        if len(data) + 8 <= _SLOT:
            at = slot * _SLOT
            head = len(data).to_bytes(4) + zlib.crc32(data).to_bytes(4)
            self._memory[at : at + 8 + len(data)] = head + data

    def _take(self, slot: int) -> bytes | None:
        at = slot * _SLOT
        for _ in range(3):  # a concurrent write ends within three tries
            size = int.from_bytes(self._memory[at : at + 4])
            data = self._memory[at + 8 : at + 8 + min(size, _SLOT)]
            if size and zlib.crc32(data) == int.from_bytes(self._memory[at + 4 : at + 8]):
                return data
        return None
