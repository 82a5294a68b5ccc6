"""One SQL statement at a time, on the connection of the caller's transaction."""

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
    """Let PostgreSQL find each row of the joins that follow by its key, until the end of the transaction.

    PostgreSQL would otherwise read a whole table, or all pending tasks, for each thousand rows, because its statistics
    are older than the tasks that are being placed.
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
