"""Runs dead tasks again (`borgctl retry`).

a job that lives ─► its dead tasks are pending again; their quota was never released
a job that ended ─► the job is submitted again, with quota and a new UID, and the other tasks end at once as before
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import updates
from scheduling.jobs.actions.task_selection import Ranges, format_ranges, tasks_in
from scheduling.jobs.submission.outcomes import Submission
from scheduling.jobs.submit_and_kill import job_submit, spec_for
from scheduling.journal import journal
from scheduling.models import Job, Task
from scheduling.tasks import transitions

_FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Retry:
    """`job`: the job whose tasks run again; a new job if the old one has ended. `tasks`: how many tasks run again."""

    job: Job
    tasks: int


def job_retry(*, principal: Principal, job: Job, ranges: Ranges | None = None, dry_run: bool = False) -> Retry:
    """Run the failed tasks of a job again, or the dead tasks in `ranges`, even those that finished or were killed.

    If the job has ended, it is submitted again under the same name, and only these tasks run. A job of more than
    `journal.CHUNK` tasks that has ended cannot be retried.

    Raises `Rejected` if the job has no such task or the quota is too small for an ended job, and `Conflict` if no task
    can run again or a live job has the name. Locks: the cell's row, then the tenant's use of quota.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    if job.state == JobState.DEAD:
        return _submit_again(principal, job, ranges, dry_run=dry_run)
    number = 0
    while True:
        with journal.write(job.cell_id, principal) as entry:
            job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
            if job.state == JobState.DEAD:
                detail = f"cannot retry tasks of job {job.name}, because it has just ended; repeat the request"
                raise Conflict("job-ended", detail)
            chosen = _chosen(job, ranges)
            if not chosen and not number:
                raise _nothing(job, ranges)
            if dry_run:
                return Retry(job, len(chosen))
            by_version: dict[int, list[int]] = defaultdict(list)
            for index, version in chosen[: journal.CHUNK]:
                by_version[version].append(task_id(job.id, index))
            for version, ids in sorted(by_version.items()):
                number += len(transitions.tasks_revive(entry, ids, spec_version=version))
        if len(chosen) <= journal.CHUNK:
            return Retry(job, number)


def _submit_again(principal: Principal, job: Job, ranges: Ranges | None, *, dry_run: bool) -> Retry:
    chosen = _chosen(job, ranges)
    if not chosen:
        raise _nothing(job, ranges)
    if job.tasks_total > journal.CHUNK:
        raise Conflict(
            "too-many-tasks",
            f"cannot retry tasks of job {job.name}: it has ended, and its {job.tasks_total} tasks are more than the"
            f" {journal.CHUNK} that one transaction can submit; submit the job again",
            figures={"tasks": job.tasks_total, "most": journal.CHUNK},
        )
    file = updates.spec_of(job).to_json()
    if job.start_after is not None and job.start_after <= timezone.now():
        file.pop("start_after")
    if not job.waiting:
        file.pop("after", None)
    # The job file is read like a new one, so that values which the archive has masked are rejected.
    job_spec = spec_for(principal=principal, cell=job.cell, file=file, tenant=job.tenant.name, name=job.name)
    if dry_run:
        done = job_submit(principal=principal, cell=job.cell, job_spec=job_spec, dry_run=True, earlier=True)
        if done.outcome != "submitted":
            raise _name_taken(job.name)
        return Retry(job, len(chosen))
    problem: Rejected | None = None
    with transaction.atomic():
        try:
            done = job_submit(principal=principal, cell=job.cell, job_spec=job_spec, earlier=True)
        except Rejected as rejection:  # the journal keeps the event of the rejection
            problem = rejection
        else:
            new = _new_job(done)
            _end_others(principal, job, new, {index for index, _ in chosen})
    if problem is not None:
        raise problem
    return Retry(Job.objects.select_related("cell", "tenant").get(pk=new.pk), len(chosen))


def _new_job(done: Submission) -> Job:
    """Return the job of a submission. Raises `Conflict` if the submission found an equal live job instead."""
    if done.job is None or done.outcome != "submitted":
        raise _name_taken(done.name)
    return done.job


def _name_taken(name: str) -> Conflict:
    detail = (
        f"cannot retry job {name}, which has ended: a live job has its name; retry tasks of the live job, or kill it"
    )
    return Conflict("job-exists", detail)


def _end_others(principal: Principal, old: Job, new: Job, chosen: set[int]) -> None:
    """End the tasks of the new job that should not run. Their outcome is the one in the old job."""
    rows = Task.objects.filter(job=old, index__lt=new.tasks_total).order_by("index").values_list("index", "outcome")
    endings = [
        Ending(task_id(new.id, index), outcome or "killed", detail="ended before the job was retried")
        for index, outcome in rows
        if index not in chosen
    ]
    with journal.write(old.cell_id, principal) as entry:
        transitions.tasks_end(entry, endings)


def _chosen(job: Job, ranges: Ranges | None) -> list[tuple[int, int]]:
    """Return (index, version of the spec) of the tasks that run again. Tasks that an update removed are left out."""
    dead = tasks_in(job, ranges).filter(state=TaskState.DEAD.value, index__lt=updates.spec_of(job).tasks)
    if ranges is None:
        dead = dead.filter(outcome=_FAILED)
    return list(dead.order_by("index").values_list("index", "spec_version"))


def _nothing(job: Job, ranges: Ranges | None) -> Conflict:
    if ranges is None:
        cure = "name its dead tasks to run them again, such as 0, or 0-9"
        return Conflict("nothing-to-retry", f"no task of job {job.name} has failed; {cure}")
    detail = (
        f"cannot run tasks {format_ranges(ranges)} of job {job.name} again: none of them is dead, or the job now has"
        " fewer tasks; restart or scale the job instead"
    )
    return Conflict("nothing-to-retry", detail)
