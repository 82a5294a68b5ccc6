"""Tasks of an event loop that end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# A task that swallowed its cancellation is cancelled again after this time.
_AGAIN_S = 0.05


class OwnedTasks:
    """Tasks that end with their owner. Before Python 3.12 `asyncio.wait_for`, with which redis-py sends, swallows a
    cancellation that comes just as its work is done, and what goes on for ever goes on. So `end` cancels until all
    have ended.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        while pending := {task for task in self._tasks if not task.done()}:
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=_AGAIN_S)
