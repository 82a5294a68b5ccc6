"""Reads measured usage for the autoscaler: windows of five minutes as histograms, and what tasks use at present.

A query reads the usage of any number of jobs, and PostgreSQL counts the windows per bucket.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import redis
import structlog

from scheduling.autoscaling.rules.histograms import CPU_BUCKETS, RAM_BUCKETS, Floats, Ints, Weights, empty
from scheduling.autoscaling.rules.horizontal_rules import Load
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.journal.sql import query
from scheduling.usage import live_usage
from scheduling.usage.usage_windows import TABLE

log = structlog.get_logger(__name__)

# CPU that throttling denied is demand too. For latency-sensitive tasks, peaks within a window count: the 90th
# percentile of its measurements. The arrays of PostgreSQL begin with 1.
_CPU = (
    "1000 * (u.throttled_cpus + CASE WHEN c.peaks AND cardinality(u.cpu_usage_distribution) >= 10"
    " THEN u.cpu_usage_distribution[10] ELSE u.average_usage_cpus END)"
)
# `exp` of PostgreSQL fails below about -708, so a window of many half-lives counts as one of a thousand.
_WINDOWS = f"""
SELECT job, cpu, ram, sum(weight)::float8, min(start_time) FROM (
  SELECT u.collection_id AS job, {CPU_BUCKETS.sql(_CPU)} AS cpu,
    {RAM_BUCKETS.sql("u.maximum_usage_memory::float8")} AS ram,
    exp(greatest(-700, -ln(2.0) * extract(epoch FROM %(until)s - u.end_time)::float8 / c.half_life_s)) AS weight,
    u.start_time
  FROM unnest(%(jobs)s::bigint[], %(half_lives)s::float8[], %(peaks)s::boolean[], %(after)s::timestamptz[])
    AS c(job, half_life_s, peaks, after)
  JOIN {TABLE} AS u ON u.collection_id = c.job
  WHERE u.start_time >= %(first)s - interval '1 hour' AND u.end_time > c.after AND u.end_time <= %(until)s
) AS w GROUP BY GROUPING SETS ((job, cpu), (job, ram))
"""
# Reservations that reclamation has lowered below the limit, and the sum of the times when tasks ran out of memory. A
# sum, because the clocks of machines differ: it grows with each further end, whatever its clock shows.
_TASKS = """
SELECT t.job_id, coalesce(max(t.reservation[1]) FILTER (WHERE t.reservation[1] < t."limit"[1]), 0),
  coalesce(max(t.reservation[2]) FILTER (WHERE t.reservation[2] < t."limit"[2]), 0),
  coalesce(sum((t.exit->>'at')::float8) FILTER (WHERE t.exit->>'cause' = 'out-of-memory'), 0),
  coalesce(max((t.exit->>'at')::float8) FILTER (WHERE t.exit->>'cause' = 'out-of-memory'), 0),
  coalesce((array_agg(t."limit"[2] ORDER BY (t.exit->>'at')::float8 DESC)
    FILTER (WHERE t.exit->>'cause' = 'out-of-memory'))[1], 0)
FROM scheduling_task AS t WHERE t.job_id = ANY(%s) AND t.state <> 'dead' GROUP BY t.job_id
"""
# Older samples are missing ones.
FRESH_S = 30.0


class MeasuredJobs(NamedTuple):
    """The jobs whose usage is read. All have one element per job. `after`: only windows that ended later are read."""

    ids: Sequence[int]
    half_life_s: Sequence[float]
    peaks: Sequence[bool]
    after: Sequence[dt.datetime]


class NewUse(NamedTuple):
    """The usage in new windows of J jobs. `cpu`, `ram`: histograms [J, B]. `first_at`: the start of the first window
    per job, or None.
    """

    cpu: Weights
    ram: Weights
    first_at: list[dt.datetime | None]


def windows_read(jobs: MeasuredJobs, *, until: dt.datetime) -> NewUse:
    """Return the usage in the new windows of jobs, which ended at `until` at the latest. Weights are those at `until`.
    Makes one query.
    """
    values = {
        "jobs": list(jobs.ids),
        "half_lives": list(jobs.half_life_s),
        "peaks": list(jobs.peaks),
        "after": list(jobs.after),
        "first": min(jobs.after, default=until),  # a constant, so that PostgreSQL reads few partitions
        "until": until,
    }
    found = NewUse(empty(len(jobs.ids), CPU_BUCKETS), empty(len(jobs.ids), RAM_BUCKETS), [None] * len(jobs.ids))
    if not jobs.ids:
        return found
    place = {job_id: row for row, job_id in enumerate(jobs.ids)}
    for job_id, cpu, ram, weight, first in query(_WINDOWS, values):
        row = place[job_id]
        if cpu is not None:
            found.cpu[row, cpu] += weight
        else:
            found.ram[row, ram] += weight
        known = found.first_at[row]
        found.first_at[row] = first if known is None else min(known, first)
    return found


class TaskFacts(NamedTuple):
    """What is known of the tasks of J jobs. `reserved` [J, 2]: the largest reservations of CPU and RAM that reclamation
    has lowered below the limit; 0 without one. `oom_sum` [J]: grows when a further task has run out of memory.
    `oom_at`, `oom_limit` [J]: when the last one did, by the clock of its machine, and its limit of RAM.
    """

    reserved: Floats
    oom_sum: Floats
    oom_at: Floats
    oom_limit: Floats


def tasks_read(job_ids: Sequence[int]) -> TaskFacts:
    """Return facts about the live tasks of jobs. Makes one query."""
    found = TaskFacts(np.zeros((len(job_ids), 2)), *np.zeros((3, len(job_ids))))
    place = {job_id: row for row, job_id in enumerate(job_ids)}
    for job_id, cpu, ram, *of_memory in query(_TASKS, [list(job_ids)]):
        row = place[job_id]
        found.reserved[row] = cpu, ram
        found.oom_sum[row], found.oom_at[row], found.oom_limit[row] = of_memory
    return found


class PresentUse(NamedTuple):
    """The present use of J jobs. `cpu` [J]: milli-cores of all measured tasks, with the CPU that throttling denied.
    `tasks` [J]: how many there are. `most` [J, 2]: the largest use of CPU and of RAM by one task.
    """

    cpu: Floats
    tasks: Ints
    most: Floats


def present_use(cell_id: int, job_ids: Sequence[int]) -> PresentUse | None:
    """Return the present use of jobs from one answer of Redis. Return None if Redis cannot be reached. `job_ids`:
    sorted.
    """
    try:
        read = live_usage.read_cell(cell_id)
    except redis.RedisError as error:
        log.warning("cannot read from Redis how much CPU and RAM jobs use now", cell_id=cell_id, error=str(error))
        return None
    rows = read.rows[(read.rows["at"] >= read.now - FRESH_S) & (read.rows["task_id"] > 0)]
    ids = np.array(job_ids, dtype=np.int64)
    jobs = rows["task_id"] >> INDEX_BITS
    place = np.searchsorted(ids, jobs)
    place[place == len(ids)] = 0
    known = ids[place] == jobs if len(ids) else np.zeros(len(jobs), dtype=np.bool_)
    place, rows = place[known], rows[known]
    demand = rows["cpu_milli"].astype(np.float64) + rows["throttled_milli"]
    used: Floats = np.bincount(place, weights=demand, minlength=len(ids)).astype(np.float64)
    most = np.zeros((len(ids), 2))
    np.maximum.at(most[:, 0], place, demand)
    np.maximum.at(most[:, 1], place, rows["ram_bytes"].astype(np.float64))
    return PresentUse(used, np.bincount(place, minlength=len(ids)).astype(np.int64), most)


def load_by_cpu(used: float, measured: int, running: int, *, limit: int, share: float) -> Load | None:
    """Return the load of a job by its use of CPU, or None if no task is measured. `share`: the part of its limit that
    a task should use.
    """
    if not measured or limit <= 0:
        return None
    return Load(used / (limit * share), max(0, running - measured))
