"""Tests of the limits on the rate of requests: per token, tenant and address, for all processes together."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from django.conf import settings
from django.test import Client
from prometheus_client import REGISTRY

from portal.http import request_deadlines
from portal.http.rate_limits import RequestRates
from portal.http.request_deadlines import Front
from quota import clock
from quota.models import Tenant
from quota.tenancy.tokens import token_issue
from quota.vocabulary.permissions import Scope, system
from serving import shared_buckets
from serving.buckets import WINDOW_S, Rate
from serving.shared_buckets import SharedBuckets
from tests.integration import portal_server
from tests.integration.world import a_user

Message = dict[str, Any]
FAR = "198.51.100.7"
NOWHERE = "redis://127.0.0.1:1/0"


def scope(path: str = "/api/v1/cells/", *, token: str = "", address: str = FAR, **headers: str) -> Message:
    if token:
        headers["authorization"] = f"Bearer {token}"
    pairs = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": pairs,
        "client": (address, 1234),
    }


class Portal:
    """Some web processes that share Redis: the front of each, before a Django that answers 200 at once.

    By default, there is one process, Redis does not answer, and the time stands still.
    """

    def __init__(
        self, number: int = 1, *, url: str = NOWHERE, clock: Callable[[], float] = lambda: 100.0, **limits: int
    ) -> None:
        self._buckets = [SharedBuckets(url, clock) for _ in range(number)]
        given = {"token": 0, "tenant": 0, "address": 0} | limits
        self.fronts = [
            Front(
                http=_answer, websocket=_answer, lifespan=_answer, deadline_s=30.0, rates=RequestRates(buckets, **given)
            )
            for buckets in self._buckets
        ]

    async def __aenter__(self) -> Portal:
        return self

    async def __aexit__(self, *_: object) -> None:
        for buckets in self._buckets:
            await buckets.close()

    async def exchanged(self) -> None:
        """Wait until each process has exchanged its buckets with Redis."""
        for buckets in self._buckets:
            await exchanged(buckets)

    async def get(self, request: Message, *, front: int = 0) -> list[Message]:
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await self.fronts[front](request, receive, send)
        return sent

    async def statuses(self, number: int, request: Message, *, front: int = 0) -> list[int]:
        return [(await self.get(request, front=front))[0]["status"] for _ in range(number)]


async def exchanged(buckets: SharedBuckets) -> None:
    while buckets._exchange is not None:
        await asyncio.sleep(0.01)


async def _answer(request: Message, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))  # type: ignore[arg-type]


def headers_of(sent: list[Message]) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}


def test_a_token_above_its_rate_gets_429_with_the_time_and_others_do_not() -> None:
    async def work() -> None:
        async with Portal(token=1, address=100) as portal:
            first = await portal.get(scope(token="borg_a_1"))
            assert headers_of(first)["ratelimit-policy"] == '"token";q=10;w=10, "address";q=1000;w=10'
            assert headers_of(first)["ratelimit"] == '"token";r=9;t=1, "address";r=999;t=1'
            assert await portal.statuses(9, scope(token="borg_a_1")) == [200] * 9
            rejected = await portal.get(scope(token="borg_a_1"))
            assert rejected[0]["status"] == 429
            headers, problem = headers_of(rejected), json.loads(rejected[1]["body"])
            assert headers["retry-after"] == "1"
            assert headers["ratelimit"].startswith('"token";r=0;t=10, "address";r=9')
            assert headers["content-type"] == "application/problem+json"
            assert "connection" not in headers
            assert problem["code"] == "too-many-requests"
            assert problem["figures"] == {"limit": "token", "quota": 10, "window_s": 10, "retry_after_s": 1}
            assert await portal.statuses(3, scope(token="borg_b_1")) == [200] * 3
            assert await portal.statuses(3, scope()) == [200] * 3

    run(work)


def test_a_guessed_token_takes_nothing_from_the_real_one() -> None:
    async def work() -> None:
        async with Portal(token=1) as portal:
            assert 429 in await portal.statuses(11, scope(token="borg_key_guessed"))
            assert await portal.statuses(10, scope(token="borg_key_right")) == [200] * 10

    run(work)


SPELLINGS = [" ", "\xa0", "\x85", "\xa0\x85", "\xa0 \xa0", "\t", "  ", "\x1c", "\x85\xa0", "\xa0\xa0"]


@pytest.mark.django_db(transaction=True)
def test_each_spelling_of_a_token_counts_for_the_same_limits(tenant: Tenant) -> None:
    """Python removes more characters from the ends of a text than from the ends of bytes."""
    user = a_user("ann", tenant=tenant)
    _, secret = token_issue(principal=system("test"), user=user, name="t", scopes=[Scope.READ.value])
    for spelling in SPELLINGS[:3]:
        headers = {"authorization": f"Bearer {secret}{spelling}"}
        assert Client().get("/api/v1/cells/", headers=headers).status_code == 200

    async def work() -> None:
        requests = [scope(token=secret), *(scope(token=f"{secret}{spelling}") for spelling in SPELLINGS)]
        for limit in ("token", "tenant"):
            async with Portal(**{limit: 1}) as portal:
                assert [(await portal.get(each))[0]["status"] for each in requests] == [200] * 10 + [429]

    run(work)


def test_each_spelling_of_a_session_counts_for_the_same_limit() -> None:
    """Django uses the last cookie of a name, without spaces and quotation marks. Its pages ignore other credentials."""

    async def work() -> None:
        async with Portal(token=1) as portal:
            spellings = [
                "sessionid=ab",
                "sessionid =ab",
                'sessionid="ab"',
                *(f"sessionid={n}; sessionid=ab" for n in "cd"),
            ]
            requests = [scope("/jobs/", cookie=cookie) for cookie in spellings]
            requests += [scope("/jobs/", cookie=spellings[0], authorization=f"Basic {n}") for n in range(6)]
            assert [(await portal.get(each))[0]["status"] for each in requests] == [200] * 10 + [429]
            assert await portal.statuses(1, scope(cookie=spellings[0], token="borg_other_2")) == [200]

    run(work)


def test_an_address_is_limited_whatever_tokens_it_sends() -> None:
    async def work() -> None:
        async with Portal(token=1, address=1) as portal:
            found = [(await portal.get(scope(token=f"borg_x_{n}")))[0]["status"] for n in range(12)]
            assert found == [200] * 10 + [429] * 2
            assert await portal.statuses(1, scope(address="198.51.100.8")) == [200]
            six = [scope(address=f"2001:db8::{n}") for n in range(12)]
            assert [(await portal.get(each))[0]["status"] for each in six] == [200] * 10 + [429] * 2
            for health in ("/healthz", "/readyz", "/metrics"):
                assert await portal.statuses(20, scope(health)) == [200] * 20

    run(work)


def test_people_with_a_session_are_limited_and_get_a_page() -> None:
    async def work() -> None:
        async with Portal(token=1) as portal:
            page = scope("/jobs/", cookie="csrftoken=x; sessionid=abc")
            assert await portal.statuses(10, page) == [200] * 10
            rejected = await portal.get(page)
            assert rejected[0]["status"] == 429
            assert headers_of(rejected)["content-type"].startswith("text/html")
            assert b"Try again in 1 s," in rejected[1]["body"]
            assert "ratelimit" not in headers_of(rejected)

    run(work)


def test_a_rejected_upload_closes_its_connection() -> None:
    async def work() -> None:
        async with Portal(address=1) as portal:
            await portal.statuses(10, scope())
            for large in (scope(content_length="1000000"), scope(transfer_encoding="chunked")):
                assert headers_of(await portal.get(large))["connection"] == "close"

    run(work)


def test_processes_share_the_limit_through_redis() -> None:
    async def work() -> None:
        async with Portal(2, url=settings.BORG_REDIS_URL, clock=time.monotonic, token=2) as portal:
            request = scope(token=f"borg_shared_{uuid4().hex}")
            began = time.monotonic()
            assert await portal.statuses(15, request, front=0) == [200] * 15
            await portal.exchanged()
            assert await portal.statuses(1, request, front=1) == [200]
            await portal.exchanged()
            found = await portal.statuses(19, request, front=1)
            assert 4 <= found.count(200) <= 4 + 2 * (time.monotonic() - began) + 1, found

    run(work)


def test_without_redis_each_process_limits_alone() -> None:
    async def work() -> None:
        async with Portal(2, token=2) as portal:
            request = scope(token="borg_alone_1")
            assert await portal.statuses(25, request, front=0) == [200] * 20 + [429] * 5
            await portal.exchanged()
            assert await portal.statuses(25, request, front=1) == [200] * 20 + [429] * 5

    run(work)


def test_tokens_taken_without_redis_are_not_counted_later() -> None:
    """After an outage of Redis, a caller may send as many requests as before it."""

    async def work() -> None:
        buckets, rate = SharedBuckets(NOWHERE), Rate("token", 2)
        for _ in range(3):
            for _ in range(5):
                buckets.take([(rate, "outage")])
            await exchanged(buckets)
        (bucket,) = buckets.take([(rate, "outage")]).buckets
        assert bucket.unshared_s <= 1 / rate.per_s
        await buckets.close()

    run(work)


def test_tokens_of_many_buckets_taken_without_redis_are_not_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds if the buckets need several commands of Redis, of which the first one fails."""
    monkeypatch.setattr(shared_buckets, "_AT_ONCE", 1)

    async def work() -> None:
        buckets, rate = SharedBuckets(NOWHERE), Rate("token", 2)
        taken = buckets.take([(rate, name) for name in ("one", "two", "three")])
        await exchanged(buckets)
        assert [bucket.unshared_s for bucket in taken.buckets] == [0.0] * 3
        await buckets.close()

    run(work)


def test_requests_do_not_wait_for_a_redis_that_hangs_and_are_not_counted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that arrives while an exchange waits for Redis belongs to the next exchange."""
    monkeypatch.setattr(shared_buckets, "_REDIS_WITHIN_S", 0.2)

    async def work() -> None:
        connected, left = asyncio.Event(), asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await reader.read()  # until the client leaves
            writer.close()
            await writer.wait_closed()
            left.set()

        async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            buckets, rate = SharedBuckets(f"redis://127.0.0.1:{port}/0"), Rate("token", 2)
            buckets.take([(rate, "before")])
            await connected.wait()
            (bucket,) = buckets.take([(rate, "meanwhile")]).buckets
            assert buckets._exchange is not None
            await exchanged(buckets)
            assert bucket.unshared_s == 0.0
            await buckets.close()
            await left.wait()

    run(work)


def test_the_answer_at_the_deadline_shows_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_deadlines, "GRACE_S", 0.05)

    async def hang(request: Message, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(30)

    async def work() -> None:
        async with Portal(token=1) as portal:
            portal.fronts[0]._http, portal.fronts[0]._deadline_s = hang, 0.05
            late = await portal.get(scope(token="borg_late_1"))
            assert late[0]["status"] == 503
            assert headers_of(late)["ratelimit"] == '"token";r=9;t=1'

    run(work)


@pytest.mark.django_db(transaction=True)
def test_a_web_process_counts_the_address_that_a_trusted_proxy_names(tmp_path: Path) -> None:
    """The address of a client behind a proxy counts. A client that is not a trusted proxy cannot choose its address."""
    network = f"2001:db8:{uuid4().int % 60_000:x}"
    limits = {"BORG_RATE_PER_ADDRESS": "1", "BORG_RATE_PER_TOKEN": "0", "BORG_RATE_PER_TENANT": "0"}
    with portal_server.running(tmp_path / "log", FORWARDED_ALLOW_IPS="127.0.0.1", **limits) as url:

        def ask(client: httpx.Client, address: str) -> httpx.Response:
            return client.get("/api/v1/cells/", headers={"X-Forwarded-For": address})

        with httpx.Client(base_url=url) as proxy:
            answers = (ask(proxy, f"{network}::1") for _ in range(100))
            rejected = next(answer for answer in answers if answer.status_code == 429)
            assert rejected.json()["code"] == "too-many-requests"
            assert int(rejected.headers["Retry-After"]) >= 1
            assert rejected.headers["RateLimit-Policy"] == '"address";q=10;w=10'
            assert ask(proxy, f"{network}:1::1").status_code == 401
        with httpx.Client(base_url=url, transport=httpx.HTTPTransport(local_address="127.0.0.2")) as stranger:
            assert any(ask(stranger, f"{network}:{n:x}::1").status_code == 429 for n in range(2, 102))


def test_a_clock_of_redis_that_was_set_back_locks_nobody_out() -> None:
    async def work() -> None:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(settings.BORG_REDIS_URL) as client:
            await client.set("borg:rate:token:back", f"{time.time() + 3600:.6f}", px=60_000)
        buckets, rate = SharedBuckets(settings.BORG_REDIS_URL), Rate("token", 2)
        buckets.take([(rate, "back")])
        await exchanged(buckets)
        taken = buckets.take([(rate, "back")])
        assert taken.rejected_by is not None
        assert taken.wait_s <= WINDOW_S + 1
        await buckets.close()

    run(work)


@pytest.mark.django_db(transaction=True)
def test_tokens_of_one_tenant_share_its_limit(tenant: Tenant) -> None:
    """The tenant is known after the first request with a token."""
    secrets = []
    for name in ("ann", "bob"):
        user = a_user(name, tenant=tenant)
        _, secret = token_issue(principal=system("test"), user=user, name="t", scopes=[Scope.READ.value])
        secrets.append(secret)
        assert Client().get("/api/v1/cells/", headers={"authorization": f"Bearer {secret}"}).status_code == 200

    async def work() -> None:
        async with Portal(token=100, tenant=1) as portal:
            assert await portal.statuses(6, scope(token=secrets[0])) == [200] * 6
            assert await portal.statuses(6, scope(token=secrets[1])) == [200] * 4 + [429] * 2
            problem = json.loads((await portal.get(scope(token=secrets[0])))[1]["body"])
            assert problem["figures"]["limit"] == "tenant"
            assert await portal.statuses(3, scope(token="borg_other_1")) == [200] * 3
            labels = {"reason": "rate-of-tenant", "kind": "api-read"}
            assert REGISTRY.get_sample_value("borg_requests_rejected_total", labels)

    run(work)


@pytest.mark.django_db(transaction=True)
def test_a_revoked_token_takes_nothing_from_its_tenant(tenant: Tenant) -> None:
    token, secret = token_issue(principal=system("test"), user=a_user("ann", tenant=tenant), name="t", scopes=["read"])
    for status in (200, 401):
        assert Client().get("/api/v1/cells/", headers={"authorization": f"Bearer {secret}"}).status_code == status
        token.revoked_at = clock.now()
        token.save()

    async def work() -> None:
        async with Portal(tenant=1) as portal:
            assert await portal.statuses(12, scope(token=secret)) == [200] * 12

    run(work)
