"""Plots of what a job uses, and what is reserved for it, against its limit; and the meters of its present usage.

last 3 hours: usage windows of tasks, every 5 minutes ─┐
hours not metered yet: samples of reservations ────────┼─► plots of CPU and RAM
days: metered hours ───────────────────────────────────┘
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import redis
import structlog
from django.utils import timezone
from django.utils.translation import gettext as _

from portal import plots
from portal.parts.meters import Meter, meter
from portal.plots import Plot, Series
from quota.billing.job_hours import job_hour_means
from quota.vocabulary.resources import CPU, RAM, describe
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Job
from scheduling.usage import job_history, job_usage

log = structlog.get_logger(__name__)

# The periods that the page offers: the value in the URL, and the length. The archive has older hours.
PERIODS = {
    "3h": dt.timedelta(hours=3),
    "1d": dt.timedelta(days=1),
    "7d": dt.timedelta(days=7),
    "28d": dt.timedelta(days=28),
}
HOUR = dt.timedelta(hours=1)
# Longer periods have longer steps, so that the page stays small.
STEPS = {"1d": HOUR, "7d": 2 * HOUR, "28d": 6 * HOUR}
RESOURCES = (CPU, RAM)

Amounts = tuple[int | None, int | None]


class Means(NamedTuple):
    """The means of a job in the period of a step that begins at `at`. (CPU, RAM); None if an amount is not known."""

    at: dt.datetime
    used: Amounts
    reserved: Amounts
    limit: Amounts


@dataclass(frozen=True, slots=True)
class JobUsage:
    """The plots of a job's usage. `period`: the chosen one of `PERIODS`. `plots`: [] if there is no data. `sampled`:
    the number of tasks whose windows were read, if the plots are estimates; otherwise 0.
    """

    period: str
    plots: Sequence[Plot]
    sampled: int = 0


def period_of(text: str) -> str:
    """Return `text` if it is one of `PERIODS`, and otherwise the shortest period."""
    return text if text in PERIODS else "3h"


def job_usage_plots(job: Job, period: str, *, now: dt.datetime) -> JobUsage:
    """Return the plots of a job's usage in the period until `now`, or until the end of the job. Makes at most four
    queries.
    """
    until = min(now, job.ended_at) if job.ended_at is not None else now
    since = until - PERIODS[period]
    metered = job_hour_means(cell=job.cell.recorded_name, job_uid=job.uid.hex, since=since)
    if period != "3h":
        means = [Means(one.at, one.used, one.reserved, _known(one.limit)) for one in metered]
        step = STEPS[period]
        return JobUsage(period, _plots(_coarser(means, step), since=since, until=until, step=step))
    recent = job_history.recent_use(job, since=since, until=until)
    reserved = {one.at: one.reserved for one in metered}
    reserved |= {
        hour: (amounts[CPU], amounts[RAM])
        for hour, amounts in job_history.unmetered_reservations(job, since=since).items()
    }
    means = [
        Means(one.at, one.used, reserved.get(one.at.replace(minute=0), (None, None)), _known(one.limit))
        for one in recent.steps
    ]
    sampled = recent.sampled if recent.sampled < recent.tasks else 0
    return JobUsage(period, _plots(means, since=since, until=until, step=job_history.STEP), sampled)


def _coarser(means: Sequence[Means], step: dt.timedelta) -> list[Means]:
    """Return the means of steps of whole hours from the means of hours. Hours without a value count as none."""
    seconds = int(step.total_seconds())
    steps: dict[int, list[Means]] = {}
    for one in means:
        steps.setdefault(int(one.at.timestamp()) // seconds * seconds, []).append(one)
    return [
        Means(
            dt.datetime.fromtimestamp(at, dt.UTC),
            *(
                (_mean([pair[0] for pair in pairs]), _mean([pair[1] for pair in pairs]))
                for pairs in zip(*((one.used, one.reserved, one.limit) for one in found), strict=True)
            ),
        )
        for at, found in steps.items()
    ]


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) // len(known) if known else None


def _known(limit: tuple[int, int]) -> Amounts:
    """Return a limit. A job inside an alloc set has no limit of its own, and its limit is stored as 0."""
    return limit if any(limit) else (None, None)


def _plots(means: Sequence[Means], *, since: dt.datetime, until: dt.datetime, step: dt.timedelta) -> list[Plot]:
    if not means:
        return []
    titles = {CPU: _("CPU"), RAM: _("RAM")}
    draw = partial(
        plots.lines,
        times=[one.at for one in means],
        since=timezone.localtime(since),
        until=timezone.localtime(until),
        step=step,
    )
    return [
        draw(
            titles[resource],
            series=[
                Series(_("used"), [one.used[place] for one in means]),
                Series(_("reserved"), [one.reserved[place] for one in means]),
                Series(_("limit"), [one.limit[place] for one in means], limit=True),
            ],
            format_value=partial(describe, resource),
        )
        for place, resource in enumerate(RESOURCES)
    ]


def usage_meters(jobs: Iterable[Job]) -> Mapping[int, list[Meter]]:
    """Return the meters of CPU and RAM of live jobs, by job id: the present usage (solid), the reservation (pale) and
    the limit (tick) of the running tasks. Jobs without running tasks are left out. Sends one request to Redis for each
    cell of the jobs.
    """
    live = [job for job in jobs if job.state != JobState.DEAD]
    result: dict[int, list[Meter]] = {}
    for cell_id in {job.cell_id for job in live}:
        try:
            sums = job_usage.read(cell_id)
        except redis.RedisError as error:
            log.warning("the usage of jobs is not shown, because Redis is not reachable", error=str(error))
            break
        if sums is not None:
            wanted = [job.id for job in live if job.cell_id == cell_id]
            for row in sums.rows[np.isin(sums.rows["job_id"], wanted)]:
                result[int(row["job_id"])] = _meters(row)
    return result


def _meters(row: np.void) -> list[Meter]:
    titles = {CPU: _("CPU"), RAM: _("RAM")}
    measured = bool(row["measured"])
    found = []
    for place in RESOURCES:
        limit = int(row["limit"][place])
        # Only some tasks may have a recent sample. Their mean stands for the others.
        used = int(row["usage"][place]) * int(row["running"]) // max(1, int(row["measured"]))
        drawn = meter(
            titles[place],
            capacity=limit,
            used=used if measured else None,
            reserved=int(row["reservation"][place]),
            limit=limit,
            format_value=partial(describe, place),
        )
        text = _("%(used)s of %(limit)s") % {
            "used": describe(place, used) if measured else "–",
            "limit": describe(place, limit),
        }
        found.append(replace(drawn, text=text))
    return found
