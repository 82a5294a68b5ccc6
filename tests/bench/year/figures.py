"""The figures of each month of the simulated year, and whether they are flat."""

from __future__ import annotations

import datetime as dt
import itertools
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench import http_load
from tests.bench.api import ENDPOINTS, PAGES
from tests.bench.http_load import Request, share
from tests.ports import free_port

_READY_S = 60.0
WARM_UP = 1
SAMPLES = int(os.environ.get("BENCH_SAMPLES", "20"))
# Tables whose rows are kept for 400 days by their retention: they grow in a first year, and then no more.
KEPT_FOR_A_YEAR = (
    "quota_token",
    "scheduling_capacitysample",
    "scheduling_journaltally",
    "scheduling_archivefile",
    "scheduling_archivedjob",
)
_SIZES = """
SELECT coalesce(parent.relname, c.relname)::text AS name, sum(pg_total_relation_size(c.oid))::bigint,
    sum(coalesce(s.n_live_tup, 0))::bigint, sum(coalesce(s.n_dead_tup, 0))::bigint, count(*)
FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
LEFT JOIN pg_class AS parent ON parent.oid = i.inhparent
LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace IN ('public'::regnamespace, 'pg_catalog'::regnamespace)
GROUP BY 1 ORDER BY 2 DESC
"""
COUNTED = ("scheduling_event", "scheduling_job", "scheduling_task", "scheduling_jobspec", "scheduling_archivefile")
# The first does not depend on the cell. The second waits for resolvers, and none runs.
_NO_PAGE = ("/api/v1/schema/", "/bns/{cell}")


def sizes() -> dict[str, Any]:
    """Return the size of the database and of its tables in MiB, and numbers of rows. System tables are one entry."""
    from scheduling.journal.sql import query

    tables = query(_SIZES)
    mib: dict[str, float] = {}
    dead: dict[str, int] = {}
    for name, size, _, gone, _ in tables:
        entry = "catalog" if name.startswith("pg_") else name
        mib[entry] = mib.get(entry, 0.0) + size / 2**20
        dead[entry] = dead.get(entry, 0) + gone
    whole = query("SELECT pg_database_size(current_database())")[0][0] / 2**20
    for_a_year = sum(mib.get(name, 0.0) for name in KEPT_FOR_A_YEAR)
    return {
        "database_mib": round(whole, 1),
        "without_400_days_mib": round(whole - for_a_year, 1),
        "tables_mib": {
            name: round(size, 2) for name, size in sorted(mib.items(), key=lambda one: -one[1]) if size >= 0.2
        },
        "rows": {name: query(f"SELECT count(*) FROM {name}")[0][0] for name in COUNTED},
        "rows_about": {name: rows for name, _, rows, _, _ in tables if rows >= 100 and not name.startswith("pg_")},
        "dead_rows": {name: gone for name, gone in sorted(dead.items(), key=lambda one: -one[1])[:6] if gone},
    }


@contextmanager
def web(clock: Path, log: Path) -> Iterator[int]:
    """Run a web process with the clock of the year, and yield its port."""
    from django.conf import settings

    port = free_port()
    env = {
        **os.environ,
        "BENCH_CLOCK": str(clock),
        "DJANGO_SETTINGS_MODULE": "tests.bench.year.web_settings",
        "BORG_SECRET_KEY": settings.SECRET_KEY,
        "BORG_PORTAL_URL": f"http://127.0.0.1:{port}",
        "BORG_ALLOWED_HOSTS": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.bench.year.web", "--port", str(port), "--processes", "1"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        until = time.monotonic() + _READY_S
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the web process did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(15)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def pages(port: int, *, now: dt.datetime, seed: int) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 in ms of every page and REST endpoint, for one client that is an SRE."""
    from scheduling.models import Job, Machine
    from tests.bench.year import upkeep

    rng = np.random.default_rng(seed)
    sre = upkeep.people()[-1]
    headers = {
        "api": (f"Authorization: Bearer {upkeep.token_of(sre, now=now)}",),
        "page": (f"Cookie: sessionid={upkeep.sign_in(sre)}",),
    }
    jobs = list(
        Job.objects.filter(state="running").order_by("-id").values_list("name", "tenant__name", "cell__name")[:500]
    )
    machines = list(Machine.objects.order_by("id").values_list("hostname", flat=True))

    def draw(kind: str, pattern: str) -> Request:
        job, tenant, cell = jobs[rng.integers(len(jobs))]
        path = pattern.format(cell=cell, tenant=tenant, job=job, machine=machines[rng.integers(len(machines))])
        return Request(kind, path, headers[kind], user=kind)

    found = {}
    patterns = [("api", path) for path in ENDPOINTS if path not in _NO_PAGE] + [("page", path) for path in PAGES]
    for kind, pattern in patterns:
        answers, _ = http_load.run(
            lambda c, k=kind, p=pattern: http_load.by_clients(c, 1, SAMPLES + WARM_UP, lambda: draw(k, p)),
            "127.0.0.1",
            port,
        )
        wrong = [answer for answer in answers if answer.status != 200]
        if wrong:
            raise RuntimeError(f"{wrong[0].path} was answered with {wrong[0].status}")
        seconds = [1000 * answer.seconds for answer in answers[WARM_UP:]]
        found[pattern] = (round(statistics.median(seconds), 1), round(share(seconds, 0.99), 1))
    return found


MOST_GROWTH = 0.10
# A page may be slower by so many ms although nothing grew: other processes use the machine too.
NOISE_MS = 10.0


def growth(values: Sequence[float]) -> float:
    """Return by which share a figure grows from the first to the last value, on the line that fits all values best."""
    places = np.arange(len(values))
    slope, start = np.polyfit(places, np.array(values, dtype=float), 1)
    return float(slope * places[-1] / start) if start > 0 else 0.0


def verdict(months: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return whether sizes, rows and pages are flat from the fourth month on: on the line through the figures of these
    months, the last is at most a tenth above the first. Pages may be slower by `NOISE_MS` more.
    """
    late = months[3:]
    figures = {
        "database_mib": [month["database_mib"] for month in late],
        "without_400_days_mib": [month["without_400_days_mib"] for month in late],
        **{name: [month["rows"][name] for month in late] for name in COUNTED[:3]},
    }
    grown = {name: round(growth(values), 3) for name, values in figures.items()}
    slower = {}
    for path in set.intersection(*[set(month["pages"]) for month in late]):
        values = [month["pages"][path][1] for month in late]
        share_grown = growth(values)
        if share_grown > MOST_GROWTH and share_grown * values[0] > NOISE_MS:
            middle = growth([month["pages"][path][0] for month in late])
            slower[path] = {"p99": round(share_grown, 2), "p50": round(middle, 2), "p99_ms": values}
    failed = [name for name, value in grown.items() if value > MOST_GROWTH] + sorted(slower)
    every = list(itertools.chain(*([p99 for _, p99 in month["pages"].values()] for month in late)))
    return {
        "case": "flat",
        "value": max(grown.values()),
        "unit": "growth",
        "better": "lower",
        "months": len(late),
        "grown": grown,
        "pages": len(late[0]["pages"]),
        "median_p99_ms": round(statistics.median(every), 1) if every else None,
        "slower": slower,
        **({"failed": failed} if failed else {}),
    }
