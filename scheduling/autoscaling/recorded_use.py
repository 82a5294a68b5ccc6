"""Reads the recorded usage of a job for a simulation. PostgreSQL has the windows of the last hours
(`BORG_USAGE_KEEP_HOURS`).
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

import numpy as np

from scheduling.autoscaling.rules.histograms import Floats
from scheduling.autoscaling.rules.replay import STEP_S, RecordedUse
from scheduling.journal.sql import query
from scheduling.models import Job
from scheduling.usage.usage_windows import TABLE

# Of a larger job, only some tasks are replayed.
MOST_TASKS = 100
MOST_DAYS = 3
_SPAN = f"""
SELECT extract(epoch FROM min(start_time))::float8, extract(epoch FROM max(start_time))::float8,
  max(instance_index) + 1 FROM {TABLE} WHERE collection_id = %s AND start_time >= %s
"""
_WINDOWS = f"""
SELECT instance_index / %(every)s, floor((extract(epoch FROM start_time) - %(begin)s) / {STEP_S})::integer,
  1000 * avg(average_usage_cpus + throttled_cpus),
  1000 * avg(throttled_cpus + CASE WHEN %(peaks)s AND cardinality(cpu_usage_distribution) >= 10
    THEN cpu_usage_distribution[10] ELSE average_usage_cpus END),
  max(maximum_usage_memory)::float8
FROM {TABLE} WHERE collection_id = %(job)s AND start_time >= %(since)s AND instance_index %% %(every)s = 0
GROUP BY 1, 2
"""
_TOTALS = f"""
SELECT floor((extract(epoch FROM start_time) - %(begin)s) / {STEP_S})::integer,
  sum(1000 * (average_usage_cpus + throttled_cpus) * extract(epoch FROM end_time - start_time)::float8) / {STEP_S},
  sum(extract(epoch FROM end_time - start_time)::float8) / {STEP_S}
FROM {TABLE} WHERE collection_id = %(job)s AND start_time >= %(since)s GROUP BY 1
"""


class Recorded(NamedTuple):
    """Recorded usage of one job. `begins_at`: the start of the first window, seconds since the epoch. `windows`: [1, T,
    S], of some of its tasks. `cpu_total`, `tasks` [S]: the mean use of CPU of all tasks, and how many ran.
    """

    begins_at: float
    windows: RecordedUse
    cpu_total: Floats
    tasks: Floats


def recorded_use(job: Job, *, now: dt.datetime) -> Recorded | None:
    """Return the recorded usage of a job, or None if there is none. Makes three queries."""
    since = now - dt.timedelta(days=MOST_DAYS)
    ((first, last, number),) = query(_SPAN, [job.id, since])
    if first is None:
        return None
    begin = first // STEP_S * STEP_S
    steps, every = int((last - begin) // STEP_S) + 1, -(-number // MOST_TASKS)
    values = {"job": job.id, "since": since, "begin": begin, "every": every, "peaks": job.latency_sensitive}
    size = (1, -(-number // every), steps)
    windows = RecordedUse(*(np.full(size, np.nan) for _ in range(3)))
    for task, step, *used in query(_WINDOWS, values):
        for target, value in zip(windows, used, strict=True):
            target[0, task, step] = value
    cpu, tasks = np.full(steps, np.nan), np.zeros(steps)
    for step, used, present in query(_TOTALS, values):
        cpu[step], tasks[step] = used, present
    return Recorded(begin, windows, cpu, tasks)
