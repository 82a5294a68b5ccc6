"""Loops that write through the settings of Borg Portal, and measure for how long writes failed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
import redis

from serving import redis_clients

_PAUSE_S = 0.05


@dataclass
class Loop:
    """A thread that calls `write(number)` again and again. `done`: (time, number) of each success, monotonic clock."""

    write: Callable[[int], None]
    failures: tuple[type[Exception], ...]
    done: list[tuple[float, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Loop:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join(30.0)

    def gap_s(self, since: float) -> float | None:
        """Return the longest pause between two writes from shortly before the time `since`, or None if no write has
        succeeded since then.
        """
        times = [at for at, _ in self.done]
        before = [at for at in times if at <= since][-1:]
        after = [at for at in times if at > since]
        if not after:
            return None
        return max(later - earlier for earlier, later in itertools.pairwise([*before, *after]))

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.wait(_PAUSE_S):
                return
            try:
                self.write(number)
            except self.failures as error:
                self.errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
            else:
                self.done.append((time.monotonic(), number))


def database_loop(url: str) -> Loop:
    """Return a loop that inserts numbers into the table `ha_written`, each in a transaction of its own."""
    connection: psycopg.Connection | None = None

    def write(number: int) -> None:
        nonlocal connection
        if connection is None or connection.closed or connection.broken:
            connection = psycopg.connect(url, autocommit=True)
            connection.execute("CREATE TABLE IF NOT EXISTS ha_written (number int)")
        try:
            connection.execute("INSERT INTO ha_written VALUES (%s)", [number])
        except psycopg.Error:
            connection.close()
            raise

    return Loop(write, (psycopg.Error,))


def cache_loop(url: str) -> Loop:
    """Return a loop that sets a key of Redis."""
    client = redis_clients.client(url, socket_timeout=1.0, retry=None)
    return Loop(lambda number: client.set("ha-written", number), (redis.RedisError,))
