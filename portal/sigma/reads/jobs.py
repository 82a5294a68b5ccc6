"""Queries of jobs, tasks and updates for pages."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import F, Model, Q, QuerySet
from django.utils import timezone

from quota.model_rows import read_models
from quota.models import Tenant
from quota.paging import MergedRows
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may
from scheduling.access.selectors import STILL_STOPPING, job_update_shown, may_study, only_archived, update_followers
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.states import JobState
from scheduling.history.archive.recall import recall, with_archived
from scheduling.jobs.health import with_health
from scheduling.models import ArchivedJob, Cell, CronJob, Job, JobTemplate, Task, Update, Workflow

# The most jobs whose health one page computes. Only jobs with a task that is not up are counted.
MOST_LOOKED_AT = 1000
ROLLBACK_SHOWN = dt.timedelta(days=3)
M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class UpdateProgress:
    """The progress of an update of a job. `followed`: the number of live tasks that have the new version of the spec.
    `total`: the number of all live tasks. `failed`: the update that this one rolls back; None if there is none.
    """

    update: Update
    followed: int
    total: int
    failed: Update | None = None

    @property
    def percent(self) -> int:
        return round(100 * self.followed / self.total) if self.total else 100


def jobs_visible(principal: Principal) -> QuerySet[Job]:
    """Return the jobs of all cells that the principal may see."""
    return _of_tenants(Job.objects.select_related("cell", "tenant"), principal)


def cron_jobs_visible(principal: Principal) -> QuerySet[CronJob]:
    """Return the cron jobs of all cells that the principal may see."""
    return _of_tenants(CronJob.objects.select_related("cell", "tenant"), principal)


def templates_visible(principal: Principal) -> QuerySet[JobTemplate]:
    """Return the templates of all cells that the principal may see."""
    return _of_tenants(JobTemplate.objects.select_related("cell", "tenant").defer("content"), principal)


def workflows_visible(principal: Principal) -> QuerySet[Workflow]:
    """Return the workflows of all cells that the principal may see."""
    return _of_tenants(Workflow.objects.select_related("cell", "tenant"), principal)


def operated_jobs_visible(principal: Principal) -> QuerySet[Job]:
    """Return the jobs of all cells except study cells and deleted cells that the principal may see. Jobs of these cells
    do not run.
    """
    return jobs_visible(principal).filter(cell__study_of__isnull=True, cell__deleted_at__isnull=True)


def archived_jobs_visible(principal: Principal) -> QuerySet[ArchivedJob]:
    """Return index entries of the archive: one for each job that only the archive contains and that the principal may
    see, in all cells.
    """
    return _of_tenants(only_archived(), principal)


def _of_tenants(rows: QuerySet[M], principal: Principal) -> QuerySet[M]:
    if Scope.READ not in principal.scopes:
        return rows.none()
    if not may_study(principal):
        rows = rows.filter(cell__study_of__isnull=True, cell__deleted_at__isnull=True)
    if principal.tenant is not None:
        rows = rows.filter(tenant__name=principal.tenant)
    if principal.sre or principal.has(CapabilityKind.ANY_JOB, ""):
        return rows
    cells = [cell for kind, cell in principal.capabilities if kind is CapabilityKind.ANY_JOB]
    return rows.filter(Q(tenant__name__in=list(principal.roles)) | Q(cell__name__in=cells))


def with_owners(jobs: Iterable[Job | ArchivedJob]) -> list[Job]:
    """Return the jobs with their cells and tenants loaded. Makes two queries. Jobs that are only in the archive are
    read from there.

    All jobs of a cell share one `Cell` object, and all jobs of a tenant share one `Tenant` object.
    """
    rows = with_archived(jobs)
    cells = Cell.objects.in_bulk({job.cell_id for job in rows})
    tenants = Tenant.objects.in_bulk({job.tenant_id for job in rows})
    for job in rows:
        job.cell, job.tenant = cells[job.cell_id], tenants[job.tenant_id]
    return rows


def uneven_jobs(principal: Principal, tenant_ids: Sequence[int]) -> list[Job]:
    """Return the live jobs of these tenants with a task that is not up, each with its health: the newest
    `MOST_LOOKED_AT` jobs, newest first. Cells and tenants are not loaded. Makes three queries.
    """
    rows = (
        operated_jobs_visible(principal)
        .select_related(None)
        .filter(tenant__in=tenant_ids, tasks_up__lt=F("tasks_total"))
    )
    return with_health(rows.exclude(state=JobState.DEAD.value).order_by("-id")[:MOST_LOOKED_AT])


def failing_ids(jobs: QuerySet[Job]) -> list[int]:
    """Return the ids of those of the jobs that are failing, among the newest `MOST_LOOKED_AT` live jobs with a task
    that is not up. Makes three queries.
    """
    rows = jobs.exclude(state=JobState.DEAD.value).filter(tasks_up__lt=F("tasks_total")).order_by("-id")
    found = with_health(rows[:MOST_LOOKED_AT])
    return [job.id for job in found if job.health.state is JobHealth.FAILING]  # type: ignore[attr-defined]


def job_named(principal: Principal, cell: str, tenant: str, name: str, *, uid: str = "") -> Job:
    """Return the job with this name and this `uid`. Raises `NotFound` if there is none, or the caller may not see it.

    Without `uid`, return the live job with this name. If no live job has the name, return the job that ended last,
    which may be only in the archive.
    """
    full = f"{cell}/{tenant}/{name}"
    if not may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell):
        raise NotFound("job", full)
    values = {"tenant": tenant, "name": name, "dead": JobState.DEAD.value}
    if uid:
        try:
            values["uid"] = str(uuid.UUID(uid))
        except ValueError:
            raise NotFound("job", f"{full} (uid {uid[:40]})") from None
    for found in read_models(Cell, "SELECT {columns} FROM scheduling_cell AS t WHERE name = %s", [cell]):
        if (found.study_of is not None or found.deleted_at is not None) and not may_study(principal):
            break
        job = _read_named(found, values)
        if job is None and recall(principal, found, tenant, name, uid=uid):
            job = _read_named(found, values)
        if job is not None:
            return job
    raise NotFound("job", full)


def _read_named(cell: Cell, values: Mapping[str, str]) -> Job | None:
    """Return the job with the UID in `values`. Without a UID, return the live job with the name in `values`, or else
    the job of this name that ended last. Return None if PostgreSQL has no such row. Makes at most two queries.
    """
    for which in [_OF_UID] if "uid" in values else [_LIVE, _LAST]:
        for job in read_models(Job, _NAMED + which, {**values, "cell": cell.id}, alias="j"):
            job.cell = cell
            job.tenant = Tenant.from_db(None, ("id", "name"), (job.tenant_id, values["tenant"]))
            return job
    return None


# These statements are SQL, because the ORM needs more time than PostgreSQL for a query of one row.
_NAMED = """
    SELECT {columns} FROM scheduling_job AS j JOIN quota_tenant AS t ON t.id = j.tenant_id
    WHERE j.cell_id = %(cell)s AND t.name = %(tenant)s AND j.name = %(name)s"""
_OF_UID = " AND j.uid = %(uid)s"
_LIVE = " AND j.state <> %(dead)s"
_LAST = " ORDER BY j.ended_at DESC NULLS FIRST, j.id DESC LIMIT 1"


def tasks_of(job: Job, *, state: str = "") -> QuerySet[Task]:
    """Return the tasks of a job, sorted by index. Machines and earlier placements that are still stopping are loaded
    too.

    `state`: return only tasks in this state. The value `up` means tasks that run and are up. The value `placed` means
    tasks that run but are not up yet.
    """
    rows = Task.objects.filter(job=job).select_related("machine").prefetch_related(STILL_STOPPING).order_by("index")
    if state == "up":
        return rows.filter(up=True)
    if state == "placed":
        return rows.filter(state="running", up=False)
    return rows.filter(state=state) if state else rows


def tasks_by_id(ids: Sequence[int]) -> list[Task]:
    """Return the tasks with these ids, sorted by index. Machines and earlier placements that are still stopping are
    loaded too. Makes at most three queries.
    """
    rows = Task.objects.filter(id__in=ids).select_related("machine").prefetch_related(STILL_STOPPING)
    return list(rows.order_by("index"))


def update_progress(job: Job) -> UpdateProgress | None:
    """Return the progress of the newest update of a job, or None if the job had no update. Makes at most three
    queries.
    """
    update = job_update_shown(job)
    if update is None:
        return None
    lately = timezone.now() - ROLLBACK_SHOWN
    before = Update.objects.filter(
        job=job, to_version=update.from_version, state=Update.ROLLED_BACK, ended_at__gte=lately
    )
    failed = before.order_by("-id").first() if update.undo else None
    if update.state != Update.OPEN:
        return UpdateProgress(update, 0, 0, failed)
    if update.restarts:
        return UpdateProgress(update, update_followers(update), update.tasks_to_replace)
    alive = Task.objects.filter(job=job).exclude(state="dead")
    total = job.tasks_total - job.tasks_dead
    return UpdateProgress(update, alive.filter(spec_version=update.to_version).count(), total, failed)


def namesakes(job: Job) -> list[Job]:
    """Return the ten newest other jobs that have the same name, newest first. A job that is only in the archive has
    only these fields: UID, name, outcome, and the times of its submission and its end.
    """
    same = {"cell_id": job.cell_id, "tenant_id": job.tenant_id, "name": job.name}
    rows = Job.objects.filter(**same).exclude(pk=job.pk)
    found = MergedRows(rows, only_archived().filter(**same), order="-id")[:10]
    return with_health(one.brief() if isinstance(one, ArchivedJob) else one for one in found)
