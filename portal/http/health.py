"""The URLs `/readyz` and `/metrics`.

`/readyz` reports whether the process can answer requests, including requests that write. `/metrics` returns metrics for
Prometheus. The URL `/healthz` is in `portal.http.request_deadlines`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import redis
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from portal.http.metrics import rejected_requests
from portal.http.outages import READ_ONLY, STORAGE_FULL, outage_of
from quota.metrics import MarketCollector
from scheduling.history.archive.metrics import ArchiveCollector
from scheduling.history.statistics.metrics import StatisticsCollector
from scheduling.journal import wakeups
from scheduling.master.metrics import CellCollector

# The longest wait for the result of a check. PostgreSQL or Redis may hang.
_CHECK_S = 2.0
# The time for which a result is used again, because a check writes, and everybody may request it.
_KEPT_S = 3.0
_STATEMENT_MS = 5_000
# So many rows need new blocks of the file.
_PROBE_ROWS = 16


class Check:
    """Runs a function that checks a service and may block. The function runs in its own thread, never twice at the same
    time. All callers share its result.
    """

    def __init__(self, question: Callable[[], str]) -> None:
        self._question = question
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="readyz")
        self._lock = threading.Lock()
        self._answer: Future[str] | None = None
        self._asked_at = 0.0

    async def answer(self) -> str:
        """Return the result of the check. The result is at most `_KEPT_S` seconds old.

        If the check takes longer than `_CHECK_S` seconds, return a text that begins with "no answer".
        """
        try:
            async with asyncio.timeout(_CHECK_S):
                return await asyncio.shield(asyncio.wrap_future(self._asked()))
        except TimeoutError:
            return f"no answer within {_CHECK_S:g} s"

    def _asked(self) -> Future[str]:
        with self._lock:
            known = self._answer
            if known is None or (known.done() and time.monotonic() - self._asked_at > _KEPT_S):
                self._answer = known = self._threads.submit(self._question)
                self._asked_at = time.monotonic()
            return known


async def readyz(request: HttpRequest) -> HttpResponse:
    """Return status 200 if PostgreSQL is reachable and accepts writes, and 503 otherwise. Redis does not affect the
    status.
    """
    postgresql, redis_ = await asyncio.gather(_POSTGRESQL.answer(), _REDIS.answer())
    ready = postgresql == "ok"
    report = {"status": "ok" if ready else "unready", "postgresql": postgresql, "redis": redis_}
    return JsonResponse(report, status=200 if ready else 503, headers={} if ready else {"Retry-After": "5"})


def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of all cells and of the quota market, and the counters of the portal's processes on this host.
    If `PROMETHEUS_MULTIPROC_DIR` is not set, the counters are those of this process.
    """
    registry = CollectorRegistry()
    registry.register(CellCollector())
    registry.register(ArchiveCollector())
    registry.register(StatisticsCollector())
    registry.register(MarketCollector())
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry.register(rejected_requests)
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


def _postgresql() -> str:
    """Write to PostgreSQL over a new connection, because the pool may be busy. Return "ok", or a text that says what is
    wrong.

    The check empties its table with TRUNCATE, so that the next rows need new space on the disk. Otherwise, PostgreSQL
    would reuse space, and the check would not notice a full disk.
    """
    params = connection.get_connection_params()
    params["connect_timeout"] = _STATEMENT_MS // 1000
    params["options"] = f"-c statement_timeout={_STATEMENT_MS} -c lock_timeout={_STATEMENT_MS}"
    try:
        with psycopg.connect(**params) as own:
            own.execute("TRUNCATE portal_write_probe")
            own.execute(
                "INSERT INTO portal_write_probe (filling)"
                " SELECT repeat(md5(n::text), 200) FROM generate_series(1, %s) AS n",
                [_PROBE_ROWS],
            )
    except psycopg.errors.UndefinedTable:
        return "the database is older than this version; run manage.py migrate"
    except psycopg.Error as error:
        found = outage_of(error)
        if found is STORAGE_FULL:
            return f"writes fail, because the disk is full: {error.diag.message_primary}"
        if found is READ_ONLY:
            return "writes fail, because PostgreSQL accepts only reads"
        return f"unreachable: {type(error).__name__}: {error.diag.message_primary or error}"
    return "ok"


def _redis() -> str:
    try:
        wakeups.client().ping()
    except redis.RedisError as error:
        return f"unreachable: {type(error).__name__}"
    return "ok"


_POSTGRESQL, _REDIS = Check(_postgresql), Check(_redis)

urlpatterns = [path("readyz", readyz, name="readyz"), path("metrics", metrics, name="metrics")]
