"""The usage of a job over the last hours, from the stored usage windows of its tasks, and its reservation in hours that
are not metered yet.

A job may have 10,000 tasks, and each has a window every five minutes. So only the windows of at most `MOST_SAMPLED`
tasks are read, and their sums are scaled to all tasks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from django.db.models import OuterRef, Q, Subquery

from scheduling.core.vocabulary.states import TaskState
from scheduling.journal.sql import query
from scheduling.models import Job, MeteringHour, ReservedInHour, Task
from scheduling.usage.usage_windows import TABLE

STEP, HOUR = dt.timedelta(minutes=5), dt.timedelta(hours=1)
MOST_SAMPLED = 200
# Machines send a window at most this long after its end. They spread their windows over this time.
LATEST = dt.timedelta(seconds=210)

_WINDOWS = f"""
SELECT to_timestamp(floor(extract(epoch FROM start_time) / %(step)s) * %(step)s) AS at,
    sum(average_usage_cpus * s.share), sum(average_usage_memory * s.share),
    sum(assigned_cpus * s.share), sum(assigned_memory * s.share)
FROM {TABLE} CROSS JOIN LATERAL (SELECT extract(epoch FROM end_time - start_time)::float8 / %(step)s AS share) AS s
WHERE collection_id = %(job)s AND instance_index = ANY(%(indexes)s) AND start_time >= %(since)s
GROUP BY at ORDER BY at"""


class UsageStep(NamedTuple):
    """The usage and the limit of the running tasks of a job in the five minutes from `at` on. CPU in milli-cores, RAM
    in bytes.
    """

    at: dt.datetime
    used: tuple[int, int]
    limit: tuple[int, int]


class RecentUse(NamedTuple):
    """The usage of a job in steps of five minutes, oldest first; a step without a window is missing. `tasks`: the
    number of tasks that may have run in this time. `sampled`: the number of those whose windows were read. If it is
    smaller than `tasks`, the sums are estimates.
    """

    steps: Sequence[UsageStep]
    sampled: int
    tasks: int


def recent_use(job: Job, *, since: dt.datetime, until: dt.datetime) -> RecentUse:
    """Return the usage of a job from `since` until `until`. The newest step is left out if some of its windows may not
    have arrived yet. Makes two queries, which read at most `MOST_SAMPLED` windows per step.
    """
    few = job.tasks_total <= MOST_SAMPLED
    indexes = list(range(job.tasks_total)) if few else _running_since(job, since)
    sampled = indexes[:: max(1, -(-len(indexes) // MOST_SAMPLED))]
    scale = len(indexes) / len(sampled) if sampled else 0.0
    found = query(_WINDOWS, {"job": job.id, "indexes": sampled, "since": since, "step": int(STEP.total_seconds())})
    steps = [
        UsageStep(
            at.astimezone(dt.UTC),
            (round(1000 * scale * cpu), round(scale * float(ram))),
            (round(1000 * scale * limit_cpu), round(scale * float(limit_ram))),
        )
        for at, cpu, ram, limit_cpu, limit_ram in found
        if at + STEP + LATEST <= until
    ]
    return RecentUse(steps, len(sampled), len(indexes))


def _running_since(job: Job, since: dt.datetime) -> list[int]:
    """Return the indexes of the tasks of a job that are not dead, or that died after `since`, in order."""
    rows = Task.objects.filter(Q(since__gte=since) | ~Q(state=TaskState.DEAD), job=job)
    return list(rows.order_by("index").values_list("index", flat=True))


def unmetered_reservations(job: Job, *, since: dt.datetime) -> dict[dt.datetime, tuple[int, ...]]:
    """Return the mean reservation of a job by hour (UTC), in hours since `since` that are not metered yet. Makes one
    query.
    """
    looks = MeteringHour.objects.filter(cell_id=OuterRef("cell_id"), hour=OuterRef("hour")).values("looks")[:1]
    rows = ReservedInHour.objects.filter(cell_id=job.cell_id, job_id=job.id, hour__gte=since - HOUR)
    found = rows.annotate(looks=Subquery(looks)).values_list("hour", "reserved", "looks")
    return {hour: tuple(round(amount / number) for amount in reserved) for hour, reserved, number in found if number}
