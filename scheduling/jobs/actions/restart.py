"""Restarts tasks of a job a few at a time (`borgctl restart`). A restart is an update that changes no spec: it evicts
the incarnations that run when it begins, and the scheduler places the tasks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.restarting_tasks import incarnation_ranges
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.jobs import updates
from scheduling.jobs.actions.task_selection import Ranges, format_ranges, tasks_in
from scheduling.journal import journal
from scheduling.models import Job, Update


@dataclass(frozen=True, slots=True)
class Restart:
    """A rolling restart. `tasks`: how many tasks it replaces. `max_down`: the largest number of tasks down at once."""

    tasks: int
    max_down: int


def job_restart(*, principal: Principal, job: Job, ranges: Ranges | None = None, dry_run: bool = False) -> Restart:
    """Replace the running tasks of a live job, or only those in `ranges`, under the limits of its updates and its
    disruption budget. Pending and dead tasks do not change. A restart of the job that is still open, even a paused one,
    ends as superseded.

    Raises `Rejected` if the job has no such task, and `Conflict` if the job has ended, is being updated to another
    spec, or may not restart so many tasks in one update. Locks: the cell's row. Each step of the restart then locks the
    cell's row and the tasks.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    with journal.write(job.cell_id, principal) as entry:
        job = Job.objects.select_related("cell", "tenant", "alloc_set").get(pk=job.pk)
        if job.state == JobState.DEAD:
            detail = f"cannot restart job {job.name}, because it has ended; `borgctl retry` runs its failed tasks again"
            raise Conflict("job-ended", detail)
        done = restart_open(entry, job, actor=principal.name, ranges=ranges, dry_run=dry_run)
    if not dry_run:
        updates.update_advance_job(job)
    return done


def restart_open(
    entry: journal.JournalEntry, job: Job, *, actor: str, ranges: Ranges | None = None, dry_run: bool = False
) -> Restart:
    """Open the restart of a live job, as `job_restart` does, in the revision `entry` of its cell. The master takes its
    steps after the commit. Raises the same errors.
    """
    running = tasks_in(job, ranges).filter(state=TaskState.RUNNING.value)
    found = list(running.order_by("index").values_list("index", "incarnation"))
    job_spec = updates.spec_of(job)
    _check(job, ranges, found, job_spec.update.max_disruptions)
    if not dry_run:
        updates.update_open(
            entry, job, from_version=job.spec_version, to_spec=job_spec, actor=actor, restarts=incarnation_ranges(found)
        )
    return Restart(len(found), updates.restart_max_down(job_spec))


def _check(job: Job, ranges: Ranges | None, found: Sequence[object], most: int) -> None:
    """Raise `Conflict` if the restart is not possible now. `found`: the tasks that would restart. `most`: how many
    tasks an update of the job may disrupt; 0: no limit.
    """
    which = f"tasks {format_ranges(ranges)} of job {job.name}" if ranges is not None else f"job {job.name}"
    update = Update.objects.filter(job=job, state=Update.OPEN, restarts=[]).first()
    if update is not None:
        if update.paused_at is not None:
            why = "an update of the job is paused; resume or undo it first"
        elif update.from_version:
            why = "an update of the job is in progress; wait until it ends, or undo it"
        else:
            why = "tasks of the job are still being created; wait until all exist"
        raise Conflict("update-open", f"cannot restart {which}, because {why}")
    if not found:
        detail = (
            f"cannot restart {which}, because no such task runs; pending tasks start as soon as they fit on a machine"
        )
        raise Conflict("nothing-to-restart", f"{detail}, and `borgctl retry` runs dead tasks again")
    if most and len(found) > most:
        raise Conflict(
            "too-many-disruptions",
            f"cannot restart {which}: {len(found)} tasks run, and the job file allows {most} disruptions per update"
            f" (update.max_disruptions); restart at most {most} tasks at a time, or raise this limit",
            figures={"tasks": len(found), "most": most},
        )
