"""Helpers of the tests of cron jobs."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils import timezone

from quota.vocabulary.permissions import Principal
from scheduling.cron import cron_jobs
from scheduling.models import Cell, CronJob, CronRun, Job
from tests.integration import world


def a_cron_file(name: str = "nightly", **changes: Any) -> dict[str, Any]:
    """Return a job file of a cron job that runs every minute. `job`: changes of its job."""
    job = {**world.a_file(), "priority": 0, **changes.pop("job", {})}
    for field in ("name", "tenant", "cell"):
        job.pop(field, None)
    return {"kind": "CronJob", "name": name, "tenant": "ubar", "schedule": "* * * * *", "job": job, **changes}


def apply(who: Principal, cell: Cell, name: str = "nightly", **changes: Any) -> CronJob:
    spec = cron_jobs.cron_spec_for(principal=who, cell=cell, file=a_cron_file(name, **changes))
    return cron_jobs.cron_apply(principal=who, cell=cell, spec=spec).cron_job


def due(row: CronJob, *, ago_s: float = 1.0) -> dt.datetime:
    """Change the row as if a run had become due `ago_s` seconds ago. Return this due time."""
    at = timezone.now() - dt.timedelta(seconds=ago_s)
    CronJob.objects.filter(pk=row.pk).update(next_at=at)
    return at


def runs(row: CronJob) -> list[tuple[str, str]]:
    """Return (outcome, code) of the runs of a cron job, oldest first."""
    return list(CronRun.objects.filter(cron_job=row).order_by("due_at").values_list("outcome", "code"))


def jobs_of(row: CronJob) -> list[Job]:
    return list(Job.objects.filter(labels__cron=row.name, tenant=row.tenant).order_by("id"))
