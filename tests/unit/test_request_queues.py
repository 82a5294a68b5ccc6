"""Tests of the order in which requests get a thread, and of the order in which they are rejected under overload."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from prometheus_client import REGISTRY

from portal.http.outages import Overloaded
from portal.http.thread_pools import CALM, MOST_CHECKS, PATIENCE_S, SHORT_WAIT_S, Queue, Queues, Rank, Threads, Ticket

ANSWER: Any = ({"type": "http.response.start", "status": 200, "headers": []}, b"")
LONG_S = 10.0


class Pools:
    """Two pools of one thread each, whose threads are busy until `release()` is called. `order`: the requests in the
    order in which they got a thread.
    """

    def __init__(self, most: int) -> None:
        queues = Queues(most)
        self.reads = Threads("reads", 1, longest_wait_s=LONG_S, queues=queues)
        self.writes = Threads("writes", 1, longest_wait_s=LONG_S, queues=queues)
        self.order: list[str] = []
        self._go_on = threading.Event()

    async def __aenter__(self) -> Pools:
        self._busy = [asyncio.create_task(pool.run(self._block)) for pool in (self.reads, self.writes)]
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await asyncio.gather(*self._busy)

    def release(self) -> None:
        self._go_on.set()

    async def ask(self, name: str, pool: Threads, rank: Rank) -> asyncio.Task[Any]:
        def work() -> Any:
            self.order.append(name)
            return ANSWER

        task = asyncio.create_task(pool.run(work, rank))
        await asyncio.sleep(0)
        return task

    def _block(self) -> Any:
        self._go_on.wait(20)
        return ANSWER


def scenario(most: int, steps: Callable[[Pools], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Pools(most) as pools:
            await steps(pools)

    asyncio.run(run())


async def errors_of(tasks: Sequence[asyncio.Task[Any]]) -> list[bool]:
    """Return which tasks ended with `Overloaded`."""
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result == ANSWER or isinstance(result, Overloaded) for result in results), results
    return [isinstance(result, Overloaded) for result in results]


def rejections(reason: str, kind: str) -> float:
    labels = {"reason": reason, "kind": kind}
    return REGISTRY.get_sample_value("borg_requests_rejected_total", labels) or 0.0


def test_a_free_thread_goes_to_the_api_before_pages_and_to_the_oldest_request() -> None:
    async def steps(pools: Pools) -> None:
        asked = [
            await pools.ask(name, pools.reads, rank)
            for name, rank in (
                ("page", Rank.PAGE_READ),
                ("api 1", Rank.API_READ),
                ("api 2", Rank.API_READ),
                ("health", Rank.HEALTH),
            )
        ]
        pools.release()
        assert await errors_of(asked) == [False] * 4
        assert pools.order == ["health", "api 1", "api 2", "page"]

    scenario(10, steps)


def test_full_queues_reject_pages_before_the_api_and_reads_before_writes() -> None:
    async def steps(pools: Pools) -> None:
        before = rejections("displaced", "page-read")
        page = await pools.ask("page", pools.reads, Rank.PAGE_READ)
        read = await pools.ask("read", pools.reads, Rank.API_READ)
        form = await pools.ask("form", pools.writes, Rank.PAGE_WRITE)
        first = await pools.ask("first", pools.writes, Rank.API_WRITE)
        await asyncio.sleep(0)
        assert page.done()
        assert not read.done()
        second = await pools.ask("second", pools.writes, Rank.API_WRITE)
        await asyncio.sleep(0)
        assert read.done()
        assert not form.done()
        third = await pools.ask("third", pools.writes, Rank.API_WRITE)
        fourth = await pools.ask("fourth", pools.writes, Rank.API_WRITE)
        late_read = await pools.ask("late read", pools.reads, Rank.API_READ)
        pools.release()
        ended = await errors_of([page, read, form, first, second, third, fourth, late_read])
        assert ended == [True, True, True, False, False, False, True, True]
        assert rejections("displaced", "page-read") == before + 1

    scenario(3, steps)


def test_the_newest_of_the_least_important_requests_is_rejected() -> None:
    async def steps(pools: Pools) -> None:
        asked = [await pools.ask(f"page {n}", pools.reads, Rank.PAGE_READ) for n in range(2)]
        asked.append(await pools.ask("write", pools.writes, Rank.API_WRITE))
        pools.release()
        assert await errors_of(asked) == [False, True, False]

    scenario(2, steps)


def test_new_work_is_rejected_before_changes_of_what_runs() -> None:
    async def steps(pools: Pools) -> None:
        submission = await pools.ask("submission", pools.writes, Rank.SUBMISSION)
        kill = await pools.ask("kill", pools.writes, Rank.API_WRITE)
        pools.release()
        assert await errors_of([submission, kill]) == [True, False]

    scenario(1, steps)


def test_many_checks_of_health_displace_no_other_request() -> None:
    """Checks wait also if the queues are full, but only a few of them."""

    async def steps(pools: Pools) -> None:
        page = await pools.ask("page", pools.reads, Rank.PAGE_READ)
        checks = [await pools.ask("health", pools.reads, Rank.HEALTH) for _ in range(300)]
        other = await pools.ask("other health", pools.writes, Rank.HEALTH)
        late_page = await pools.ask("late page", pools.reads, Rank.PAGE_READ)
        kill = await pools.ask("kill", pools.writes, Rank.API_WRITE)
        pools.release()
        assert await errors_of([page, other, late_page, kill]) == [True, False, True, False]
        assert await errors_of(checks) == [False] * MOST_CHECKS + [True] * (300 - MOST_CHECKS)

    scenario(1, steps)


def test_checks_of_health_take_at_most_half_of_the_threads() -> None:
    async def run() -> None:
        go_on, order = threading.Event(), []

        def work(name: str) -> Callable[[], Any]:
            def note() -> Any:
                order.append(name)
                go_on.wait(20)
                return ANSWER

            return note

        pool = Threads("long requests", 4, longest_wait_s=LONG_S)
        checks = [asyncio.create_task(pool.run(work(f"health {n}"), Rank.HEALTH)) for n in range(4)]
        await asyncio.sleep(0)
        checks[3].cancel()
        reads = [asyncio.create_task(pool.run(work(f"read {n}"), Rank.API_READ)) for n in range(3)]
        await asyncio.sleep(0)
        assert (pool.queue.checks, len(pool.queue)) == (1, 1)
        go_on.set()
        assert await errors_of([*checks[:3], *reads]) == [False] * 6
        assert order[:4] == ["health 0", "health 1", "read 0", "read 1"]
        assert set(order[4:]) == {"health 2", "read 2"}
        assert (pool._free, pool._checks_left) == (4, 2)

    asyncio.run(run())


def test_a_cancelled_request_takes_no_thread() -> None:
    async def steps(pools: Pools) -> None:
        gone = await pools.ask("gone", pools.reads, Rank.API_READ)
        stays = await pools.ask("stays", pools.reads, Rank.API_READ)
        gone.cancel()
        await asyncio.sleep(0)
        assert len(pools.reads.queue) == 1
        pools.release()
        assert await errors_of([stays]) == [False]
        assert pools.order == ["stays"]

    scenario(10, steps)


def test_the_thread_of_a_request_that_was_just_cancelled_goes_to_the_next() -> None:
    async def steps(pools: Pools) -> None:
        gone = await pools.ask("gone", pools.reads, Rank.API_READ)
        stays = await pools.ask("stays", pools.reads, Rank.API_READ)
        pools.reads._pass_on(Rank.API_READ)
        gone.cancel()  # it has its thread, but has not run since
        await asyncio.sleep(0.01)
        assert len(pools.reads.queue) == 0
        pools.release()
        assert await errors_of([stays]) == [False]
        assert pools.order == ["stays"]

    scenario(10, steps)


def queue_of(tickets: list[Ticket]) -> Queue:
    queue = Queue(1, LONG_S)
    for ticket in tickets:
        queue.add(ticket)
    return queue


@pytest.fixture
def ticket() -> Iterator[Callable[[Rank, float], Ticket]]:
    loop = asyncio.new_event_loop()
    yield lambda rank, since: Ticket(rank, since, loop.create_future())
    loop.close()


def test_a_burst_may_wait_for_long_but_a_standing_queue_may_not(ticket: Callable[[Rank, float], Ticket]) -> None:
    reads = [ticket(Rank.API_READ, number / 100) for number in range(CALM + 2)]
    page, health = ticket(Rank.PAGE_READ, 0.5), ticket(Rank.HEALTH, 0.0)
    queue = queue_of([*reads, page, health])
    assert queue.expired(PATIENCE_S - 0.01) == []
    # The least important one goes first, and `CALM` per thread stay.
    assert queue.expired(PATIENCE_S) == [page, *reads[:2]]
    for each in (*reads, page, health):
        queue.remove(each)
    queue.add(ticket(Rank.API_READ, 100.0))
    assert queue.expired(100.0 + PATIENCE_S / 2) == []


def test_a_standing_queue_rejects_only_requests_that_have_waited(ticket: Callable[[Rank, float], Ticket]) -> None:
    old, new = ticket(Rank.API_READ, 0.0), [ticket(Rank.API_READ, PATIENCE_S) for _ in range(2 * CALM)]
    queue = queue_of([old, *new])
    assert queue.expired(PATIENCE_S + SHORT_WAIT_S / 2) == [old]


def test_a_few_slow_clients_are_not_an_overload(ticket: Callable[[Rank, float], Ticket]) -> None:
    few = [ticket(Rank.PAGE_READ, float(number)) for number in range(CALM)]
    queue = queue_of(few)
    assert queue.expired(LONG_S) == []
    assert queue.expired(LONG_S + 0.5) == few[:1]


def test_hints_differ_so_that_clients_do_not_return_together() -> None:
    outages = [Overloaded("All threads are busy.").outage for _ in range(200)]
    hints = {outage.retry_after_s for outage in outages}
    assert len(hints) > 3
    assert min(hints) >= 1
    assert all(f"Try again in {outage.retry_after_s} seconds." in outage.detail for outage in outages)


@pytest.mark.parametrize("rank", list(Rank))
def test_kinds_of_requests_have_names_in_metrics(rank: Rank) -> None:
    assert rank.label in {"health", "api-write", "submission", "page-write", "api-read", "page-read"}
