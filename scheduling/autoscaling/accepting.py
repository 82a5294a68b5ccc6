"""Sets the recommended values of a job when a person accepts them (`borgctl autoscale accept`)."""

from __future__ import annotations

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.autoscaling.changes import no_open_update
from scheduling.autoscaling.selectors import recommendation_of
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import with_values
from scheduling.jobs.submission.revisions import revision_of
from scheduling.models import Job
from scheduling.spec import job_spec as spec


def accepted_spec(job: Job) -> spec.JobSpecification:
    """Return the spec of a job with the recommended values. Raises `Conflict` if nothing is recommended."""
    found = recommendation_of(job)
    if not found.available:
        detail = (
            f"nothing is recommended for job {job.name} now; `borgctl autoscale show {job.name}` says what is known"
        )
        raise Conflict("no-recommendation", detail)
    return with_values(updates.spec_of(job), found.wanted, job.cell)


def recommendation_accept(
    *, principal: Principal, job: Job, job_spec: spec.JobSpecification, dry_run: bool = False, if_revision: str = ""
) -> updates.JobChange:
    """Update a job to `job_spec`, the result of `accepted_spec`. Raises the same errors and takes the same locks as
    `updates.job_update`.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    return updates.job_update(
        principal=principal,
        job=job,
        job_spec=job_spec,
        dry_run=dry_run,
        reason="the recommendation of the autoscaler was accepted",
        if_revision=if_revision or revision_of(job),
        check=no_open_update,
    )
