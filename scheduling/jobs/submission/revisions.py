"""Revisions of jobs: a request can insist that a job is still as its plan showed it."""

from __future__ import annotations

from quota.vocabulary.errors import Rejected
from scheduling.models import Job

# The revision of a name that no live job has.
NEW = "new"
_UID_DIGITS = 12


def revision_of(job: Job | None) -> str:
    """Return the revision of a live job, or "new" if `job` is None. It changes with each version of the spec. A later
    job of the same name never has it.
    """
    return NEW if job is None else f"{job.uid.hex[:_UID_DIGITS]}-{job.spec_version}"


def check_revision(job: Job | None, wanted: str, name: str) -> None:
    """Raise `Rejected` (412) if the revision of `job` is not `wanted`. The arguments: as in `revision_refusal`."""
    if problem := revision_refusal(job, wanted, name):
        raise problem


def revision_refusal(job: Job | None, wanted: str, name: str) -> Rejected | None:
    """Return the rejection (412) of a change if the revision of `job` is not `wanted`. An empty `wanted` accepts every
    revision.

    `job`: the live job, or None if there is none. `name`: the name of the job, for the error message.
    """
    found = revision_of(job)
    now = "no live job has this name now" if job is None else f"the job has revision {found} now"
    return refusal(f"job {name}", wanted, found, now)


def refusal(what: str, wanted: str, found: str, now: str) -> Rejected | None:
    """Return the rejection (412) of a change of `what` if its revision `found` is not `wanted`. `now`: a clause that
    says what is found.
    """
    if wanted in ("", found):
        return None
    return Rejected(
        "revision-changed",
        f"cannot change {what}: the request is for revision {wanted[:80]}, but {now}; look at the plan again, and"
        " repeat the request with the revision of the new plan",
        fields={"If-Match": f"the revision is {found}"},
        figures={"revision": found},
        status=412,
    )
