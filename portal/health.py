"""`/healthz`: the process answers. `/readyz`: it can also serve. `/metrics`: figures for Prometheus."""

from __future__ import annotations

import os

import redis
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from scheduling import notices
from scheduling.metrics import CellCollector


def healthz(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """503 while PostgreSQL is away. Redis away is reported, but the portal serves without it."""
    checks = {"postgresql": _postgresql(), "redis": _redis()}
    ready = checks["postgresql"] == "ok"
    return JsonResponse({"status": "ok" if ready else "unready", **checks}, status=200 if ready else 503)


def metrics(request: HttpRequest) -> HttpResponse:
    """Figures of all cells, and those that the processes of this host have counted."""
    registry = CollectorRegistry()
    registry.register(CellCollector())
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _postgresql() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        return f"unreachable: {type(error).__name__}"
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
