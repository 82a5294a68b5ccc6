"""`/healthz`, `/readyz` and `/metrics`: for probes, which can't wait."""

from __future__ import annotations

import asyncio
import time

import pytest
from django.test import Client

from portal import health

pytestmark = pytest.mark.django_db(transaction=True)


def test_ready_with_both_engines_there() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "postgresql": "ok", "redis": "ok"})


def test_alive_without_asking_anybody(django_assert_num_queries) -> None:
    with django_assert_num_queries(0):
        assert Client().get("/healthz").json() == {"status": "ok"}


def test_an_engine_that_stands_still_is_not_waited_for() -> None:
    def stands_still() -> str:
        time.sleep(health._CHECK_S + 1.0)
        return "ok"

    began = time.monotonic()
    assert "no answer within" in asyncio.run(health._answer(stands_still))
    assert time.monotonic() - began < health._CHECK_S + 20.0
