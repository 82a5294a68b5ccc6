"""A thread that calls PostgreSQL, so that the event loop is never blocked. It runs one call at a time."""

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
    """A thread with its own connection to PostgreSQL."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function in the thread and return its result. Raises `DatabaseAway` if PostgreSQL cannot be reached."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _guarded, function, args)

    async def close(self) -> None:
        """Close the thread's connection, and end the thread."""
        # `connection` stands for the connection of the thread that uses it, so a lambda, and not `connection.close`.
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: connection.close())
        self._thread.shutdown()


def _guarded(function: Callable[..., T], args: tuple[Any, ...]) -> T:
    try:
        close_old_connections()
        return function(*args)
    except (OperationalError, InterfaceError) as error:
        connection.close()
        raise DatabaseAway(str(error).strip()) from error
