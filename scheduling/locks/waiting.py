"""Requests that wait for locks in one process: for a lock that is held, or for a change of a lock.

    notice ─► changed(key) ─► watchers of the lock read it, all with one query
                           └► the first request that waits to acquire it tries; the others wait behind it

Use this in one asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from scheduling.locks.lock_rules import MOST_WAIT_S
from scheduling.locks.locks import Held, Lock
from scheduling.locks.notices import LockKey

T = TypeVar("T")

# Each waiting request looks again after this time, because a notice may be lost.
LOOK_AGAIN_S = 5.0
# A lease has ended for PostgreSQL when this time has passed after its end.
_AFTER_LEASE_S = 0.01


class LockWaits:
    """All requests of a process that wait for locks. `read` returns a lock from PostgreSQL, or None."""

    def __init__(self, read: Callable[[LockKey], Awaitable[Lock | None]]) -> None:
        self._read = read
        self._watching: dict[LockKey, set[asyncio.Event]] = defaultdict(set)
        self._reads: dict[LockKey, asyncio.Task[Lock | None]] = {}
        self._queues: dict[LockKey, deque[asyncio.Event]] = defaultdict(deque)

    @property
    def waiting(self) -> int:
        """Return the number of locks for which requests wait."""
        return len(self._watching) + len(self._queues)

    def changed(self, key: LockKey) -> None:
        """Let the requests look again that wait for this lock."""
        self._reads.pop(key, None)  # a read that has begun may not see the change
        for event in self._watching.get(key, ()):
            event.set()
        if key in self._queues:
            self._queues[key][0].set()

    def all_changed(self) -> None:
        """Let all waiting requests look again, because notices may be lost."""
        for key in {*self._watching, *self._queues}:
            self.changed(key)

    async def watch(self, key: LockKey, after: int, wait_s: float) -> Lock | None:
        """Return the lock as soon as its sequence number is not `after`, or after `wait_s` seconds. Return None if
        there is no such lock; with `after` 0, wait until it exists.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, MOST_WAIT_S)
        event = asyncio.Event()
        self._watching[key].add(event)
        try:
            while True:
                event.clear()
                found = await self._shared_read(key)
                left_s = deadline - loop.time()
                sequence = found.sequence if found is not None else 0
                if sequence != after or left_s <= 0:
                    return found
                await _until(event, min(left_s, LOOK_AGAIN_S))
        finally:
            self._watching[key].discard(event)
            if not self._watching[key]:
                del self._watching[key]

    async def _shared_read(self, key: LockKey) -> Lock | None:
        running = self._reads.get(key)
        if running is None:
            running = self._reads[key] = asyncio.ensure_future(self._read(key))
            running.add_done_callback(lambda done: self._read_done(key, done))
        return await asyncio.shield(running)

    def _read_done(self, key: LockKey, done: asyncio.Future[Lock | None]) -> None:
        if self._reads.get(key) is done:
            del self._reads[key]
        if not done.cancelled():
            done.exception()  # a request that has ended meanwhile does not read it

    async def acquire(self, key: LockKey, wait_s: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `attempt` as soon as it does not raise `Held`. Raises `Held` after `wait_s` seconds.

        Each request tries once at first, because its session may hold the lock. Of those that wait, only one in this
        process tries, in the order in which they came.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait_s, MOST_WAIT_S)
        try:
            return await attempt()
        except Held:
            if wait_s <= 0:
                raise
        mine = asyncio.Event()
        queue = self._queues[key]
        queue.append(mine)
        try:
            return await self._try_in_turn(queue, mine, deadline, attempt)
        finally:
            queue.remove(mine)
            if queue:
                queue[0].set()
            elif self._queues.get(key) is queue:
                del self._queues[key]

    async def _try_in_turn(
        self, queue: deque[asyncio.Event], mine: asyncio.Event, deadline: float, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        loop = asyncio.get_running_loop()
        while queue[0] is not mine and (left_s := deadline - loop.time()) > 0:
            mine.clear()
            await _until(mine, left_s)
        while True:
            mine.clear()
            try:
                return await attempt()
            except Held as held:
                left_s = deadline - loop.time()
                if left_s <= 0:
                    raise
                await _until(mine, min(left_s, held.left_s + _AFTER_LEASE_S, LOOK_AGAIN_S))


async def _until(event: asyncio.Event, within_s: float) -> None:
    """Wait until an event is set, at most `within_s` seconds."""
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        return
