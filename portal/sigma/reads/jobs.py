"""Queries of jobs, tasks and updates for pages."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.db.models import F, Q, QuerySet

from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may
from scheduling.access.selectors import STILL_STOPPING, job_update_shown
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.health import with_health
from scheduling.models import Job, Task, Update

# The most jobs whose health one page computes. Only jobs with a task that is not up are counted.
MOST_LOOKED_AT = 1000


@dataclass(frozen=True, slots=True)
class UpdateProgress:
    """The progress of an update. `followed`: the live tasks that have the new version; `total`: all live tasks."""

    update: Update
    followed: int
    total: int

    @property
    def percent(self) -> int:
        return round(100 * self.followed / self.total) if self.total else 100


def jobs_visible(principal: Principal) -> QuerySet[Job]:
    """Return the jobs of all cells that the principal may see."""
    rows = Job.objects.select_related("cell", "tenant")
    if Scope.READ not in principal.scopes:
        return rows.none()
    if principal.tenant is not None:
        rows = rows.filter(tenant__name=principal.tenant)
    if principal.sre or principal.has(CapabilityKind.ANY_JOB, ""):
        return rows
    cells = [cell for kind, cell in principal.capabilities if kind is CapabilityKind.ANY_JOB]
    return rows.filter(Q(tenant__name__in=list(principal.roles)) | Q(cell__name__in=cells))


def failing_by_tenant(principal: Principal, tenant_ids: Sequence[int]) -> Counter[int]:
    """Return the number of failing live jobs per tenant, among the newest `MOST_LOOKED_AT` jobs. Makes two queries."""
    rows = jobs_visible(principal).filter(tenant__in=tenant_ids, tasks_up__lt=F("tasks_total"))
    found = with_health(rows.exclude(state=JobState.DEAD.value).order_by("-id")[:MOST_LOOKED_AT])
    return Counter(job.tenant_id for job in found if job.health.state is JobHealth.FAILING)  # type: ignore[attr-defined]


def job_named(principal: Principal, cell: str, tenant: str, name: str, *, uid: str = "") -> Job:
    """Return the job with this name and this `uid`. Raises `NotFound` if there is none, or the caller may not see it.

    Without `uid`, return the live job with this name, or the job with this name that ended last.
    """
    full = f"{cell}/{tenant}/{name}"
    if not may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell):
        raise NotFound("job", full)
    rows = Job.objects.select_related("cell", "tenant").filter(cell__name=cell, tenant__name=tenant, name=name)
    if uid:
        try:
            rows = rows.filter(uid=uuid.UUID(uid))
        except (ValueError, ValidationError):
            raise NotFound("job", f"{full} (uid {uid[:40]})") from None
    job = rows.order_by(F("ended_at").desc(nulls_first=True), "-id").first()
    if job is None:
        raise NotFound("job", full)
    return job


def tasks_of(job: Job, *, state: str = "") -> QuerySet[Task]:
    """Return the tasks of a job by index, each with its `departures`.

    `state`: only tasks in this state. `up`: tasks that run and are up. `placed`: tasks that run but are not up yet.
    """
    rows = Task.objects.filter(job=job).select_related("machine").prefetch_related(STILL_STOPPING).order_by("index")
    if state == "up":
        return rows.filter(up=True)
    if state == "placed":
        return rows.filter(state="running", up=False)
    return rows.filter(state=state) if state else rows


def tasks_by_id(ids: Sequence[int]) -> list[Task]:
    """Return the tasks with these ids, sorted by task index. Related rows are loaded as in `tasks_of`. This makes at
    most three queries.
    """
    rows = Task.objects.filter(id__in=ids).select_related("machine").prefetch_related(STILL_STOPPING)
    return list(rows.order_by("index"))


def update_progress(job: Job) -> UpdateProgress | None:
    """Return the progress of the newest update of a job, or None if the job had no update. Makes two queries."""
    update = job_update_shown(job)
    if update is None:
        return None
    if update.state != Update.OPEN:
        return UpdateProgress(update, 0, 0)
    alive = Task.objects.filter(job=job).exclude(state="dead")
    total = job.tasks_total - job.tasks_dead
    return UpdateProgress(update, alive.filter(spec_version=update.to_version).count(), total)


def namesakes(job: Job) -> list[Job]:
    """Return the ten newest other jobs of the same name, newest first."""
    rows = Job.objects.filter(cell_id=job.cell_id, tenant_id=job.tenant_id, name=job.name)
    return with_health(rows.exclude(pk=job.pk).order_by("-id")[:10])
