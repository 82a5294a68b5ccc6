"""Changes of `after` by an update of a live job: names can only be removed."""

from __future__ import annotations

from collections.abc import Mapping

from quota.vocabulary.errors import invalid
from scheduling.jobs.dependencies.release import jobs_release
from scheduling.journal import journal
from scheduling.models import Job, JobDependency


def check_after(before: Mapping[str, str], after: Mapping[str, str], job: Job) -> None:
    """Raise `Rejected` if the new spec waits for a job for which the current spec does not wait. The names were looked
    up when the job was submitted, and the same name may belong to another job now.
    """
    for name, goal in after.items():
        if before.get(name) == goal:
            continue
        cure = (
            "kill this job and submit it again"
            if job.waiting
            else "this job no longer waits for others, so remove this name, or submit another job"
        )
        detail = f"an update cannot let a job wait for {name} to be {goal}; {cure}"
        raise invalid(f"after.{name}", detail, "invalid-spec")


def dependencies_keep(entry: journal.JournalEntry, job: Job, after: Mapping[str, str]) -> None:
    """Close the open dependencies of a waiting job that are not in `after`. Release the job if none is left."""
    if not job.waiting:
        return
    JobDependency.objects.filter(job=job, open=True).exclude(name__in=list(after)).update(open=False)
    if jobs_release(entry, [job.id]):
        job.waiting = False
