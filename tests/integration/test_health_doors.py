"""Tests of `/healthz`, `/readyz` and `/metrics`: they answer at once, even if PostgreSQL or Redis does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from portal.http import health
from portal.http.metrics import rejected_requests
from portal.http.request_deadlines import Front

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def read_only() -> Iterator[None]:
    """Make new database sessions read-only. Wait until answers of `/readyz` from before are no longer repeated."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        name = cursor.fetchone()[0]
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        time.sleep(health._KEPT_S)
        yield
        cursor.execute("SET default_transaction_read_only = off")
        cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
    time.sleep(health._KEPT_S)


def test_ready_with_both_engines_there() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "postgresql": "ok", "redis": "ok"})


def test_metrics_have_the_rejected_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the default installation, in which the processes do not share their metrics."""
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    rejected_requests.labels("queue-full", "page-read").inc()
    text = Client().get("/metrics").content.decode()
    assert 'borg_requests_rejected_total{kind="page-read",reason="queue-full"}' in text


def test_not_ready_while_postgresql_rejects_writes(read_only: None) -> None:
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["postgresql"] == "writes fail, because PostgreSQL accepts only reads"
    assert answer["Retry-After"]


def test_alive_without_django() -> None:
    async def unasked(*_: Any) -> None:
        raise AssertionError("nothing behind the front is asked")

    front = Front(http=unasked, websocket=unasked, lifespan=unasked, deadline_s=5.0)
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "headers": []}
    asyncio.run(front(scope, unasked, send))
    assert (sent[0]["status"], sent[1]["body"]) == (200, b'{"status": "ok"}')


def test_an_engine_that_stands_still_is_not_waited_for() -> None:
    goes_on = threading.Event()
    asked = []

    def stands_still() -> str:
        asked.append(1)
        goes_on.wait(30.0)
        return "ok"

    check = health.Check(stands_still)

    async def ask_often() -> list[str]:
        return await asyncio.gather(*(check.answer() for _ in range(20)))

    began = time.monotonic()
    try:
        assert all("no answer within" in told for told in asyncio.run(ask_often()))
        assert asked == [1], "one thread waits, however many ask"
    finally:
        goes_on.set()
    assert time.monotonic() - began < health._CHECK_S + 20.0
