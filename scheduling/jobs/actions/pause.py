"""Pauses and resumes the update or the restart of a job. The row of the update has the state, so a new master respects
it too.
"""

from __future__ import annotations

import datetime as dt

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary import events
from scheduling.jobs import updates
from scheduling.jobs.rollouts.rollout import unready_canaries
from scheduling.journal import journal
from scheduling.models import Job, Update


def update_pause(*, principal: Principal, job: Job, dry_run: bool = False) -> Update:
    """Pause the open update of a job: no further task changes or restarts, and tasks that are down start again. Return
    the update. A paused update stays paused. Raises `Conflict` if the job is not being updated, or if the update is the
    one that creates the tasks of a large new job. Locks: the cell's row.
    """
    return _set(principal, job, paused=True, dry_run=dry_run)


def update_resume(*, principal: Principal, job: Job, dry_run: bool = False) -> Update:
    """Continue the paused update of a job. Return the update. Nothing happens if it is not paused. If the update waits
    for the promotion of its canary tasks, the other tasks change now. Raises `Conflict` if the job is not being
    updated. Takes the same locks as a step of an update.
    """
    update = _set(principal, job, paused=False, dry_run=dry_run)
    if not dry_run:
        updates.update_advance_job(job)
        update.refresh_from_db()
    return update


def _set(principal: Principal, job: Job, *, paused: bool, dry_run: bool) -> Update:
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    with journal.write(job.cell_id, principal) as entry:
        update = Update.objects.filter(job=job, state=Update.OPEN).first()
        if update is None:
            verb = "pause" if paused else "resume"
            detail = f"cannot {verb} an update of job {job.name}, because the job is not being updated; start one first"
            raise Conflict("no-open-update", detail)
        if paused and update.from_version == 0:
            detail = (
                f"cannot pause the update of job {job.name}, because it still creates the tasks of the new job; wait"
                " until all tasks exist, or kill the job"
            )
            raise Conflict("creation-open", detail)
        if (update.paused_at is not None) != paused and not dry_run:
            if update.paused_at is not None:
                _continue(update, pause=entry.time - update.paused_at)
            update.paused_at = entry.time if paused else None
            update.save(update_fields=["paused_at", "canary", "deadline_at"])
            entry.append(events.UpdatePaused(job_id=job.id, update_id=update.id, paused=paused))
    return update


def _continue(update: Update, *, pause: dt.timedelta) -> None:
    """Promote the canary tasks if a person has to do that, and all of them have the new version and are up. The time of
    the pause does not count for the deadline.
    """
    if update.deadline_at is not None:
        update.deadline_at += pause
    if update.canary and update.by_hand and not unready_canaries(update):
        update.canary = 0
