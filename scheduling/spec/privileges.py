"""Options of a job file that need a capability (§2.5): `reclamation: false` and `whole_cores`.

An update needs the capability only if it adds such an option or asks for more whole cores than the version before.
"""

from __future__ import annotations

from quota.vocabulary.errors import Forbidden
from quota.vocabulary.permissions import CapabilityKind, Principal
from quota.vocabulary.resources import CPU
from scheduling.spec.job_spec import JobSpecification


def privilege_refusal(
    principal: Principal, cell: str, wanted: JobSpecification, before: JobSpecification | None = None
) -> Forbidden | None:
    """Return the rejection if the job needs a capability that `principal` does not have, else None. `before`: for an
    update, the version before it.
    """
    if not wanted.reclamation and (before is None or before.reclamation):
        cure = "remove `reclamation: false`"
        if refusal := _unless(principal, CapabilityKind.NO_RECLAMATION, cell, "reclamation", cure):
            return refusal
    if whole_cores_milli(wanted) > (0 if before is None else whole_cores_milli(before)):
        return _unless(principal, CapabilityKind.RESERVE_CORES, cell, "task.whole_cores", "remove `whole_cores`")
    return None


def whole_cores_milli(spec: JobSpecification) -> int:
    """Return the CPU that all tasks with `whole_cores` request together, in milli-cores."""
    return sum((last - first + 1) * task.limit[CPU] for first, last, task in spec.segments() if task.whole_cores)


def _unless(principal: Principal, kind: CapabilityKind, cell: str, field: str, otherwise: str) -> Forbidden | None:
    if principal.has(kind, cell):
        return None
    problem = Forbidden(
        kind,
        f"{field}: this option needs the capability {kind} in cell {cell}, which {principal.name} does not have;"
        f" ask the SREs for it on the tenant's page Capabilities, or {otherwise}",
    )
    problem.fields = {field: f"needs the capability {kind}"}
    return problem
