"""A set of asyncio tasks that belong to one object and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# A task that swallowed its cancellation is cancelled again after this time.
_AGAIN_S = 0.05


class OwnedTasks:
    """A set of asyncio tasks. The object that starts them calls `end` when it stops.

    `end` cancels each task repeatedly, because `asyncio.wait_for` can ignore a cancellation before Python 3.12.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that runs the coroutine `work`."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        while self._tasks:
            self.cancel()
            await asyncio.wait(list(self._tasks), timeout=_AGAIN_S)
