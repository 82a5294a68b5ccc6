"""Outages. In an outage, a service that a request needs is unreachable, full or busy. The response is 503 with
Retry-After.

An outage is not the fault of the request: the same request may succeed later. `outage_of` finds the outage behind an
error that no other handler covers. Such errors come from views and middlewares (`portal.http.errors.broken`), or from
code that runs before Django (`portal.http.request_deadlines`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import django.db
import psycopg
from kombu.exceptions import OperationalError as BrokerAway
from redis.exceptions import ConnectionError as RedisLost
from redis.exceptions import TimeoutError as RedisSilent

RETRY_AFTER_S = 5
_SPREAD_S = (2, 2 * RETRY_AFTER_S - 2)

# Classes of SQLSTATE: lost connections, insufficient resources, an action of an operator, system errors.
_AWAY_CLASSES = ("08", "53", "57P", "58")
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
_LONGEST_CHAIN = 20


class Overloaded(Exception):
    """The error if this process has too much work of one kind. `outage`: the answer to the caller.

    `detail`: which kind of work. The times after which callers should try again are random, so that they do not all
    return at the same moment.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        pause_s = random.randint(*_SPREAD_S)
        self.outage = Outage("overloaded", f"{detail} Try again in {pause_s} seconds.", pause_s)


@dataclass(frozen=True, slots=True)
class Outage:
    """An outage. `code`: the error code for programs. `detail`: the message for people. `retry_after_s`: after how many
    seconds to try again. `figures`: numbers that explain the outage to programs.
    """

    code: str
    detail: str
    retry_after_s: int = RETRY_AFTER_S
    status: int = 503
    figures: Mapping[str, Any] = field(default_factory=dict)


_AGAIN = f"Try again in {RETRY_AFTER_S} seconds."
UNAVAILABLE = Outage("database-unavailable", f"The request needs PostgreSQL, which does not answer now. {_AGAIN}")
GIVEN_UP = Outage(
    "database-unavailable", f"The request needs PostgreSQL, which did not finish its work in time. {_AGAIN}"
)
READ_ONLY = Outage("database-unavailable", f"The request writes, and PostgreSQL accepts only reads now. {_AGAIN}")
STORAGE_FULL = Outage(
    "storage-full",
    "The request writes, and a disk of the installation is full. Nothing was stored. Ask an SRE to free space; "
    "then try again.",
    30,
)
REDIS_UNAVAILABLE = Outage("redis-unavailable", f"The request needs Redis, which does not answer now. {_AGAIN}")
LATE = Outage(
    "deadline-exceeded",
    "The portal could not finish the request within its deadline. The request may still have taken effect. Send the "
    "request again with the same idempotency key, so that it does not take effect twice.",
)
_BY_SQLSTATE = {
    "53100": STORAGE_FULL,
    "25006": READ_ONLY,
    # Timeouts of statements, of locks and of transactions, and conflicts between transactions.
    **dict.fromkeys(("57014", "55P03", "25P03", "25P04", "40001", "40P01"), GIVEN_UP),
}


def outage_of(error: BaseException) -> Outage | None:
    """Return the outage that caused `error`. Return None if `error` is a bug or a fault of the request."""
    for each in _chain(error):
        if isinstance(each, Overloaded):
            return each.outage
        if isinstance(each, psycopg.Error | django.db.Error):
            if found := _of_database(each):
                return found
        elif isinstance(each, RedisLost | RedisSilent | BrokerAway):
            return REDIS_UNAVAILABLE
        elif isinstance(each, OSError) and each.errno in _FULL_DISK:
            return STORAGE_FULL
    return None


def _of_database(error: Exception) -> Outage | None:
    state = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    if state is None:  # the connection was lost or closed, or there was no connection
        lost = (psycopg.OperationalError, psycopg.InterfaceError, django.db.OperationalError)
        return UNAVAILABLE if isinstance(error, (*lost, django.db.InterfaceError)) else None
    return _BY_SQLSTATE.get(state) or (UNAVAILABLE if state.startswith(_AWAY_CLASSES) else None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, and then the errors that caused it (`__cause__`).

    If a database error has no `__cause__`, its `__context__` is used.
    """
    each: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if each is None:
            return
        yield each
        each = each.__cause__ or (each.__context__ if isinstance(each, django.db.Error) else None)
