"""Submission of jobs and the decision to accept or reject each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quota.admission import admission
from quota.models import Tenant
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.models import Job
from scheduling.spec import job_spec as spec


@dataclass(frozen=True, slots=True)
class Submission:
    """The verdict on one submitted job. `outcome`: submitted, updated, unchanged (it is live already), rejected."""

    name: str
    tenant: str
    outcome: str
    job: Job | None = None
    problem: Rejected | None = None


@dataclass(slots=True, eq=False)
class Item:
    """One job of a submission by `principal`. `size` tasks are created with it, and the others by an update.

    `submission_key`: the client's own; the same key submits once.
    """

    principal: Principal
    spec: spec.JobSpecification
    tenant: Tenant
    digest: str
    size: int
    verdict: Submission | None = None
    job: Job | None = None
    packages: dict[str, Any] = field(default_factory=dict)  # `JobSpec.packages`
    inside: int | Item | None = None  # its alloc set: the id of a live job, or one on its way in with it
    submission_key: str = ""

    @property
    def key(self) -> tuple[int, str]:
        return (self.tenant.id, self.spec.name)

    @property
    def keys(self) -> set[tuple[int, str, str]]:
        """What no other submission of the same transaction may have, because the second must see the first."""
        keys = {(self.tenant.id, "name", self.spec.name)}
        return keys | {(self.tenant.id, "key", self.submission_key)} if self.submission_key else keys

    def ask(self) -> admission.AdmissionRequest:
        return admission.AdmissionRequest(self.tenant.id, self.tenant.name, self.spec.priority, self.spec.charged())

    def reset(self) -> None:
        """Undo what a transaction that was rolled back has set."""
        self.verdict = self.job = self.inside = None

    def refuse(self, problem: Rejected) -> None:
        self.verdict = Submission(self.spec.name, self.spec.tenant, "refused", problem=problem)
