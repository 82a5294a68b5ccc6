"""`sql`: seconds of the ready-made queries of Infrastore, the SQL archive of a cell, over 100 million rows of usage.

The archive is created once in the folder `build/`: 100 days with one million usage windows each, and the events of
3,472 tasks. Each query runs in a separate process with two threads. Cases:
* `week`: the slowest query over the last seven days; the target is 2 s;
* `all`: the slowest query over all days; the target is 15 s;
* `tenant-week`: as `week`, for one of 40 tenants, whose rows are copied into memory first; the target is 2 s.

Each time includes the start of the process. `cpu_s`: the largest CPU time of a query, which depends less on other users
of the machine. `queries`: elapsed time and CPU time of each query.

    BENCH_ROWS=10000000     fewer rows
    BENCH_CASES=week        run only cases whose name begins with this
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django

from scheduling.history.infrastore import grammar, ready_queries
from scheduling.history.infrastore.process import query_process
from scheduling.history.infrastore.process.protocol import ChildRequest, Form, Limits, TableSource
from scheduling.history.infrastore.pruning import columns_of
from tests.bench.wanted import wanted

ROWS = int(os.environ.get("BENCH_ROWS", "100000000"))
DAYS = 100
FOLDER = Path("build").resolve() / f"bench-sql-{ROWS}"
TARGETS_S = {"week": 2.0, "all": 15.0, "tenant-week": 2.0}
LIMITS = Limits(seconds=120, memory_mib=2048, threads=2, most_rows=10_000, most_bytes=2**26)


def measure() -> Iterator[dict[str, Any]]:
    os.environ["DJANGO_SETTINGS_MODULE"] = "portal.settings.test"
    django.setup()
    from tests.made_history import BEGIN, MadeHistory

    begin, history = time.perf_counter(), MadeHistory(FOLDER, ROWS, DAYS)
    history.write()
    size = sum(path.stat().st_size for path in (FOLDER / "instance_usage").rglob("*.parquet"))
    yield {"case": "archive", "rows": ROWS, "bytes_per_usage_row": round(size / ROWS, 1), "s": _since(begin)}
    week = history.end - dt.timedelta(days=7)
    for case, since, users in (("week", week, None), ("all", BEGIN, None), ("tenant-week", week, ("t3",))):
        if wanted([case]):
            yield _case(case, since, users)


def _case(case: str, since: dt.datetime, users: tuple[str, ...] | None) -> dict[str, Any]:
    times: dict[str, float] = {}
    used: dict[str, float] = {}
    for query in ready_queries.queries():
        begin, before = time.perf_counter(), _cpu_s()
        _run(query.sql, since, users)
        times[query.name], used[query.name] = _since(begin), round(_cpu_s() - before, 2)
    slowest = max(times, key=lambda name: times[name])
    failed = {"failed": f"{slowest} took longer than {TARGETS_S[case]:g} s"} if times[slowest] > TARGETS_S[case] else {}
    total = {"s": times[slowest], "target_s": TARGETS_S[case], "slowest": slowest, "cpu_s": max(used.values())}
    both = {name: (times[name], used[name]) for name in times}
    return {"case": case, **total, "queries": both, "load": os.getloadavg()[0], **failed}


def _run(text: str, since: dt.datetime, users: tuple[str, ...] | None) -> None:
    checked = grammar.check(text, {"since": since})
    tables = {}
    for name in checked.tables:
        limit = checked.since.get(name)
        first = f"day={limit:%Y-%m-%d}" if limit else ""
        files = tuple(
            str(path) for path in sorted((FOLDER / name).glob("day=*/*.parquet")) if path.parent.name >= first
        )
        tables[name] = TableSource(columns=columns_of(name, checked.names), users=users, files=files, since=limit)
    request = ChildRequest(sql=checked.sql, tables=tables, limits=LIMITS, form=Form.JSON)
    query_process.run(request)


def _cpu_s() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _since(begin: float) -> float:
    return round(time.perf_counter() - begin, 2)
