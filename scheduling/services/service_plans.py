"""The plan of a service: what job files would change in all of its jobs together (`borgctl service plan`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quota.admission.admission import AdmissionRequest
from quota.vocabulary.errors import NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.jobs.plan_quota import quota_sentences
from scheduling.jobs.plans import JobPlan, job_plan, quota_requests
from scheduling.jobs.submit_and_kill import live_job, spec_for
from scheduling.models import Cell
from scheduling.services.selectors import service_named
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.schema import SERVICE_LABEL

MOST_FILES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """What job files would change. `plans`: the plan of each file, in order. `unnamed`: live jobs of the service
    without a file, which stay. `quota`: sentences about the quota before and after all changes.
    """

    plans: tuple[JobPlan, ...]
    unnamed: tuple[str, ...]
    quota: tuple[str, ...]

    @property
    def problems(self) -> list[JobPlan]:
        return [plan for plan in self.plans if plan.problem is not None]


def service_plan(
    *, principal: Principal, cell: Cell, tenant: str, name: str, files: Sequence[Mapping[str, Any]]
) -> ServicePlan:
    """Return what these job files would change, if all of them were applied. The call changes nothing. The service need
    not exist yet.

    Each job is checked on its own; `quota` is the sum. Raises `Rejected` if a file is wrong, if its label `service` is
    another one, or if there are more than `MOST_FILES` files.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    if not 1 <= len(files) <= MOST_FILES:
        raise invalid("files", f"the request has {len(files)} job files; send 1 to {MOST_FILES}")
    try:
        live = {job.name for job in service_named(principal, cell, tenant, name).jobs}
    except NotFound:
        live = set()
    specs = [_spec(principal, cell, tenant, name, position, file) for position, file in enumerate(files)]
    names = [job_spec.name for job_spec in specs]
    if twice := next((one for one in names if names.count(one) > 1), ""):
        raise invalid("files", f"two files are of job {twice}; send one file per job")
    plans, asks = [], list[AdmissionRequest]()
    for job_spec in specs:
        plans.append(job_plan(principal=principal, cell=cell, job_spec=job_spec))
        asks += quota_requests(live_job(cell, job_spec), job_spec)
    unnamed = tuple(sorted(live - set(names)))
    banded = [plan for plan in plans if plan.problem is not None and plan.problem.code == "no-band"]
    return ServicePlan(plans=tuple(plans), unnamed=unnamed, quota=() if banded else quota_sentences(cell.name, asks))


def _spec(
    principal: Principal, cell: Cell, tenant: str, name: str, position: int, file: Mapping[str, Any]
) -> JobSpecification:
    try:
        job_spec = spec_for(principal=principal, cell=cell, file=file, tenant=tenant)
    except Rejected as problem:
        fields = {f"files.{position}.{field}": text for field, text in problem.fields.items()}
        detail = f"file {position + 1}: {problem.detail}"
        raise Rejected(problem.code, detail, fields=fields, figures=problem.figures, status=problem.status) from None
    if (found := job_spec.labels.get(SERVICE_LABEL, "")) != name:
        what = f"the label is {found!r}" if found else "the label is missing"
        raise invalid(
            f"files.{position}.labels.{SERVICE_LABEL}",
            f"{what}; write {SERVICE_LABEL}: {name} for a job of this service",
        )
    return job_spec
