"""Pools of threads that answer requests, and the requests that wait for a thread.

    request ─► a thread of its pool is free? ─ yes ─────────────────────────► work ─► answer
                       │ no                                                     ▲
                       ▼                     a thread becomes free: the most    │
               the queue of its pool ─────── important request, oldest first ────┘
                  │ the process has MOST_WAITING requests in its queues: the least important one gets 503
                  └ a request waited too long: 503

A burst may wait for long. If a queue has not been empty for `PATIENCE_S`, more requests may arrive than the process can
answer, and a long wait would only make every answer late. From then on, a request waits at most `SHORT_WAIT_S` if the
queue has more than `CALM` requests per thread. A shorter queue is not overload: a few clients that wait for slow
answers have one.

Checks of health come first, so that overload does not look like a failure. Everybody may send them, so they take at
most half of the threads of a pool, at most `MOST_CHECKS` of them wait in a pool, and they displace no other request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Any

from portal.http.metrics import rejected_requests
from portal.http.outages import Overloaded

MOST_WAITING = 200
MOST_CHECKS = 4
PATIENCE_S, SHORT_WAIT_S, CALM = 1.0, 0.3, 3
_SWEEP_EVERY_S = 0.1

Answer = tuple[dict[str, Any], bytes]


class Rank(IntEnum):
    """The kinds of requests. The most important kind is first, and the last kind is rejected first.

    `API_WRITE`: changes of what runs, such as kills and drains. `SUBMISSION`: new work.
    """

    HEALTH = 0
    API_WRITE = 1
    SUBMISSION = 2
    PAGE_WRITE = 3
    API_READ = 4
    PAGE_READ = 5

    @property
    def label(self) -> str:
        """Return the name of the kind in metrics, such as `api-write`."""
        return self.name.lower().replace("_", "-")


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that waits for a thread. `since`: the time of its arrival, in seconds. `turn`: is set when the request
    has a thread, or gets the error `Overloaded`.
    """

    rank: Rank
    since: float
    turn: asyncio.Future[None]


class Queue:
    """The requests that wait for a thread of one pool. All times are seconds of one monotonic clock.

    `threads`: the number of threads of the pool. `longest_wait_s`: how long a request may wait in a burst. Requests of
    the kind `HEALTH` may wait without a limit, and do not count in the length of the queue.
    """

    def __init__(self, threads: int, longest_wait_s: float) -> None:
        self._calm = CALM * threads
        self._longest_wait_s = longest_wait_s
        self._tickets: dict[Rank, deque[Ticket]] = {rank: deque() for rank in Rank}
        self._number = 0
        self._since = 0.0

    def __len__(self) -> int:
        return self._number

    def add(self, ticket: Ticket) -> None:
        self._tickets[ticket.rank].append(ticket)
        if ticket.rank is Rank.HEALTH:
            return
        if not self._number:
            self._since = ticket.since
        self._number += 1

    def remove(self, ticket: Ticket) -> None:
        """Remove a ticket. Nothing happens if the ticket is not in the queue."""
        if ticket in self._tickets[ticket.rank]:
            self._tickets[ticket.rank].remove(ticket)
            self._number -= ticket.rank is not Rank.HEALTH

    @property
    def checks(self) -> int:
        """Return how many checks of health wait."""
        return len(self._tickets[Rank.HEALTH])

    def first(self, *, checks: bool) -> Ticket | None:
        """Return the oldest ticket of the most important kind, or None if nothing waits. `checks`: whether it may be a
        check of health.
        """
        kinds = (tickets for rank, tickets in self._tickets.items() if checks or rank is not Rank.HEALTH)
        return next((tickets[0] for tickets in kinds if tickets), None)

    def last(self) -> Ticket | None:
        """Return the newest ticket of the least important kind, or None if nothing but checks of health waits."""
        kinds = (tickets for rank, tickets in reversed(self._tickets.items()) if rank is not Rank.HEALTH)
        return next((tickets[-1] for tickets in kinds if tickets), None)

    def expired(self, now: float) -> list[Ticket]:
        """Return the tickets that have waited too long, the least important first, and the oldest first of a kind."""
        kinds = (tickets for rank, tickets in reversed(self._tickets.items()) if rank is not Rank.HEALTH)
        waiting = list(chain.from_iterable(kinds))
        expired = [ticket for ticket in waiting if now - ticket.since > self._longest_wait_s]
        if now - self._since < PATIENCE_S or self._number - len(expired) <= self._calm:
            return expired
        late = [ticket for ticket in waiting if SHORT_WAIT_S < now - ticket.since <= self._longest_wait_s]
        return expired + late[: self._number - len(expired) - self._calm]


class Queues:
    """The queues of all pools of a process. They have at most `most` requests in total. Its methods may be called only
    in the event loop.
    """

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._pools: list[Threads] = []
        self._sweeping = False

    def add_pool(self, pool: Threads) -> None:
        self._pools.append(pool)

    def make_space(self, rank: Rank, busy: Threads) -> None:
        """Check that one more request of this kind may wait. If the queues are full, the least important request gets
        the error `Overloaded`, and if this is the new one, the method raises it. Checks of health have a bound of their
        own (`MOST_CHECKS`).
        """
        if rank is Rank.HEALTH:
            if busy.queue.checks >= MOST_CHECKS:
                raise busy.overloaded(rank, "queue-full")
            return
        if self._waiting() < self._most:
            return
        found = [(pool, last) for pool in self._pools if (last := pool.queue.last()) is not None]
        pool, last = max(found, key=lambda pair: (pair[1].rank, pair[1].since))
        if last.rank <= rank:
            raise busy.overloaded(rank, "queue-full")
        pool.reject([last], "displaced")

    def sweep(self) -> None:
        """Begin to reject requests that have waited too long, every 0.1 s until no request waits."""
        if not self._sweeping:
            self._sweeping = True
            asyncio.get_running_loop().call_later(_SWEEP_EVERY_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        now = asyncio.get_running_loop().time()
        for pool in self._pools:
            pool.reject(pool.queue.expired(now), "waited-too-long")
        if self._waiting():
            self.sweep()

    def _waiting(self) -> int:
        return sum(len(pool.queue) for pool in self._pools)


class Threads:
    """A pool of `number` threads for requests of one kind. Its methods may be called only in the event loop."""

    def __init__(self, name: str, number: int, *, longest_wait_s: float, queues: Queues | None = None) -> None:
        self.name = name
        self.queue = Queue(number, longest_wait_s)
        self._free = number
        self._checks_left = max(1, number // 2)  # how many more checks of health may run
        self._queues = queues or Queues()
        self._queues.add_pool(self)
        self._executor = ThreadPoolExecutor(number, thread_name_prefix=name)

    async def run(self, work: Callable[[], Answer], rank: Rank = Rank.API_READ) -> Answer:
        """Run `work` in a thread and return its result. Raises `Overloaded` if no thread becomes free in time."""
        if self._free and (self._checks_left or rank is not Rank.HEALTH):
            self._free -= 1
            self._checks_left -= rank is Rank.HEALTH
        else:
            await self._wait(rank)
        loop = asyncio.get_running_loop()

        def ended(_: Future[Answer]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._pass_on, rank)

        # The thread of a cancelled request still works, so the place is free only when the thread has ended.
        running = self._executor.submit(copy_context().run, work)
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    async def _wait(self, rank: Rank) -> None:
        """Wait until a thread is free for this request."""
        self._queues.make_space(rank, self)
        loop = asyncio.get_running_loop()
        ticket = Ticket(rank, loop.time(), loop.create_future())
        self.queue.add(ticket)
        self._queues.sweep()
        try:
            await ticket.turn
        except asyncio.CancelledError:
            self.queue.remove(ticket)
            if ticket.turn.done() and not ticket.turn.cancelled() and ticket.turn.exception() is None:
                self._pass_on(rank)  # the request had just got its thread
            raise

    def _pass_on(self, rank: Rank) -> None:
        """Give a thread that has become free to the next request. `rank`: the kind of the request that had it."""
        self._checks_left += rank is Rank.HEALTH
        self.reject(self.queue.expired(asyncio.get_running_loop().time()), "waited-too-long")
        while (ticket := self.queue.first(checks=self._checks_left > 0)) is not None:
            self.queue.remove(ticket)
            if not ticket.turn.done():
                self._checks_left -= ticket.rank is Rank.HEALTH
                ticket.turn.set_result(None)
                return
        self._free += 1

    def reject(self, tickets: Iterable[Ticket], reason: str) -> None:
        """Answer waiting requests with the error `Overloaded`. `reason`: for the metrics."""
        for ticket in tickets:
            error = self.overloaded(ticket.rank, reason)
            self.queue.remove(ticket)
            if not ticket.turn.done():
                ticket.turn.set_exception(error)

    def overloaded(self, rank: Rank, reason: str) -> Overloaded:
        """Count a rejected request, and return its error. `reason`: for the metrics."""
        rejected_requests.labels(reason, rank.label).inc()
        return Overloaded(
            f"All threads of this process for {self.name} are busy, and {len(self.queue)} requests wait for them."
        )
