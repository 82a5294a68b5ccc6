"""Tests of stopping the parts of a shard that use Redis, at any moment."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis.asyncio
import uvloop
from django.conf import settings

from scheduling.journal import wakeups
from scheduling.link.packages.swarms import SwarmExchange
from scheduling.link.shard.redis_bridge import RedisBridge
from scheduling.link.shard.shard import Shard
from scheduling.machines import last_contact


def test_a_machine_that_was_without_a_shard_for_long_is_heard_of_by_its_hello_alone() -> None:
    """After the death of its shard, a machine's hello alone counts as contact. Otherwise a hello does not count."""
    cell, orphan, mover = 987_654, 1, 2
    keys = (last_contact.key("contact", cell), last_contact.key("shards", cell), last_contact.key("holder", cell))

    async def beat(shard: str, ages: dict[int, float], held: set[int]) -> float:
        connection = redis.asyncio.Redis.from_url(settings.BORG_REDIS_URL)
        try:
            return await last_contact.beat(connection, shard, [cell], {cell: ages}, {cell: held})
        finally:
            await connection.aclose()

    asyncio.run(beat("dead", {orphan: 50.0}, {orphan}))
    asyncio.run(beat("alive", {mover: 50.0}, {mover}))
    wakeups.client().zadd(last_contact.key("shards", cell), {"dead": time.time() - 40})
    at = asyncio.run(beat("new", {}, {orphan, mover}))
    last = last_contact.read(cell).last
    wakeups.client().delete(*keys)
    assert last[orphan] == pytest.approx(at)
    assert last[mover] < at - 45


@pytest.mark.parametrize("part", ["courier", "swarms"])
def test_it_stops_at_whatever_step_of_its_start(part: str) -> None:
    """A part of a shard stops in 10 s at each step of its start. A cancellation was once lost between two steps."""

    async def stopped_after(steps: int) -> None:
        made: RedisBridge | SwarmExchange
        if part == "courier":
            made = RedisBridge(Shard(cell_names=[], zone="borg", name="a"), settings.BORG_REDIS_URL)
        else:
            made = SwarmExchange(settings.BORG_REDIS_URL, lambda told: None)
        made.start()
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            await made.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for steps in range(20):
            runner.run(stopped_after(steps))
