"""Bounds on what a request of the web process waits for PostgreSQL, kept on the client's side.

A timeout of the server does not help while the server itself hangs. So each connection of the pool watches two
bounds: how long PostgreSQL may be silent in the middle of one statement, and when the whole request is over. The
connection is closed at either bound, and the statement raises `OperationalError`. No statement, and so no COMMIT, is
sent after the end of the request: a request that was answered with 503 writes nothing afterwards. Only a COMMIT that
PostgreSQL had already received may still take effect.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import _WaitTimeout

# When the request of this context ends, on the monotonic clock; None outside of requests.
_until: ContextVar[float | None] = ContextVar("until", default=None)

# Of the deadline of a request, in seconds: the longest silence of PostgreSQL within a statement, and the longest wait
# for a connection of the pool. A request that meets both is still answered before its deadline.
SILENCE_SHARE, POOL_SHARE = 0.3, 0.2
_CONNECT_S = 5


class NoAnswer(psycopg.OperationalError):
    """PostgreSQL did not answer in time; the connection is closed."""


def end_at(until: float) -> None:
    """Let the requests of this context send nothing to PostgreSQL after `until` (monotonic clock, seconds)."""
    _until.set(until)


def give_connections_back() -> bool:
    """Return this thread's connections to their pool; whether one is in a transaction and stays.

    A thread that waits for something else would keep it from all others.
    """
    from django.db import connections  # settings import this module

    in_transaction = False
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            in_transaction = True
        elif connection.settings_dict["OPTIONS"].get("pool"):
            connection.close()
    return in_transaction


def bounded_connection(silence_s: float) -> type[psycopg.Connection[Any]]:
    """A class of connections on which PostgreSQL may be silent for at most `silence_s` seconds at a time."""

    class BoundedConnection(psycopg.Connection[Any]):
        def wait(
            self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None
        ) -> Any:  # as psycopg declares it
            until = _until.get()
            left = silence_s if until is None else min(silence_s, until - time.monotonic())
            if left <= 0:
                self._give_up()
                raise NoAnswer("the request is past its deadline; nothing more is sent to PostgreSQL")
            if timeout is not None and timeout <= left:
                return super().wait(gen, interval, timeout)
            try:
                return super().wait(gen, min(interval, left), left)
            except _WaitTimeout as error:
                self._give_up()
                raise NoAnswer(f"PostgreSQL did not answer within {left:.1f} s") from error

        def _give_up(self) -> None:
            """Close the socket. The server rolls back, unless it has the COMMIT already."""
            if not self.closed:
                self.pgconn.finish()

    return BoundedConnection


def pool_options(size: int, deadline_s: float) -> dict[str, Any]:
    """Options of the pool of `size` connections of a web process whose requests end within `deadline_s` seconds."""
    return {
        "min_size": 1,
        "max_size": size,
        "timeout": deadline_s * POOL_SHARE,
        "connection_class": bounded_connection(deadline_s * SILENCE_SHARE),
        # After this long a failed attempt is given up, and the next request that needs a connection starts a new one:
        # the pool's own pauses between attempts grow as long as the outage was.
        "reconnect_timeout": 5.0,
    }


def connection_options(deadline_s: float, given: str) -> dict[str, Any]:
    """Options of each connection. The server ends what its client has given up; `given`: the operator's own options."""
    silence_ms = int(deadline_s * SILENCE_SHARE * 1000)
    ours = f"-c statement_timeout={silence_ms} -c client_connection_check_interval=2000"
    return {"connect_timeout": _CONNECT_S, "options": f"{ours} {given}".rstrip()}
