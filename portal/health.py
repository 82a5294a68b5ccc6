"""`/healthz`: the process answers. `/readyz`: it can also serve. `/metrics`: figures for Prometheus."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import redis
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from quota.metrics import MarketCollector
from scheduling import notices
from scheduling.metrics import CellCollector


def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


# Whoever asks wants an answer while it still matters; an engine that stands still gives none.
_CHECK_S = 2.0


async def readyz(request: HttpRequest) -> HttpResponse:
    """503 while PostgreSQL is away. Redis away is reported, but the portal serves without it."""
    postgresql, redis_ = await asyncio.gather(_answer(_postgresql), _answer(_redis))
    checks = {"postgresql": postgresql, "redis": redis_}
    ready = checks["postgresql"] == "ok"
    return JsonResponse({"status": "ok" if ready else "unready", **checks}, status=200 if ready else 503)


def metrics(request: HttpRequest) -> HttpResponse:
    """Figures of all cells and of the market, and those that the processes of this host have counted."""
    registry = CollectorRegistry()
    registry.register(CellCollector())
    registry.register(MarketCollector())
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


async def _answer(check: Callable[[], str]) -> str:
    try:
        async with asyncio.timeout(_CHECK_S):
            return await sync_to_async(check, thread_sensitive=False)()
    except TimeoutError:
        return f"no answer within {_CHECK_S:g} s"


def _postgresql() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return f"unreachable: {type(error).__name__}"
    finally:
        connection.close()  # this thread may never run again
    return "ok"


def _redis() -> str:
    try:
        notices.client().ping()
    except redis.RedisError as error:
        return f"unreachable: {type(error).__name__}"
    return "ok"


urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("readyz", readyz, name="readyz"),
    path("metrics", metrics, name="metrics"),
]
