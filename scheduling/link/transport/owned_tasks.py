"""Tasks of an event loop that end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# A task that swallowed its cancellation is cancelled again after this time.
_AGAIN_S = 0.05


class OwnedTasks:
    """Tasks that end with their owner.

    Before Python 3.12, `asyncio.wait_for`, which redis-py uses, swallows a cancellation that arrives just as its work
    is done. A task in an endless loop then goes on. So `end` cancels again until all tasks have ended.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all tasks, without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Cancel all tasks until they have ended."""
        while self._tasks:
            self.cancel()
            await asyncio.wait(list(self._tasks), timeout=_AGAIN_S)
