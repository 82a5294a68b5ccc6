"""Limits on how long a request of a web process waits for PostgreSQL.

The web process itself enforces these limits, because PostgreSQL cannot enforce them while it hangs. There are two
limits: the longest time for which PostgreSQL may send nothing during one statement, and the deadline of the request. At
either limit, the connection is closed and the statement raises `OperationalError`. After its deadline, a request sends
no more statements, and therefore no COMMIT. So a request that is answered with 503 changes nothing afterwards, unless
PostgreSQL has already received its COMMIT.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg.errors import _WaitTimeout

# The deadline of the request of this context, on the monotonic clock; None outside of requests.
_until: ContextVar[float | None] = ContextVar("until", default=None)

# Shares of the time of a request: the longest silence of PostgreSQL within a statement, and the longest wait for a
# connection of the pool. A request with both delays still gets its answer before its deadline.
SILENCE_SHARE, POOL_SHARE = 0.3, 0.2
_CONNECT_S = 5


class NoAnswer(psycopg.OperationalError):
    """The error if PostgreSQL did not answer in time. The connection is closed before this error is raised."""


def end_at(until: float) -> None:
    """Set the deadline of the current request. After the time `until` (monotonic clock, seconds), the request sends no
    more statements to PostgreSQL.
    """
    _until.set(until)


def give_connections_back() -> bool:
    """Return the database connections of this thread to the pool, so that other threads can use them while this thread
    waits.

    A connection inside a transaction stays with this thread. The result is True if there is such a connection.
    """
    from django.db import connections  # not above, because the settings import this module

    in_transaction = False
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            in_transaction = True
        elif connection.settings_dict["OPTIONS"].get("pool"):
            connection.close()
    return in_transaction


def bounded_connection(silence_s: float) -> type[psycopg.Connection[Any]]:
    """Return a class of database connections. If PostgreSQL sends nothing for `silence_s` seconds during a statement,
    the connection closes.
    """

    class BoundedConnection(psycopg.Connection[Any]):
        def wait(
            self, gen: PQGen[Any], interval: float = 0.1, timeout: float | None = None
        ) -> Any:  # the same signature as in psycopg
            until = _until.get()
            left = silence_s if until is None else min(silence_s, until - time.monotonic())
            if left <= 0:
                self._give_up()
                raise NoAnswer(
                    "the deadline of the request has passed, so the statement was not sent to PostgreSQL; try again "
                    "later"
                )
            if timeout is not None and timeout <= left:
                return super().wait(gen, interval, timeout)
            try:
                return super().wait(gen, min(interval, left), left)
            except _WaitTimeout as error:
                self._give_up()
                raise NoAnswer(f"PostgreSQL did not answer within {left:.1f} s; check its load and its log") from error

        def _give_up(self) -> None:
            """Close the connection. PostgreSQL then rolls the transaction back, unless it has already received the
            COMMIT.
            """
            if not self.closed:
                self.pgconn.finish()

    return BoundedConnection


def pool_options(size: int, deadline_s: float) -> dict[str, Any]:
    """Return the options of a pool of `size` database connections. `deadline_s`: the number of seconds after which each
    request has ended.
    """
    return {
        "min_size": 1,
        "max_size": size,
        "timeout": deadline_s * POOL_SHARE,
        "connection_class": bounded_connection(deadline_s * SILENCE_SHARE),
        # After this time, the pool gives up, and the next request makes it connect again. Otherwise the pauses between
        # attempts would grow to the length of the outage.
        "reconnect_timeout": 5.0,
    }


def connection_options(deadline_s: float, given: str) -> dict[str, Any]:
    """Return the options of each database connection. `given`: options that the operator has set.

    With these options, PostgreSQL also ends statements whose result no client waits for.
    """
    silence_ms = int(deadline_s * SILENCE_SHARE * 1000)
    required = f"-c statement_timeout={silence_ms} -c client_connection_check_interval=2000"
    return {"connect_timeout": _CONNECT_S, "options": f"{required} {given}".rstrip()}
