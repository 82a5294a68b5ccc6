"""Loops that write through the settings of Borg Portal, and measure for how long writes failed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
import redis

from serving import redis_clients
from tests.ha.history import Outcome
from tests.ha.workload import Caller

_PAUSE_S, _WEB_PAUSE_S = 0.1, 0.3


class NotWritten(Exception):
    """The error if a web process did not acknowledge a write."""


@dataclass
class Loop:
    """A thread that calls `write(number)` again and again. `done`: (time, number) of each success, monotonic clock."""

    write: Callable[[int], None]
    failures: tuple[type[Exception], ...]
    pause_s: float = _PAUSE_S
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

    def gap_s(self, since: float) -> float:
        """Return the longest pause between two writes, from the last write before the time `since` until now."""
        return max_gap_s([at for at, _ in self.done], since, time.monotonic())

    def writes(self) -> bool:
        """Return whether a write has succeeded within the last two seconds."""
        return bool(self.done) and self.done[-1][0] > time.monotonic() - 2.0

    def _run(self) -> None:
        for number in itertools.count():
            if self._stop.wait(self.pause_s):
                return
            try:
                self.write(number)
            except self.failures as error:
                self.errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
            else:
                self.done.append((time.monotonic(), number))


def max_gap_s(times: Sequence[float], since: float, until: float) -> float:
    """Return the longest pause between sorted times, from the last one before `since` to the time `until`."""
    before = [at for at in times if at <= since][-1:] or [since]
    after = [at for at in times if since < at <= until]
    return max(later - earlier for earlier, later in itertools.pairwise([*before, *after, until]))


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

    def write(number: int) -> None:
        client.set("ha-written", number)

    return Loop(write, (redis.RedisError,))


def web_loop(caller: Caller, cell: str, tenant: str) -> Loop:
    """Return a loop that changes a label of a job, without a restart of its task, through HAProxy and a web process."""

    def write(number: int) -> None:
        job = {
            "name": "written",
            "tenant": tenant,
            "priority": 100,
            "labels": {"number": str(number)},
            "task": {"command": ["sleep", "infinity"], "limit": {"cpu": "10m", "ram": "16Mi", "disk": "1Mi"}},
        }
        answer = caller.call("PUT", f"/api/v1/cells/{cell}/jobs/{tenant}/written/", json=job, give_up_s=0.0)
        if answer.outcome != Outcome.ACKNOWLEDGED:
            raise NotWritten(answer.detail)

    return Loop(write, (NotWritten,), pause_s=_WEB_PAUSE_S)
