"""A shard's one thread for PostgreSQL: calls go one after the other, the event loop never waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection

T = TypeVar("T")


class DatabaseAway(Exception):
    """Raised when PostgreSQL cannot be reached. The caller tries again later."""


class Database:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="link-database")

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Run in the database thread. Raises `DatabaseAway`."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _guarded, function, args)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, _close)
        self._thread.shutdown()


def _guarded(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    try:
        close_old_connections()
        return function(*args)
    except (OperationalError, InterfaceError) as error:
        connection.close()
        raise DatabaseAway(str(error).strip()) from error


def _close() -> None:
    """The thread's own connection, which no other thread may touch."""
    connection.close()
