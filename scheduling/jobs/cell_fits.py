"""Compares cells for a job file: how many of its tasks would fit in each cell now (`borgctl fit`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quota.admission import admission
from quota.vocabulary.bands import Band
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access import selectors
from scheduling.jobs.fit_guidance import Guidance, guidance
from scheduling.jobs.submit_and_kill import spec_limits
from scheduling.models import Cell
from scheduling.spec import parser
from scheduling.spec.job_spec import JobSpecification

MOST_CELLS = 200


@dataclass(frozen=True, slots=True)
class CellFit:
    """How many tasks of a job file fit in a cell now. `tasks`: the number of tasks in the job file. `fits`: the result
    for each kind of equal tasks. `problem`: why there is no result, or "".
    """

    cell: Cell
    tasks: int = 0
    fits: tuple[Guidance, ...] = ()
    problem: str = ""

    @property
    def room(self) -> int:
        """Return how many tasks fit now, for the kind of tasks of which the fewest fit."""
        return min((fit.shapes.room for fit in self.fits), default=0)


@dataclass(frozen=True, slots=True)
class CellFits:
    """The results for the first `MOST_CELLS` cells, best cell first. `left_out`: how many more cells the caller may see
    that were not looked at.
    """

    cells: list[CellFit]
    left_out: int = 0


def cell_fits(principal: Principal, file: bytes | Mapping[str, Any]) -> CellFits:
    """Return for each cell that the caller may see how many tasks of the job file fit on its machines now, without
    preemption. The cell in which most tasks fit comes first. If the caller may see more than `MOST_CELLS` cells, the
    result says how many cells are left out. Quota and packages are not checked, and nothing changes.

    A cell in the file does not matter. The tenant in the file, or the only tenant of the caller, decides which machine
    pools count. Raises `Rejected` if the content is not JSON. If a cell would
    reject the job file, its result names the problem. Makes two queries.
    """
    read = parser.decode(file)
    tenant = _tenant(principal, read)
    if isinstance(read, Mapping):
        read = {**read, "cell": "", "tenant": ""}
    bands = admission.bands()
    rows = list(selectors.cells_visible(principal).filter(study_of__isnull=True))
    specs: dict[tuple[str, ...], JobSpecification | Rejected] = {}
    found: list[CellFit] = []
    for cell in rows[:MOST_CELLS]:
        resources = tuple(cell.extra_resources)
        if resources not in specs:
            specs[resources] = _parsed(read, spec_limits(cell, bands))
        found.append(_fit(cell, specs[resources], bands, tenant))
    found.sort(key=lambda fit: (bool(fit.problem), -fit.room, fit.cell.name))
    return CellFits(found, len(rows) - len(found))


def _tenant(principal: Principal, read: Any) -> str:
    """Return the tenant of a job file that the caller may see, or the caller's only tenant, or ""."""
    named = read.get("tenant") if isinstance(read, Mapping) else None
    if isinstance(named, str) and named and may(principal, Action.TENANT_VIEW, tenant=named):
        return named
    own = list(principal.roles) if principal.tenant is None else [principal.tenant]
    return own[0] if len(own) == 1 and not named else ""


def _parsed(file: Any, limits: parser.CellLimits) -> JobSpecification | Rejected:
    """Return the spec, or why a cell with these limits would reject the file."""
    try:
        return parser.parse(file, limits=limits)
    except Rejected as problem:
        return problem


def _fit(cell: Cell, job_spec: JobSpecification | Rejected, bands: Sequence[Band], tenant: str) -> CellFit:
    if isinstance(job_spec, Rejected):
        return CellFit(cell, problem=job_spec.detail)
    if job_spec.alloc_set:
        return CellFit(
            cell, job_spec.tasks, problem="the tasks run inside an alloc set, so look at the alloc set instead"
        )
    fits = tuple(guidance(cell, job_spec, bands, tenant=tenant))
    problem = "" if fits else "the cell has no machine, or its master does not run; ask an SRE"
    return CellFit(cell, job_spec.tasks, fits, problem)
