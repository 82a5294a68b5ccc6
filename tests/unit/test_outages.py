"""Tests of which errors are answered with status 503, and with which code."""

from __future__ import annotations

import errno

import django.db
import psycopg
import pytest
from psycopg_pool import PoolTimeout
from redis.exceptions import ConnectionError as RedisLost

from portal.http.outages import outage_of

AWAY, FULL = "database-unavailable", "storage-full"


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("53100", FULL),
        ("53200", AWAY),
        ("53300", AWAY),
        ("57P01", AWAY),
        ("57P02", AWAY),
        ("57P03", AWAY),
        ("57014", AWAY),
        ("55P03", AWAY),
        ("25006", AWAY),
        ("25P04", AWAY),
        ("40P01", AWAY),
        ("08006", AWAY),
        ("58030", AWAY),
        ("23505", None),
        ("42P01", None),
        ("22001", None),
    ],
)
def test_sqlstates(state: str, code: str | None) -> None:
    found = outage_of(_as_django_raises(psycopg.errors.lookup(state)("told by PostgreSQL")))
    assert (found.code if found else None) == code
    assert found is None or found.status == 503


@pytest.mark.parametrize("error", [PoolTimeout("none free"), psycopg.OperationalError("the connection is lost")])
def test_silence_of_the_database(error: psycopg.Error) -> None:
    found = outage_of(_as_django_raises(error))
    assert found is not None
    assert found.code == AWAY


def test_other_needs() -> None:
    full, away = outage_of(OSError(errno.ENOSPC, "full")), outage_of(RedisLost("gone"))
    assert full is not None
    assert full.code == FULL
    assert away is not None
    assert away.code == "redis-unavailable"


def test_internal_errors_are_not_outages() -> None:
    assert outage_of(ZeroDivisionError()) is None
    with pytest.raises(KeyError) as other:  # noqa: PT012 - the second error has the first as its context
        try:
            raise psycopg.OperationalError("the connection is lost")
        except psycopg.OperationalError:
            raise KeyError("another fault, while that one was handled")  # noqa: B904
    assert outage_of(other.value) is None


def _as_django_raises(error: psycopg.Error) -> django.db.Error:
    kind = next(getattr(django.db, each.__name__) for each in type(error).__mro__ if hasattr(django.db, each.__name__))
    wrapped: django.db.Error = kind(str(error))
    wrapped.__cause__ = error
    return wrapped
