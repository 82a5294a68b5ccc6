"""Data classes for submitted jobs and for their outcomes: submitted, updated, unchanged or refused."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

from quota.admission import admission
from quota.models import Tenant
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.models import Job
from scheduling.spec import job_spec as spec


@dataclass(frozen=True, slots=True)
class Submission:
    """The result of the submission of one job. `outcome`: submitted, updated, unchanged (an equal job is already
    live) or refused.
    """

    name: str
    tenant: str
    outcome: str
    job: Job | None = None
    problem: Rejected | None = None


@dataclass(frozen=True, slots=True)
class BoundDependency:
    """A job that a submitted job waits for. `goal`: a value of `JobGoal`. `on`: its id, or an item of the same
    submission, or None if it has ended. `uid`: its UID; None for an item. `reached`: whether it has already reached the
    goal.
    """

    name: str
    goal: str
    on: int | Item | None
    uid: uuid.UUID | None = None
    reached: bool = False


@dataclass(slots=True, eq=False)
class Item:
    """One job that `principal` submits. `size`: how many tasks are created together with the job. An update creates
    the other tasks later.

    `binds`: whether the job waits for the jobs in its `after`. `rejected_names`: (tenant, job name) of earlier jobs of
    the same request that were rejected; the items of a request share this set.

    `submission_key`: the idempotency key that the client chose, or "". `key_digest`: the digest of the job file that
    was sent with it. `if_revision`: the revision that the live job of this name must have (`submission.revisions`), or
    "". `earlier`: the spec was accepted before, so values in `env` that look like secrets are accepted.
    """

    principal: Principal
    spec: spec.JobSpecification
    tenant: Tenant
    digest: str
    size: int
    verdict: Submission | None = None
    job: Job | None = None
    packages: dict[str, Any] = field(default_factory=dict)  # `JobSpec.packages`
    inside: int | Item | None = None  # its alloc set: the id of a live job, or an item of the same submission
    dependencies: tuple[BoundDependency, ...] = ()  # of the jobs in `after`
    binds: bool = True
    rejected_names: set[tuple[str, str]] = field(default_factory=set)
    submission_key: str = ""
    key_digest: str = ""
    if_revision: str = ""
    earlier: bool = False

    @property
    def key(self) -> tuple[int, str]:
        """Return (tenant id, job name). Only one live job of a cell may have this tenant and name."""
        return (self.tenant.id, self.spec.name)

    @property
    def full_name(self) -> tuple[str, str]:
        return (self.spec.tenant, self.spec.name)

    @property
    def is_refused(self) -> bool:
        return self.verdict is not None and self.verdict.problem is not None

    @property
    def keys(self) -> set[tuple[int, str, str]]:
        """Return the keys of this submission: (tenant id, kind of key, job name or submission key). Two submissions
        that have a key in common must be written in different transactions.
        """
        keys = {(self.tenant.id, "name", self.spec.name)}
        return keys | {(self.tenant.id, "key", self.submission_key)} if self.submission_key else keys

    def ask(self) -> admission.AdmissionRequest:
        return admission.AdmissionRequest(self.tenant.id, self.tenant.name, self.spec.priority, self.spec.charged())

    def reset(self) -> None:
        """Clear the values that a transaction set before it was rolled back."""
        self.verdict = self.job = self.inside = None
        self.dependencies = ()

    def refuse(self, problem: Rejected) -> None:
        self.verdict = Submission(self.spec.name, self.spec.tenant, "refused", problem=problem)

    def answer(self, outcome: str, job: Job) -> None:
        """Set an existing job as the result of the submission. `outcome`: as in `Submission`."""
        self.verdict = Submission(self.spec.name, self.spec.tenant, outcome, job=job)

    def result(self) -> Submission:
        """Return the result of the submission. The outcome is `submitted` if no check has stored another outcome."""
        return self.verdict or Submission(self.spec.name, self.spec.tenant, "submitted", job=self.job)


def rejected_event(tenant: str, name: str, problem: Rejected) -> events.JobRejected:
    """Return the event of a rejected submission or update."""
    return events.JobRejected(
        tenant=tenant, name=name, code=problem.code, detail=problem.detail, figures=problem.figures
    )
