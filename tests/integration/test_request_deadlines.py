"""Tests of the layer in front of Django: deadlines, a limit on requests, and answers to failures and overload."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import django.db
import pytest
from django.test import RequestFactory

from portal.database_time_limits import _until
from portal.http import request_deadlines
from portal.http.errors import broken
from portal.http.outages import Overloaded
from portal.http.request_deadlines import Front

Message = dict[str, Any]


class Client:
    """A client of one ASGI request. Its body comes in `parts` parts, each after `pause_s` seconds."""

    def __init__(self, path: str = "/api/v1/x/", *, kind: str = "http", parts: int = 1, pause_s: float = 0.0):
        self.scope = {"type": kind, "method": "GET", "path": path, "query_string": b"", "headers": []}
        self.sent: list[Message] = []
        self._parts, self._pause_s = parts, pause_s

    async def receive(self) -> Message:
        if self.scope["type"] == "websocket":
            return {"type": "websocket.connect"}
        if not self._parts:
            await asyncio.Event().wait()
        await asyncio.sleep(self._pause_s)
        self._parts -= 1
        return {"type": "http.request", "body": b"x", "more_body": self._parts > 0}

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def problem(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.sent[1]["body"])
        return told


Inner = Callable[[Message, Any, Any], Awaitable[None]]


def _front(inner: Inner, *, deadline_s: float = 30.0, most: int = 10) -> Front:
    return Front(http=inner, websocket=inner, lifespan=inner, deadline_s=deadline_s, most=most)


async def _raises(scope: Message, receive: Any, send: Any) -> None:
    raise django.db.OperationalError("the connection is lost")


def test_what_breaks_in_front_of_django_is_a_problem_document() -> None:
    client = Client()
    asyncio.run(_front(_raises)(client.scope, client.receive, client.send))
    assert (client.status, client.problem["code"]) == (503, "database-unavailable")
    assert client.headers["retry-after"] == "5"
    assert client.headers["content-type"] == "application/problem+json"


def test_people_get_a_page() -> None:
    client = Client("/jobs/")
    asyncio.run(_front(_raises)(client.scope, client.receive, client.send))
    assert client.status == 503
    assert client.headers["content-type"].startswith("text/html")
    assert b"Not available now" in client.sent[1]["body"]


@pytest.mark.parametrize("accepts", [True, False])
def test_a_websocket_is_closed_with_the_reason(accepts: bool) -> None:
    async def inner(scope: Message, receive: Any, send: Any) -> None:
        if accepts:
            await send({"type": "websocket.accept"})
        raise django.db.OperationalError("the connection is lost")

    client = Client("/live/x/", kind="websocket")
    asyncio.run(_front(inner)(client.scope, client.receive, client.send))
    assert [message["type"] for message in client.sent] == ["websocket.accept", "websocket.close"]
    assert (client.sent[1]["code"], client.sent[1]["reason"]) == (4503, "database-unavailable")


def test_a_request_past_its_deadline_is_answered_and_its_own_answer_dropped() -> None:
    ended: list[str] = []

    async def stubborn(scope: Message, receive: Any, send: Any) -> None:
        await receive()
        try:
            await asyncio.sleep(30.0)
        except asyncio.CancelledError:  # a thread also goes on after this
            await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended.append("later")

    async def scenario() -> None:
        client = Client()
        began = time.monotonic()
        await _front(stubborn, deadline_s=0.1)(client.scope, client.receive, client.send)
        assert 0.1 < time.monotonic() - began < 0.1 + request_deadlines.GRACE_S + 10.0
        assert (client.status, client.problem["code"]) == (503, "deadline-exceeded")
        assert client.headers["retry-after"]
        async with asyncio.timeout(10.0):
            while not ended:
                await asyncio.sleep(0.01)
        assert len(client.sent) == 2

    asyncio.run(scenario())


def test_the_deadline_begins_when_the_body_has_been_read() -> None:
    async def inner(scope: Message, receive: Any, send: Any) -> None:
        assert _until.get() is None
        while (await receive())["more_body"]:
            pass
        until = _until.get()
        assert until is not None
        assert until > time.monotonic()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = Client(parts=4, pause_s=0.1)
    asyncio.run(_front(inner, deadline_s=0.3)(client.scope, client.receive, client.send))
    assert client.status == 200


def test_requests_under_way_are_bounded_but_liveness_is_not() -> None:
    async def scenario() -> None:
        goes_on = asyncio.Event()

        async def waits(scope: Message, receive: Any, send: Any) -> None:
            await goes_on.wait()

        app, first, second, alive = _front(waits, most=1), Client(), Client(), Client("/healthz")
        ready = Client("/readyz")
        polls = [Client("/bns/cc/ubar/jfoo") for _ in range(5)]
        for poll in polls:
            poll.scope["query_string"] = b"after=1&wait_s=60"
        held = [asyncio.ensure_future(app(each.scope, each.receive, each.send)) for each in [*polls, first]]
        await asyncio.sleep(0)
        await app(second.scope, second.receive, second.send)
        assert (second.status, second.problem["code"]) == (503, "overloaded")
        await app(alive.scope, alive.receive, alive.send)
        assert alive.status == 200
        held.append(asyncio.ensure_future(app(ready.scope, ready.receive, ready.send)))
        await asyncio.sleep(0)
        assert not ready.sent
        assert not any(poll.sent for poll in polls)
        goes_on.set()
        await asyncio.gather(*held)

    asyncio.run(scenario())


def _broken(error: Exception, path: str) -> Any:
    try:
        raise error
    except Exception:  # noqa: BLE001 - Django does the same
        assert sys.exc_info()[1] is error
        return broken(RequestFactory().get(path))


def test_a_fault_of_ours_is_a_problem_document_for_programs_and_a_page_for_people() -> None:
    program, person = _broken(ZeroDivisionError(), "/api/v1/x/"), _broken(ZeroDivisionError(), "/jobs/")
    assert (program.status_code, json.loads(program.content)["code"]) == (500, "internal-error")
    assert person.status_code == 500
    assert b"Something went wrong" in person.content


def test_an_overload_says_what_to_do() -> None:
    answer = _broken(Overloaded("The password could not be checked."), "/api/v1/login/")
    assert (answer.status_code, json.loads(answer.content)["code"]) == (503, "overloaded")
    assert answer["Retry-After"]
