"""Reads cron jobs and their history. The functions return only rows that the caller may see."""

from __future__ import annotations

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import OuterRef, QuerySet, Subquery, Sum

from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.label_filters import with_labels
from scheduling.access.selectors import of_tenants
from scheduling.cron import due_runs, overlaps
from scheduling.models import Cell, CronJob, CronRun, Job
from scheduling.spec.masking import masked


def cron_jobs_visible(principal: Principal, cell: Cell, *, tenant: str = "", selector: str = "") -> QuerySet[CronJob]:
    """Return the cron jobs of a cell, each with its last run. `selector`: a label selector."""
    rows = with_last_run(of_tenants(CronJob.objects.select_related("cell", "tenant"), principal, cell))
    if tenant:
        rows = rows.filter(tenant__name=tenant)
    return with_labels(rows, (), selector).order_by("id")


def with_last_run(rows: QuerySet[CronJob]) -> QuerySet[CronJob]:
    """Return the cron jobs with `last_outcome` and `last_due_at` of their last run, or None."""
    last = CronRun.objects.filter(cron_job=OuterRef("pk")).order_by("-due_at")
    return rows.annotate(
        last_outcome=Subquery(last.values("outcome")[:1]), last_due_at=Subquery(last.values("due_at")[:1])
    )


def cron_job_named(principal: Principal, cell: Cell, tenant: str, name: str) -> CronJob:
    """Return the cron job of this name. Raises `NotFound` if it does not exist or the caller may not see it."""
    row = cron_jobs_visible(principal, cell, tenant=tenant).filter(name=name).first()
    if row is None:
        raise NotFound("cron job", name)
    return row


def history_of(cron_job: CronJob) -> QuerySet[CronRun]:
    """Return the runs of a cron job, the newest first."""
    return CronRun.objects.filter(cron_job=cron_job).order_by("-due_at")


def tasks_running(cron_job: CronJob) -> int:
    """Return how many running tasks the live runs of a cron job have."""
    live = [job_id for job_id, _ in overlaps.live_runs([cron_job.pk]).get(cron_job.pk, [])]
    return Job.objects.filter(pk__in=live).aggregate(number=Sum("tasks_running"))["number"] or 0


def template_shown(principal: Principal, cron_job: CronJob) -> dict[str, Any]:
    """Return the job of a run. Values that look secret are masked if the caller may not change the cron job."""
    writes = may(principal, Action.JOB_WRITE, tenant=cron_job.tenant.name, cell=cron_job.cell.name)
    return cron_job.template if writes else masked(cron_job.template)


def next_times(cron_job: CronJob, number: int) -> list[dt.datetime]:
    """Return the next `number` due times of a cron job, in its time zone; none while it is suspended."""
    times: list[dt.datetime] = []
    at = cron_job.next_at
    while at is not None and len(times) < number:
        times.append(at.astimezone(ZoneInfo(cron_job.time_zone)))
        at = due_runs.next_time(cron_job.schedule, cron_job.time_zone, at)
    return times
