"""Tests of asyncio tasks that end with their owner, even if they swallow a cancellation."""

from __future__ import annotations

import asyncio

from scheduling.link.transport.owned_tasks import OwnedTasks


def test_a_task_that_swallows_its_cancellation_is_cancelled_again() -> None:
    lost = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if len(lost) == 2:
                    raise
                lost.append("a cancellation")

    async def owner() -> None:
        errands = OwnedTasks()
        errands.begin(stubborn())
        errands.begin(asyncio.sleep(0))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await errands.end()
            await errands.end()

    asyncio.run(owner())
    assert len(lost) == 2
