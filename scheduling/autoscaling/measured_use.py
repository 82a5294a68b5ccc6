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
_WINDOWS = f"""
SELECT job, cpu, ram, sum(weight)::float8, min(start_time) FROM (
  SELECT u.collection_id AS job, {CPU_BUCKETS.sql(_CPU)} AS cpu,
    {RAM_BUCKETS.sql("u.maximum_usage_memory::float8")} AS ram,
    exp(-ln(2.0) * extract(epoch FROM %(until)s - u.end_time)::float8 / c.half_life_s) AS weight, u.start_time
  FROM unnest(%(jobs)s::bigint[], %(half_lives)s::float8[], %(peaks)s::boolean[]) AS c(job, half_life_s, peaks)
  JOIN {TABLE} AS u ON u.collection_id = c.job
  WHERE u.start_time >= %(after)s - interval '1 hour' AND u.end_time > %(after)s AND u.end_time <= %(until)s
) AS w GROUP BY GROUPING SETS ((job, cpu), (job, ram))
"""
# Reservations that reclamation has lowered below the limit, and the last time when a task ran out of memory.
_TASKS = """
SELECT t.job_id, coalesce(max(t.reservation[1]) FILTER (WHERE t.reservation[1] < t."limit"[1]), 0),
  coalesce(max(t.reservation[2]) FILTER (WHERE t.reservation[2] < t."limit"[2]), 0),
  to_timestamp(max((t.exit->>'at')::float8) FILTER (WHERE t.exit->>'cause' = 'out-of-memory'))
FROM scheduling_task AS t WHERE t.job_id = ANY(%s) AND t.state <> 'dead' GROUP BY t.job_id
"""
# Older samples are missing ones.
FRESH_S = 30.0


class MeasuredJobs(NamedTuple):
    """The jobs whose usage is read. All have one element per job."""

    ids: Sequence[int]
    half_life_s: Sequence[float]
    peaks: Sequence[bool]


class NewUse(NamedTuple):
    """The usage in new windows of J jobs. `cpu`, `ram`: histograms [J, B]. `first_at`: the start of the first window
    per job, or None.
    """

    cpu: Weights
    ram: Weights
    first_at: list[dt.datetime | None]


def windows_read(jobs: MeasuredJobs, *, after: dt.datetime, until: dt.datetime) -> NewUse:
    """Return the usage in the windows that ended after `after`, and at `until` at the latest. Weights are those at
    `until`. Makes one query.
    """
    values = {
        "jobs": list(jobs.ids),
        "half_lives": list(jobs.half_life_s),
        "peaks": list(jobs.peaks),
        "after": after,
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
    has lowered below the limit; 0 without one. `oom_at`: the last time when a task ran out of memory, or None.
    """

    reserved: Floats
    oom_at: list[dt.datetime | None]


def tasks_read(job_ids: Sequence[int]) -> TaskFacts:
    """Return facts about the live tasks of jobs. Makes one query."""
    found = TaskFacts(np.zeros((len(job_ids), 2)), [None] * len(job_ids))
    place = {job_id: row for row, job_id in enumerate(job_ids)}
    for job_id, cpu, ram, oom_at in query(_TASKS, [list(job_ids)]):
        row = place[job_id]
        found.reserved[row] = cpu, ram
        found.oom_at[row] = oom_at
    return found


class CpuUse(NamedTuple):
    """The present use of CPU by J jobs. `used` [J]: milli-cores of all measured tasks. `tasks` [J]: how many there
    are.
    """

    used: Floats
    tasks: Ints


def cpu_read(cell_id: int, job_ids: Sequence[int]) -> CpuUse | None:
    """Return the present use of CPU by jobs, with the CPU that throttling denied, from one answer of Redis. Return None
    if Redis cannot be reached.
    """
    try:
        read = live_usage.read_cell(cell_id)
    except redis.RedisError as error:
        log.warning("the load of jobs is unknown, and their numbers of tasks stay", cell_id=cell_id, error=str(error))
        return None
    rows = read.rows[(read.rows["at"] >= read.now - FRESH_S) & (read.rows["task_id"] > 0)]
    ids = np.array(job_ids, dtype=np.int64)  # sorted
    jobs = rows["task_id"] >> INDEX_BITS
    place = np.searchsorted(ids, jobs)
    place[place == len(ids)] = 0
    known = ids[place] == jobs if len(ids) else np.zeros(len(jobs), dtype=np.bool_)
    demand = rows["cpu_milli"].astype(np.float64) + rows["throttled_milli"]
    used: Floats = np.bincount(place[known], weights=demand[known], minlength=len(ids)).astype(np.float64)
    return CpuUse(used, np.bincount(place[known], minlength=len(ids)).astype(np.int64))


def load_by_cpu(used: float, measured: int, running: int, *, limit: int, share: float) -> Load | None:
    """Return the load of a job by its use of CPU, or None if no task is measured. `share`: the part of its limit that
    a task should use.
    """
    if not measured or limit <= 0:
        return None
    return Load(used / (limit * share), max(0, running - measured))
