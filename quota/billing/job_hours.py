"""The metered hours of one job: its mean limit, reservation and usage in each hour."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from django.db import connection

from quota import clock
from quota.vocabulary.resources import CPU, RAM

_HOUR_S = 3600
# The unique index of metered hours begins with cell and hour. One access per hour finds the rows of a job.
_HOURS = """
SELECT hour, sum("limit"[%(cpu)s]), sum("limit"[%(ram)s]), sum(reserved[%(cpu)s]), sum(reserved[%(ram)s]),
    sum(used[%(cpu)s]), sum(used[%(ram)s])
FROM quota_meteredhour
WHERE cell = %(cell)s AND job_uid = %(job_uid)s
    AND hour = ANY(ARRAY(SELECT generate_series(%(since)s::timestamptz, %(now)s, interval '1 hour')))
GROUP BY hour ORDER BY hour"""


class JobHourMeans(NamedTuple):
    """The means of a job in the hour from `at` on: (CPU in milli-cores, RAM in bytes)."""

    at: dt.datetime
    limit: tuple[int, int]
    reserved: tuple[int, int]
    used: tuple[int, int]


def job_hour_means(*, cell: str, job_uid: str, since: dt.datetime) -> Sequence[JobHourMeans]:
    """Return the metered hours of a job since `since`, oldest first. Hours in the archive are left out; they are older
    than `quota.vocabulary.months.LEAST_METERED_DAYS`. `job_uid`: without hyphens. Makes one query.
    """
    hour = since.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)
    places = {"cpu": CPU + 1, "ram": RAM + 1}
    with connection.cursor() as cursor:
        cursor.execute(_HOURS, {"cell": cell, "job_uid": job_uid, "since": hour, "now": clock.now(), **places})
        rows = cursor.fetchall()
    return [
        JobHourMeans(at.astimezone(dt.UTC), *((int(cpu) // _HOUR_S, int(ram) // _HOUR_S) for cpu, ram in _pairs(sums)))
        for at, *sums in rows
    ]


def _pairs(sums: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(sums[::2], sums[1::2], strict=True))
