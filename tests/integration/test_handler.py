"""Tests of the threads that answer requests: each request uses one thread, and waits for it for a bounded time."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from portal.http import handler
from portal.http.handler import ThreadedHandler, rank_of
from portal.http.outages import Overloaded
from portal.http.thread_pools import Queues, Rank, Threads

ANSWER: Any = ({"type": "http.response.start", "status": 200, "headers": []}, b"")


def test_a_request_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def work() -> Any:
        go_on.wait(20)
        return ANSWER

    async def ask() -> None:
        threads = Threads("reads", 1, longest_wait_s=0.1, queues=Queues(most=1))
        first = asyncio.create_task(threads.run(work))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(threads.run(work))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 requests wait"):  # the queue is full
            await threads.run(work)
        with pytest.raises(Overloaded, match="All threads of this process for reads are busy"):
            await second
        go_on.set()
        assert await first == ANSWER
        assert await threads.run(work) == ANSWER

    asyncio.run(ask())


def test_the_thread_of_a_cancelled_request_is_used_again_when_its_work_has_ended() -> None:
    go_on = threading.Event()

    def work() -> Any:
        go_on.wait(20)
        return ANSWER

    async def ask() -> None:
        threads = Threads("writes", 1, longest_wait_s=5.0)
        first = asyncio.create_task(threads.run(work))
        await asyncio.sleep(0.05)
        first.cancel()
        second = asyncio.create_task(threads.run(lambda: ANSWER))
        await asyncio.sleep(0.05)
        assert not second.done(), "its thread is still at work"
        go_on.set()
        assert await second == ANSWER

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("GET", "/jobs/", "reads"),
        ("HEAD", "/api/v1/cells/", "reads"),
        ("POST", "/api/v1/cells/dev/jobs/", "writes"),
        ("DELETE", "/api/v1/tokens/ab/", "writes"),
        ("POST", "/api/v1/cells/dev/jobs:bulk", "bulk submissions"),
        ("PUT", "/api/v1/cells/dev/packages/t/p/v1/", "long requests"),
        ("GET", "/api/v1/feeds/prometheus/", "long requests"),
        ("GET", "/api/v1/cells/dev/jobs/t/j/logs/", "long requests"),
        ("GET", "/metrics", "long requests"),
        ("GET", "/cells/dev/", "reads"),
        ("GET", "/cells/dev/at/", "long requests"),
        ("GET", "/admin/moments/", "long requests"),
        ("GET", "/api/v1/cells/dev/checkpoints:moment", "long requests"),
    ],
)
def test_each_kind_of_request_has_its_own_threads(method: str, path: str, kind: str) -> None:
    threads = ThreadedHandler(deadline_s=50, most_bytes=1_000)._threads({"method": method, "path": path})
    assert threads.name == kind


@pytest.mark.parametrize(
    ("method", "path", "rank"),
    [
        ("GET", "/readyz", Rank.HEALTH),
        ("GET", "/metrics", Rank.HEALTH),
        ("POST", "/readyz", Rank.API_WRITE),
        ("POST", "/metrics", Rank.API_WRITE),
        ("POST", "/api/v1/cells/dev/jobs/t/j/kill/", Rank.API_WRITE),
        ("POST", "/api/v1/cells/dev/jobs/", Rank.SUBMISSION),
        ("POST", "/api/v1/cells/dev/jobs:bulk", Rank.SUBMISSION),
        ("POST", "/submit/", Rank.PAGE_WRITE),
        ("GET", "/api/v1/cells/dev/jobs/", Rank.API_READ),
        ("GET", "/bns/dev/t/j", Rank.API_READ),
        ("POST", "/api/v1/cells/dev/sql/", Rank.API_READ),
        ("POST", "/api/v1/cells/dev/jobs/t/j/plan/", Rank.API_READ),
        ("POST", "/v3/discovery:endpoints", Rank.API_READ),
        ("GET", "/jobs/", Rank.PAGE_READ),
    ],
)
def test_each_request_has_its_kind(method: str, path: str, rank: Rank) -> None:
    assert rank_of({"method": method, "path": path, "headers": []}) is rank


@pytest.mark.parametrize("header", [(b"content-length", b"1"), (b"transfer-encoding", b"chunked")])
def test_a_request_with_a_body_is_not_a_check_of_health(header: tuple[bytes, bytes]) -> None:
    """The limit on requests at the same time does not apply to checks, and a body may take long to arrive."""
    scope = {"method": "GET", "path": "/readyz", "headers": [header]}
    assert rank_of(scope) is Rank.API_READ
    assert rank_of({**scope, "headers": [(b"content-length", b"0")]}) is Rank.HEALTH


@pytest.mark.django_db
def test_the_whole_request_runs_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Middleware, view and request signals run in one thread, because connections to PostgreSQL belong to threads."""
    seen: list[str] = []

    def note(*_: Any, **__: Any) -> None:
        seen.append(threading.current_thread().name)

    for signal in (handler.signals.request_started, handler.signals.request_finished):
        signal.connect(note, weak=False)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/api/v1/nowhere/", "query_string": b"", "headers": []}
    try:
        asyncio.run(ThreadedHandler(deadline_s=50, most_bytes=1_000)(scope, receive, send))
    finally:
        for signal in (handler.signals.request_started, handler.signals.request_finished):
            signal.disconnect(note)
    assert len(set(seen)) == 1
    assert seen[0].startswith("reads")
    assert (sent[0]["status"], len(sent)) == (404, 2)
    assert b'"not-found"' in sent[1]["body"]
