"""Changes of config files that restart jobs. A new version opens a rolling restart of each job that asks for it with
`on_change: restart`, in the same transaction. Other jobs get the new version without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from django.db.models import F

from quota.models import Tenant
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.restarting_tasks import tasks_to_restart
from scheduling.access.tenant_permission import require_tenant
from scheduling.config_files import files, spec_uses
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.actions.restart import restart_open
from scheduling.journal.journal import JournalEntry
from scheduling.models import Job, JobSpec, Update
from scheduling.secrets.job_uses import UsingJob
from scheduling.spec import parser
from scheduling.spec.schema import LATEST

MOST_RESTARTS = 100


def config_put(
    *,
    principal: Principal,
    tenant: Tenant,
    name: str,
    content: bytes,
    comment: str = "",
    if_version: int | None = None,
    plain: bool = False,
    restart: bool = True,
) -> files.FileChange:
    """Write a new version of a config file, as `files.config_write` does, and restart the jobs that ask for it.
    `restart`: False restarts none; their tasks get the new version when they start next.

    Raises `Conflict` if one of these jobs cannot be restarted now. Then nothing changes.
    """
    return files.config_write(
        principal=principal,
        tenant=tenant,
        name=name,
        content=content,
        comment=comment,
        if_version=if_version,
        plain=plain,
        restarts=partial(_restart, principal, tenant, name) if restart else None,
    )


def config_rollback(
    *,
    principal: Principal,
    tenant: Tenant,
    name: str,
    version: int | None = None,
    comment: str = "",
    if_version: int | None = None,
    restart: bool = True,
) -> files.FileChange:
    """Write an old version of a config file again, as the newest one. `version`: None for the one before the newest.
    Otherwise like `config_put`.
    """
    return files.config_restore(
        principal=principal,
        tenant=tenant,
        name=name,
        version=version,
        comment=comment,
        if_version=if_version,
        restarts=partial(_restart, principal, tenant, name) if restart else None,
    )


def _restart(
    principal: Principal, tenant: Tenant, name: str, entries: Mapping[int, JournalEntry], users: Sequence[UsingJob]
) -> list[str]:
    """Open a restart of each job that asks for it. Return the jobs as CELL/JOB."""
    jobs = Job.objects.select_related("cell", "tenant", "alloc_set").filter(
        pk__in=[user.job_id for user in users if user.job_id and LATEST in user.versions]
    )
    rows = {job.pk: job for job in jobs.exclude(state=JobState.DEAD.value)}
    specs = JobSpec.objects.filter(job__in=rows, version=F("job__spec_version")).values_list("job_id", "spec")
    chosen: list[tuple[Job, list[tuple[int, int]]]] = []
    for job_id, stored in specs.order_by("job__cell_id", "job_id"):
        job = rows[job_id]
        read = parser.load(stored, extra=tuple(job.cell.extra_resources))
        if ranges := spec_uses.restarted_by(read, name):
            chosen.append((job, ranges))
    if len(chosen) > MOST_RESTARTS:
        detail = f"{len(chosen)} jobs restart when config file {name} changes, and one change restarts at most"
        cure = "write it without restarts (--no-restart), and restart the jobs with `borgctl restart`"
        raise Conflict("too-many-restarts", f"{detail} {MOST_RESTARTS}; {cure}", figures={"jobs": len(chosen)})
    restarted = []
    for job, ranges in chosen:
        require_tenant(principal, Action.JOB_WRITE, tenant.name, job.cell.name)
        try:
            restart_open(entries[job.cell_id], job, actor=principal.name, ranges=_with_open(job, ranges))
        except Conflict as problem:
            if problem.code == "nothing-to-restart":
                continue
            cure = "or write the file without restarts (--no-restart; REST: restart=false)"
            detail = f"config file {name} does not change: {problem.detail}; {cure}"
            raise Conflict(problem.code, detail, figures=problem.figures) from problem
        restarted.append(f"{job.cell.name}/{job.name}")
    return restarted


def _with_open(job: Job, ranges: list[tuple[int, int]]) -> list[tuple[int, int]] | None:
    """Return the ranges, and the tasks that an open restart of the job has not replaced yet, or None for all tasks. The
    new restart goes on with these tasks, because it ends the open one.
    """
    update = Update.objects.filter(job=job, state=Update.OPEN).exclude(restarts=[]).first()
    last = job.tasks_total - 1
    found = [(first, min(end, last)) for first, end in ranges if first <= last]
    if found == [(0, last)]:
        return None
    if update is None:
        return found
    left = tasks_to_restart(update).order_by("index").values_list("index", flat=True)
    outside = [(index, index) for index in left if not any(first <= index <= end for first, end in found)]
    return sorted([*found, *outside])
