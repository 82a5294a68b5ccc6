"""Restarts a service: the running tasks of all of its jobs, or of some of them, a few tasks of each job at a time."""

from __future__ import annotations

from collections.abc import Iterable

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.jobs.actions.restart import job_restart
from scheduling.jobs.health import health_of
from scheduling.models import Cell, Job
from scheduling.services.outcomes import Change, JobChange, ServiceChange
from scheduling.services.selectors import is_owned, left_alone, service_to_change

_NO_CHANGE = ("nothing-to-restart",)


def service_restart(
    *, principal: Principal, cell: Cell, tenant: str, name: str, jobs: Iterable[str] = (), dry_run: bool = False
) -> ServiceChange:
    """Restart the running tasks of the live jobs of a service, a few tasks of each job at a time. A job whose restart
    is still in progress is left alone. `jobs`: as in `service_stop`.

    Raises `NotFound` if the service does not exist, and `Rejected` if it has too many jobs. Locks: the cell's row, once
    per job.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    service = service_to_change(principal, cell, tenant, name)
    chosen = service.chosen(jobs)
    changes = [
        JobChange(job=row.job.name, change=Change.UNCHANGED, detail="the job is stopped; start the service first")
        for row in service.stopped
        if row.job.name in chosen
    ]
    for job in service.jobs:
        if job.name in chosen:
            changes.append(left_alone(job) if is_owned(job) else _restarted(principal, job, dry_run=dry_run))
    return ServiceChange.of(service.full_name, changes)


def _restarted(principal: Principal, job: Job, *, dry_run: bool) -> JobChange:
    update = health_of(job).update
    if update is not None and update.restarts:
        return JobChange(job=job.name, change=Change.UNCHANGED, detail="its restart is in progress")
    try:
        done = job_restart(principal=principal, job=job, dry_run=dry_run)
    except Rejected as problem:
        if problem.code in _NO_CHANGE:
            return JobChange(job=job.name, change=Change.UNCHANGED, detail="no task runs")
        return JobChange(job=job.name, change=Change.REFUSED, problem=problem)
    return JobChange(
        job=job.name, change=Change.RESTARTED, tasks=done.tasks, detail=f"at most {done.max_down} down at once"
    )
