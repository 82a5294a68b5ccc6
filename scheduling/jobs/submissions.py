"""Jobs on their way in, and the verdicts on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from quota.admission import admission
from quota.models import Tenant
from quota.vocabulary.errors import Rejected
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
    """One job of a submission. `size` tasks are created with it, and the others by an update that adds them.

    `submission_key`: the client's own; the same key submits once.
    """

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

    def ask(self) -> admission.AdmissionRequest:
        return admission.AdmissionRequest(self.tenant.id, self.tenant.name, self.spec.priority, self.spec.charged())

    def refuse(self, problem: Rejected) -> None:
        self.verdict = Submission(self.spec.name, self.spec.tenant, "refused", problem=problem)
