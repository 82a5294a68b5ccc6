"""Changes the number of a job's tasks without a job file (`borgctl scale`). It is an update to the same spec with
another number of tasks.
"""

from __future__ import annotations

from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import VALUES
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import spec_limits
from scheduling.models import Job, Update
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.autoscaling.fields import AUTO


def job_scale(
    *, principal: Principal, job: Job, tasks: int, if_revision: str = "", dry_run: bool = False
) -> updates.JobChange:
    """Update a live job to its current spec with `tasks` tasks. A smaller number ends the tasks with the highest
    indexes.

    A job is not scaled while its update is paused, because this would bring the paused spec to all tasks. It is not
    scaled during a restart either, because this would end the restart.

    `if_revision`: the revision that the job must have; by default the one of `job`, so that an update which another
    request makes at the same time is not undone. Raises the same errors and takes the same locks as
    `updates.job_update`.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    return updates.job_update(
        principal=principal,
        job=job,
        job_spec=scaled_spec(job, tasks),
        if_revision=if_revision or revision_of(job),
        dry_run=dry_run,
        check=_check_open_update,
        source=VALUES,
    )


def _check_open_update(job: Job) -> None:
    """Raise `Conflict` if the update of the job is paused or tries canary tasks, or if tasks of the job are being
    restarted.
    """
    update = Update.objects.filter(job=job, state=Update.OPEN).first()
    if update is not None and update.canary and update.paused_at is None:
        detail = (
            f"cannot scale job {job.name}, because its update tries canary tasks, and scaling would end the trial; wait"
            " until they are promoted, or undo the update first"
        )
        raise Conflict("update-open", detail)
    if update is None or (update.paused_at is None and not update.restarts):
        return
    if update.restarts:
        how, first = ("paused", "Resume it, and wait") if update.paused_at is not None else ("in progress", "Wait")
        raise Conflict(
            "restart-open",
            f"cannot scale job {job.name}, because a restart of its tasks is {how}. {first} until the restart ends. Or"
            " update the job with a job file that has another number of tasks: this update ends the restart",
        )
    detail = f"cannot scale job {job.name}, because its update is paused; resume or undo the update first"
    raise Conflict("update-paused", detail)


def scaled_spec(job: Job, tasks: int) -> spec.JobSpecification:
    """Return the current spec of a job with `tasks` tasks. Raises `Rejected` if a job with this spec cannot have this
    number of tasks.
    """
    current = updates.spec_of(job)
    beyond = [override for override in current.overrides if override.last >= max(tasks, 1)]
    if beyond:
        least = beyond[-1].last + 1
        raise invalid(
            "tasks",
            f"{tasks} tasks are not possible, because the job file has settings for task {beyond[-1].last}"
            f" (overrides.{beyond[-1].key}); give at least {least}, or update the job with a job file without them",
        )
    horizontal = current.autoscale.horizontal if current.autoscale is not None else None
    if horizontal is not None and horizontal.mode == AUTO and not horizontal.min <= tasks <= horizontal.max:
        raise invalid(
            "tasks",
            f"{tasks} is outside of {horizontal.min} to {horizontal.max}, the bounds of the autoscaler, which would"
            " return to them; change autoscale.horizontal in the job file, or give a number inside",
        )
    limits = parser.CellLimits(
        max_tasks=spec_limits(job.cell).max_tasks, bands=None, extra=tuple(job.cell.extra_resources)
    )
    return parser.parse(current.to_json() | {"tasks": tasks}, limits=limits)
