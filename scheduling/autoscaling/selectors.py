"""Reads what the autoscaler knows about a job."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from scheduling.autoscaling.rejections import LIMITS, TASKS
from scheduling.autoscaling.savings import ListPrice
from scheduling.jobs.actions.autoscaled import AUTOSCALER, ScaledValues, stored_values, values_of
from scheduling.jobs.updates import spec_of
from scheduling.models import Job, JobAutoscaling, JobSpec
from scheduling.spec.autoscaling.fields import Autoscale

MOST_CHANGES = 20


@dataclass(frozen=True, slots=True)
class RejectedChange:
    """A change by the autoscaler that was rejected. `of`: `tasks` (their number) or `limits`. `retry_at`: when the next
    attempt is; None: in the next turn.
    """

    of: str
    code: str
    detail: str
    since: dt.datetime
    retry_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What the autoscaler recommends for a job. `now`: the present values. `wanted`: the recommended ones; equal to
    `now` where nothing else is recommended. `available`: whether they differ enough to be worth a change.

    `saves`: what they would save per 30 days, in micro-credits; negative if they cost more. `row`: what is stored; None
    if the job has no rules, or no process has looked at it yet. `changes`: the newest versions by the autoscaler.
    `rejections`: the changes that are rejected.
    """

    rules: Autoscale
    now: ScaledValues
    wanted: ScaledValues
    available: bool
    saves: int
    row: JobAutoscaling | None
    changes: list[dict[str, Any]] = field(default_factory=list)
    rejections: list[RejectedChange] = field(default_factory=list)

    @property
    def costs(self) -> int:
        """Return what the recommended values would cost more per 30 days; 0 if they save money."""
        return max(0, -self.saves)


def recommendation_of(job: Job) -> Recommendation:
    """Return the recommendation for a job. The number of queries does not depend on the job."""
    job_spec = spec_of(job)
    now = wanted = values_of(job_spec)
    row = JobAutoscaling.objects.filter(job=job).first()
    saves, available = 0, False
    if row is not None and row.version == job.spec_version:
        wanted = ScaledValues(
            row.wanted_tasks if row.wanted_tasks is not None else now.tasks,
            row.wanted_cpu if row.wanted_cpu is not None else now.cpu,
            row.wanted_ram if row.wanted_ram is not None else now.ram,
        )
        available = row.wanted_since is not None or wanted.tasks != now.tasks
        if available:
            saves = ListPrice(job).per_month(
                now.tasks * now.cpu - wanted.tasks * wanted.cpu, now.tasks * now.ram - wanted.tasks * wanted.ram
            )
    versions = JobSpec.objects.filter(job=job, actor=AUTOSCALER.name).order_by("-version")[:MOST_CHANGES]
    pairs = _with_before(job, list(versions))
    rules, rejections = job_spec.autoscale or Autoscale(), _rejections(row) if row is not None else []
    return Recommendation(rules, now, wanted, available, saves, row, pairs, rejections)


def _rejections(row: JobAutoscaling) -> list[RejectedChange]:
    return [
        RejectedChange(
            of, getattr(row, one.code), getattr(row, one.detail), since, if_future(getattr(row, one.retry_at))
        )
        for of, one in (("tasks", TASKS), ("limits", LIMITS))
        if (since := getattr(row, one.since)) is not None
    ]


def if_future(at: dt.datetime | None) -> dt.datetime | None:
    """Return a time if it has not come yet."""
    return None if at is None or at <= timezone.now() else at


def _with_before(job: Job, versions: list[JobSpec]) -> list[dict[str, Any]]:
    """Return each version with the values before and after it, newest first."""
    earlier = {row.version: row for row in versions}
    missing = [row.version - 1 for row in versions if row.version - 1 not in earlier]
    earlier |= {row.version: row for row in JobSpec.objects.filter(job=job, version__in=missing)}
    values = {version: stored_values(row.spec) for version, row in earlier.items()}
    return [
        {
            "version": row.version,
            "at": row.created_at,
            "before": values[row.version - 1]._asdict() if row.version - 1 in values else None,
            "after": values[row.version]._asdict(),
        }
        for row in versions
    ]
