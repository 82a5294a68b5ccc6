"""Requests that wait for locks in one process: who looks when, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Coroutine
from typing import Any

import pytest

from scheduling.locks.locks import Held, Lock
from scheduling.locks.notices import LockKey, read
from scheduling.locks.waiting import LockWaits

KEY = LockKey(1, 2, "shop/leader")
NOW = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)


class Store:
    """One lock, and the requests that wait for it."""

    def __init__(self) -> None:
        self.sequence, self.holder, self.reads = 1, "", 0
        self.tries: list[str] = []
        self.waits = LockWaits(self.read)

    async def read(self, key: LockKey) -> Lock | None:
        self.reads += 1
        sequence = self.sequence
        await asyncio.sleep(0)
        return Lock(key.name, "", sequence, 0, None, None, 0.0, None, NOW, "ann") if sequence else None

    async def acquire(self, who: str, wait_s: float = 60.0) -> str:
        async def attempt() -> str:
            self.tries.append(who)
            await asyncio.sleep(0)
            if self.holder:
                raise Held(KEY.name, self.holder, 1000.0)
            self.holder = who
            return who

        return await self.waits.acquire(KEY, wait_s, attempt)

    def free(self) -> None:
        self.holder = ""
        self.waits.changed(KEY)


def running(story: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(main())


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_watchers_of_a_lock_share_one_read() -> None:
    async def story() -> None:
        store = Store()
        watchers = [asyncio.ensure_future(store.waits.watch(KEY, 1, 60.0)) for _ in range(50)]
        await settled()
        assert store.reads == 1
        store.waits.changed(KEY)  # a notice without a change
        await settled()
        assert store.reads == 2
        store.sequence = 2
        store.waits.changed(KEY)
        found = await asyncio.gather(*watchers)
        assert {lock.sequence for lock in found if lock is not None} == {2}
        assert store.reads == 3
        assert store.waits.waiting == 0

    running(story())


def test_a_change_during_a_read_is_not_missed() -> None:
    async def story() -> None:
        store = Store()
        watcher = asyncio.ensure_future(store.waits.watch(KEY, 1, 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert store.reads == 1, "the read has begun, and has the old number"
        store.sequence = 2
        store.waits.changed(KEY)
        lock = await watcher
        assert lock is not None
        assert lock.sequence == 2

    running(story())


def test_a_watch_ends_with_its_time_and_leaves_nothing() -> None:
    async def story() -> None:
        store = Store()
        lock = await store.waits.watch(KEY, 1, 0.01)
        assert lock is not None
        assert lock.sequence == 1
        store.sequence = 0
        assert await store.waits.watch(KEY, 0, 0.01) is None
        watcher = asyncio.ensure_future(store.waits.watch(KEY, 0, 60.0))
        await settled()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        assert store.waits.waiting == 0

    running(story())


def test_only_the_first_of_those_that_wait_tries() -> None:
    async def story() -> None:
        store = Store()
        store.holder = "old"
        waiting = []
        for who in ("a", "b", "c"):
            waiting.append(asyncio.ensure_future(store.acquire(who)))
            await settled()
        store.tries.clear()
        store.free()
        assert await waiting[0] == "a"
        await settled()
        assert store.tries == ["a", "b"], "b is the first now, and c does not try"
        waiting[1].cancel()
        await settled()
        store.tries.clear()
        store.free()
        assert await waiting[2] == "c"
        assert store.tries == ["c"]
        assert store.waits.waiting == 0

    running(story())


def test_a_request_that_waited_in_vain_gets_the_holder() -> None:
    async def story() -> None:
        store = Store()
        store.holder = "old"
        for wait_s in (0.0, 0.01):
            with pytest.raises(Held, match="held by old"):
                await store.acquire("a", wait_s)
        assert store.waits.waiting == 0

    running(story())


def test_notices_name_locks() -> None:
    assert read(b"1 2 shop/leader\n3 4 x") == [KEY, LockKey(3, 4, "x")]
    with pytest.raises(ValueError, match="unpack"):
        read(b"1 2")
