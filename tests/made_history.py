"""An invented history of a cell as Parquet files, for tests and benchmarks of SQL: 40 tenants, 30 tasks per job.

    <folder>/<table>/day=YYYY-MM-DD/0.parquet

The archive's own writer writes the tables of the archive. The other files have the layout of `borgctl sql --parquet`.
Django must be set up before this module is imported.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from pyarrow import parquet as pq

from scheduling.history.archive import parquet
from scheduling.history.archive.tables import ARCHIVE_TABLES, ROWS_PER_GROUP
from scheduling.history.infrastore.tables import SCHEMAS

BEGIN = dt.datetime(2026, 8, 1)
_PER_JOB = 30
# The columns of a row of task number `task`. `draw` is below 1, and for each fifth job below 0.25. It has few binary
# digits, so that sums of its products are exact.
_TASK = """
    task // {per_job} AS collection_id, task % {per_job} AS instance_index, task % {machines} AS machine_id,
    't' || (task // {per_job} % 40) AS "user", CAST(hash(i + {first}) % 1024 AS DOUBLE)
        / CASE WHEN task // {per_job} % 5 = 0 THEN 4096 ELSE 1024 END AS draw"""
_USAGE = """
    SELECT begin AS start_time, begin + INTERVAL 5 MINUTE AS end_time, "user", collection_id, instance_index,
        1 AS incarnation, machine_id, draw * cpus AS average_usage_cpus,
        CAST(draw * ram AS BIGINT) AS average_usage_memory,
        draw * cpus * 1.25 AS maximum_usage_cpus,
        CAST(draw * ram * 1.125 AS BIGINT) AS maximum_usage_memory,
        draw * cpus AS random_sample_usage_cpus, cpus AS assigned_cpus, ram AS assigned_memory,
        0 AS page_cache_memory, 0.25 AS sample_rate, [draw] AS cpu_usage_distribution,
        [draw] AS tail_cpu_usage_distribution, CASE WHEN draw > 0.95 THEN 0.125 ELSE 0 END AS throttled_cpus,
        0 AS disk_bytes, 0 AS read_bytes_s, 0 AS written_bytes_s, 0 AS received_bytes_s, 0 AS sent_bytes_s,
        1 AS threads, CASE WHEN draw > 0.999 THEN 1 ELSE 0 END AS oom_kills
    FROM (
        SELECT {task}, TIMESTAMP '{day}' + to_minutes(CAST(5 * place AS BIGINT)) AS begin, 0.5 + task % 8 AS cpus,
            (1 + task % 16) * 1073741824 AS ram
        FROM (SELECT i, {order} FROM range({tasks} * 288) AS r(i)))"""
# The order of the archive's file.
_ORDER = "i % {tasks} AS task, i // {tasks} AS place"
# Each task is scheduled, up and evicted about ten times a day.
_EVENTS = """
    FROM (
        SELECT {task}, i, {first} + i AS revision, 0 AS seq, i // {tasks} % 4 AS step,
            TIMESTAMP '{day}' + to_seconds(CAST(i * 86400 // {events} AS BIGINT)) AS time
        FROM (SELECT i, i % {tasks} AS task FROM range({events}) AS r(i)))"""
_INSTANCE = """
    SELECT time, epoch_us(time) AS time_us,
        CASE WHEN step < 3 THEN ['submit', 'schedule', 'report'][step + 1] WHEN i % 4 = 3 THEN 'fail' ELSE 'evict' END
            AS type,
        "user", collection_id, 'job-' || collection_id AS collection_name, 'job' AS collection_type,
        collection_id % 4 * 100 AS priority, 0 AS scheduling_class, instance_index, machine_id, 1 AS incarnation,
        CASE WHEN step = 3 THEN ['preemption', 'machine-failure', 'machine-shutdown', 'failure'][1 + i % 4] END
            AS cause,
        collection_id % 7 AS preemptor_collection_id, step = 2 AS up,
        CASE WHEN draw > 0.9 THEN 1 ELSE 0 END AS restarts,
        1 AS exit_status, 9 AS exit_signal, 100 AS package_bytes, 50 AS package_bytes_installed,
        revision, seq, 'system:master' AS actor"""
_RAW = """
    SELECT revision, seq, time, epoch_us(time) AS time_us, 'task.placed' AS kind,
        collection_id, instance_index, machine_id, "user", 'system:master' AS actor, '' AS request_id,
        repeat('x', 150) || i AS data"""
_COLLECTION = """
    SELECT time, epoch_us(time) AS time_us, ['submit', 'finish', 'reject', 'update_start'][1 + i % 4] AS type, "user",
        collection_id, 'job-' || collection_id AS collection_name, 200 AS priority, 5 AS tasks, 1 AS spec_version,
        'a reason' AS detail, revision, seq, 'ann' AS actor"""
_MACHINE = """
    SELECT time, epoch_us(time) AS time_us, ['down', 'up', 'draining', 'update'][1 + i % 4] AS type,
        NULL::VARCHAR AS "user", machine_id, 'a reason' AS detail, revision, seq, 'ann' AS actor"""
_RESERVATIONS = """
    SELECT time, epoch_us(time) AS time_us, "user", collection_id, instance_index, draw AS reserved_cpus,
        1000000 AS reserved_memory, revision, seq"""
_HOURS = """
    SELECT {first} + i AS id, TIMESTAMP '{day}' + to_hours(CAST(i // {jobs} AS BIGINT)) AS time,
        't' || (i % {jobs} % 40) AS "user",
        'job-' || (i % {jobs}) AS collection_name, 'batch' AS band, MAP {{'team': 'x' || (i % 9)}} AS labels,
        1.0 AS limit_cpu_hours, 1.0 AS limit_memory_hours, 0.5 AS reserved_cpu_hours, 0.5 AS reserved_memory_hours,
        0.375 AS used_cpu_hours, 0.375 AS used_memory_hours, 7 AS price_microcredits FROM range(24 * {jobs}) AS r(i)"""
_SAMPLES = """
    SELECT TIMESTAMP '{day}' + to_hours(i) AS time, NULL::VARCHAR AS "user", '' AS band, 9.0 AS capacity_cpus,
        9 AS capacity_memory, 8.0 AS limit_cpus, 8 AS limit_memory, 6.0 AS reserved_cpus, 6 AS reserved_memory,
        4.0 AS used_cpus, 4 AS used_memory FROM range(24) AS r(i)"""
_JOBS = """
    SELECT i AS collection_id, 't' || (i % 40) AS "user", 'job-' || i AS collection_name, 'job' AS collection_type,
        i % 4 * 100 AS priority, i % 2 * 3 AS scheduling_class, 'batch' AS band,
        MAP {{'team': 'x'}} AS labels, 'dead' AS state, 'finished' AS outcome,
        {per_job} AS tasks, TIMESTAMP '{day}' AS ended_at FROM range({jobs}) AS r(i)"""
_MACHINES = """
    SELECT i AS machine_id, NULL::VARCHAR AS "user", 'm' || i AS machine_name, 'r' || (i // 40) AS switch_id,
        'p' AS power_domain, 'x' AS platform_id, 64.0 AS capacity_cpus, 274877906944 AS capacity_memory, 'up' AS state
    FROM range({machines}) AS r(i)"""
_ORDERS = """
    SELECT TIMESTAMP '{day}' + to_minutes(i) AS time, 't' || i AS "user", {first} + i AS order_id, 'batch' AS band,
        ['active', 'expired', 'rejected'][1 + i % 3] AS state, 2.0 + i % 4 AS amount_cpus, 1073741824 AS amount_memory,
        TIMESTAMP '{day}' AS starts_at, TIMESTAMP '{day}' + INTERVAL 2 DAY AS ends_at, 48.0 AS hours,
        1000000 * i AS price_microcredits, 500 AS refunded_microcredits, 'ann' AS placed_by, 'bob' AS decided_by
    FROM range(40) AS r(i)"""
# For each table: its rows, and how many events per task and day they come from (0: they have another source).
_DAILY = {
    "instance_usage": (_USAGE, 0),
    "instance_events": (_INSTANCE, 30),
    "events": (_RAW, 30),
    "collection_events": (_COLLECTION, 1),
    "machine_events": (_MACHINE, 1),
    "reservations": (_RESERVATIONS, 10),
    "metered_hours": (_HOURS, 0),
    "capacity_samples": (_SAMPLES, 0),
    "orders": (_ORDERS, 0),
}


@dataclass(frozen=True, slots=True)
class MadeHistory:
    """A history of `days` days from `BEGIN` on, with about `rows` windows of usage and `rows` / 10 events of tasks."""

    folder: Path
    rows: int
    days: int

    @property
    def end(self) -> dt.datetime:
        return BEGIN + dt.timedelta(days=self.days)

    def write(self) -> None:
        """Write the files that do not exist yet."""
        database = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "2GiB"})
        for name, (rows, per_task) in _DAILY.items():
            for number in range(self.days):
                self._write(database, name, rows + (_EVENTS if per_task else ""), number, per_task)
        for name, rows in (("jobs", _JOBS), ("machines", _MACHINES)):
            self._write(database, name, rows, self.days, 0)

    def _write(self, database: duckdb.DuckDBPyConnection, name: str, rows: str, number: int, per_task: int) -> None:
        day = f"{BEGIN + dt.timedelta(days=number):%Y-%m-%d}"
        file = self.folder / name / f"day={day}" / "0.parquet"
        if file.exists():
            return
        tasks = max(self.rows // self.days // 288, _PER_JOB)
        values = {"tasks": tasks, "per_job": _PER_JOB, "jobs": tasks // _PER_JOB + 1, "machines": max(tasks // 10, 10)}
        values |= {"events": tasks * per_task, "day": day, "first": number * 10**7}
        values |= {"task": _TASK.format(**values), "order": _ORDER.format(**values)}
        found = database.sql(rows.format(**values))
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        if name in ARCHIVE_TABLES:
            table = ARCHIVE_TABLES[name]
            parquet.write(part, table, "made", _groups(found, table.schema))
        else:
            pq.write_table(pa.concat_tables(_groups(found, SCHEMAS[name])), part, compression="zstd")
        part.rename(file)


def _groups(found: duckdb.DuckDBPyRelation, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield rows with the columns of a schema. Columns that the rows lack are null."""
    for batch in found.to_arrow_reader(ROWS_PER_GROUP):
        columns = [
            batch[field.name].cast(field.type) if field.name in batch.schema.names else pa.nulls(len(batch), field.type)
            for field in schema
        ]
        yield pa.table(columns, schema=schema)
