"""`sql`: every ready query of Infrastore over 100 million windows of usage, in a process of its own with two threads.

The archive is made once below `build/`: 100 days with a million windows each, and the events of 3,472 tasks. Cases:
* `week` (s): the slowest ready query with `:since` seven days before the end; the target is 2 s;
* `all` (s): the same over all days; the target is 15 s;
* `tenant-week` (s): the same for one of 40 tenants, whose rows are copied into memory first.

Each time contains the start of the process. `cpu_s`: the most CPU time of a query over all its threads, which a busy
machine changes less. `queries`: the wall time and the CPU time of each query.

    BENCH_ROWS=10000000     fewer rows
    BENCH_CASES=week        only the cases that begin so
"""

from __future__ import annotations

import datetime as dt
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from scheduling.history.infrastore import grammar, ready
from scheduling.history.infrastore.process import engine
from scheduling.history.infrastore.process.protocol import ChildRequest, Form, Limits, TableSource
from scheduling.history.infrastore.pruning import columns_of, files_since
from tests.bench.wanted import wanted

ROWS = int(os.environ.get("BENCH_ROWS", "100000000"))
DAYS = 100
TASKS = ROWS // DAYS // 288
JOBS, TENANTS, MACHINES = max(TASKS // 30, 40), 40, max(TASKS // 10, 10)
BEGIN = dt.datetime(2026, 8, 1)
END = BEGIN + dt.timedelta(days=DAYS)
FOLDER = Path("build").resolve() / f"bench-sql-{ROWS}"
TARGETS_S = {"week": 2.0, "all": 15.0, "tenant-week": 2.0}
LIMITS = Limits(seconds=120, memory_mib=2048, threads=2, most_rows=10_000, most_bytes=2**26)

_TASK = f"""
    i % {TASKS} AS task, i % {TASKS} % {JOBS} AS collection_id, i % {TASKS} // {JOBS} AS instance_index,
    i % {TASKS} % {MACHINES} AS machine_id, 't' || (i % {TASKS} % {JOBS} % {TENANTS}) AS "user",
    hash(i) % 1000 / 1000.0 AS draw"""
_USAGE = """
    SELECT begin AS start_time, begin + INTERVAL 5 MINUTE AS end_time, "user", collection_id, instance_index,
        1 AS incarnation, machine_id, round(draw * cpus, 3) AS average_usage_cpus,
        CAST(draw * ram AS BIGINT) // 1048576 * 1048576 AS average_usage_memory,
        round(draw * cpus * 1.2, 3) AS maximum_usage_cpus,
        CAST(draw * ram * 1.1 AS BIGINT) // 1048576 * 1048576 AS maximum_usage_memory,
        round(draw * cpus, 3) AS random_sample_usage_cpus, cpus AS assigned_cpus, ram AS assigned_memory,
        0 AS page_cache_memory, 0.2 AS sample_rate, [draw] AS cpu_usage_distribution,
        [draw] AS tail_cpu_usage_distribution, CASE WHEN draw > 0.95 THEN 0.1 ELSE 0 END AS throttled_cpus,
        0 AS disk_bytes, 0 AS read_bytes_s, 0 AS written_bytes_s, 0 AS received_bytes_s, 0 AS sent_bytes_s,
        1 AS threads, CASE WHEN draw > 0.9995 THEN 1 ELSE 0 END AS oom_kills
    FROM (SELECT {task}, TIMESTAMP '{day}' + to_minutes(CAST(5 * (i // {tasks}) AS BIGINT)) AS begin,
        0.5 + i % {tasks} % 8 AS cpus, (1 + i % {tasks} % 16) * 1073741824 AS ram FROM range({rows}) AS r(i))"""
# Each task is scheduled, up and evicted about ten times a day.
_EVENTS = """
    FROM (SELECT {task}, i, i // {tasks} % 4 AS step,
            TIMESTAMP '{day}' + to_seconds(CAST(i * 86400 // {events} AS BIGINT)) AS time
        FROM range({events}) AS r(i))"""
_INSTANCE = """
    SELECT time, epoch_us(time) AS time_us, ['submit', 'schedule', 'report', 'evict'][step + 1] AS type,
        "user", collection_id, 'job-' || collection_id AS collection_name, 'job' AS collection_type,
        collection_id % 4 * 100 AS priority, 0 AS scheduling_class, instance_index, machine_id, 1 AS incarnation,
        CASE WHEN step = 3 THEN ['preemption', 'machine-failure', 'machine-shutdown', 'failure'][1 + i % 4] END
            AS cause,
        collection_id % 7 AS preemptor_collection_id, step = 2 AS up,
        CASE WHEN draw > 0.9 THEN 1 ELSE 0 END AS restarts,
        1 AS exit_status, 9 AS exit_signal, 100 AS package_bytes, 50 AS package_bytes_installed,
        {number} * 10000000 + i AS revision, 0 AS seq, 'system:master' AS actor"""
_RAW = """
    SELECT {number} * 10000000 + i AS revision, 0 AS seq, time, epoch_us(time) AS time_us, 'task.placed' AS kind,
        collection_id, instance_index, machine_id, "user", 'system:master' AS actor, '' AS request_id,
        repeat('x', 150) || i AS data"""
_COLLECTION = """
    SELECT time, epoch_us(time) AS time_us, ['submit', 'finish', 'reject', 'update_start'][1 + i % 4] AS type, "user",
        collection_id, 'job-' || collection_id AS collection_name, 200 AS priority, 5 AS tasks, 1 AS spec_version,
        'a reason' AS detail, i AS revision, 0 AS seq, 'ann' AS actor"""
_MACHINE = """
    SELECT time, epoch_us(time) AS time_us, ['down', 'up', 'draining', 'update'][1 + i % 4] AS type,
        NULL::VARCHAR AS "user", machine_id, 'a reason' AS detail, i AS revision, 0 AS seq, 'ann' AS actor"""
_RESERVATIONS = """
    SELECT time, epoch_us(time) AS time_us, "user", collection_id, instance_index, draw AS reserved_cpus,
        1000000 AS reserved_memory"""
_HOURS = """
    SELECT TIMESTAMP '{day}' + to_hours(CAST(i // {jobs} AS BIGINT)) AS time, 't' || (i % {jobs} % 40) AS "user",
        'job-' || (i % {jobs}) AS collection_name, 'batch' AS band, MAP {{'team': 'x' || (i % 9)}} AS labels,
        1.0 AS limit_cpu_hours, 1.0 AS limit_memory_hours, 0.5 AS reserved_cpu_hours, 0.5 AS reserved_memory_hours,
        0.4 AS used_cpu_hours, 0.4 AS used_memory_hours, 7 AS price_microcredits FROM range(24 * {jobs}) AS r(i)"""
_SAMPLES = """
    SELECT TIMESTAMP '{day}' + to_hours(i) AS time, NULL::VARCHAR AS "user", '' AS band, 9.0 AS capacity_cpus,
        9 AS capacity_memory, 8.0 AS limit_cpus, 8 AS limit_memory, 6.0 AS reserved_cpus, 6 AS reserved_memory,
        4.0 AS used_cpus, 4 AS used_memory FROM range(24) AS r(i)"""
_JOBS = """
    SELECT i AS collection_id, 't' || (i % 40) AS "user", 'job-' || i AS collection_name, 'job' AS collection_type,
        i % 4 * 100 AS priority, 'batch' AS band, MAP {{'team': 'x'}} AS labels, 'dead' AS state, 'finished' AS outcome,
        5 AS tasks, TIMESTAMP '{day}' AS ended_at FROM range({jobs}) AS r(i)"""
_MACHINES = """
    SELECT i AS machine_id, NULL::VARCHAR AS "user", 'm' || i AS machine_name, 'r' || (i // 40) AS switch_id,
        'p' AS power_domain, 'x' AS platform_id, 64.0 AS capacity_cpus, 274877906944 AS capacity_memory, 'up' AS state
    FROM range({machines}) AS r(i)"""
# For each table: its rows, and how many events per task and day they come from (0: they have another source).
_TABLES = {
    "instance_usage": (_USAGE, 0),
    "instance_events": (_INSTANCE, 30),
    "events": (_RAW, 30),
    "collection_events": (_COLLECTION, 1),
    "machine_events": (_MACHINE, 1),
    "reservations": (_RESERVATIONS, 10),
    "metered_hours": (_HOURS, 0),
    "capacity_samples": (_SAMPLES, 0),
}


def measure() -> Iterator[dict[str, Any]]:
    begin = time.perf_counter()
    size = _archive()
    yield {"case": "archive", "rows": ROWS, "bytes_per_usage_row": round(size / ROWS, 1), "s": _since(begin)}
    for case, since, users in (
        ("week", END - dt.timedelta(days=7), None),
        ("all", BEGIN, None),
        ("tenant-week", END - dt.timedelta(days=7), ("t3",)),
    ):
        if wanted([case]):
            yield _case(case, since, users)


def _case(case: str, since: dt.datetime, users: tuple[str, ...] | None) -> dict[str, Any]:
    times: dict[str, float] = {}
    used: dict[str, float] = {}
    for query in ready.queries():
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
        files = files_since(sorted((FOLDER / name).glob("day=*/*.parquet")), limit)
        tables[name] = TableSource(columns=columns_of(name, checked.names), files=files, since=limit)
    request = ChildRequest(sql=checked.sql, tables=tables, users=users, limits=LIMITS, form=Form.JSON)
    engine.run(request)


def _archive() -> int:
    """Create the files that do not exist yet. Return the size of all files of usage in bytes."""
    database = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "2GiB"})
    for name, (rows, per_task) in _TABLES.items():
        for number in range(DAYS):
            day = BEGIN + dt.timedelta(days=number)
            events = TASKS * per_task
            values = {"task": _TASK, "tasks": TASKS, "rows": TASKS * 288, "day": f"{day:%Y-%m-%d}", "events": events}
            values |= {"number": number, "jobs": JOBS, "machines": MACHINES}
            _write(database, name, day, (rows + (_EVENTS if per_task else "")).format(**values))
    for name, rows in (("jobs", _JOBS), ("machines", _MACHINES)):
        _write(database, name, END, rows.format(day=f"{END:%Y-%m-%d}", jobs=JOBS, machines=MACHINES))
    return sum(path.stat().st_size for path in (FOLDER / "instance_usage").rglob("*.parquet"))


def _write(database: duckdb.DuckDBPyConnection, name: str, day: dt.datetime, rows: str) -> None:
    file = FOLDER / name / f"day={day:%Y-%m-%d}" / "0.parquet"
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    database.execute(f"COPY ({rows}) TO '{part}' (FORMAT parquet, COMPRESSION zstd)")
    part.rename(file)


def _cpu_s() -> float:
    """Return the CPU time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _since(begin: float) -> float:
    return round(time.perf_counter() - begin, 2)
