"""A shard's parts that talk to Redis end whenever they are asked to."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from django.conf import settings

from scheduling.link.courier import Courier
from scheduling.link.shard import Shard
from scheduling.link.swarms import News


@pytest.mark.parametrize("part", ["courier", "swarms"])
def test_it_stops_at_whatever_step_of_its_start(part: str) -> None:
    """Between two of these steps a command has just been sent, which is where a cancellation was lost."""

    async def stopped_after(steps: int) -> None:
        made: Courier | News
        if part == "courier":
            made = Courier(Shard(cell_names=[], zone="borg", name="a"), settings.BORG_REDIS_URL)
        else:
            made = News(settings.BORG_REDIS_URL, lambda told: None)
        made.start()
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await made.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for steps in range(20):
            runner.run(stopped_after(steps))
