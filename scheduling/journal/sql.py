"""Functions that run an SQL statement in the transaction of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection

from quota.vocabulary.errors import Rejected

T = TypeVar("T")
Values = Sequence[Any] | Mapping[str, Any]


def query(statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
    """Run an SQL statement and return all its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def execute(statement: str, values: Values = ()) -> int:
    """Run an SQL statement without reading its rows. Return the number of rows that it wrote or locked."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return int(cursor.rowcount)


def rows_by_key() -> None:
    """Make PostgreSQL use indexes to join tables until the end of the transaction.

    Otherwise PostgreSQL may read whole tables, because its statistics may be out of date.
    """
    query("SELECT set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)")


async def in_thread(function: Callable[..., T], *args: Any, **named: Any) -> T:
    """Run a function in a thread with its own database connection. Raises `Rejected` if the database is down."""

    def run() -> T:
        try:
            close_old_connections()
            return function(*args, **named)
        except (OperationalError, InterfaceError) as error:
            detail = "the cell's database is unreachable; try again later"
            raise Rejected("database-away", detail, status=503) from error
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(None, run)
