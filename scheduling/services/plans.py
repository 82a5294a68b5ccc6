"""What a submission or an update would do, without doing it (DESIGN §14: `borgctl plan`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from quota.errors import Refused
from quota.permissions import Action, Principal
from scheduling import spec
from scheduling.core.states import JobState
from scheduling.models import Cell, Job
from scheduling.services import jobs, updates
from scheduling.services.tenancy import require_tenant
from scheduling.taskspec import Change


@dataclass(frozen=True, slots=True)
class Share:
    """Some tasks of a job: how many, and their indexes as `[first, last]`, bounds included."""

    count: int = 0
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobPlan:
    """`action`: submit, update, or none when nothing would change. `problem`: why it would be refused.

    `tasks`: unchanged, in_place, restart, added, removed. `max_down`: of an update.
    """

    action: str
    version: int
    tasks: dict[str, Share] = field(default_factory=dict)
    max_down: int = 0
    problem: Refused | None = None


_NAMES = {Change.NONE: "unchanged", Change.IN_PLACE: "in_place", Change.RESTART: "restart"}


def job_plan(*, principal: Principal, cell: Cell, job_spec: spec.JobSpec) -> JobPlan:
    """Admission's verdict and the tasks concerned. Changes nothing; locks as the change would, for a moment."""
    require_tenant(principal, Action.JOB_WRITE, job_spec.tenant, cell.name)
    problem: Refused | None = None
    outcome = ""
    try:
        outcome = jobs.job_apply(principal=principal, cell=cell, job_spec=job_spec, dry_run=True).outcome
    except Refused as refusal:
        problem = refusal
    job = (
        Job.objects.select_related("cell")
        .filter(cell=cell, tenant__name=job_spec.tenant, name=job_spec.name)
        .exclude(state=JobState.DEAD.value)
        .first()
    )
    if job is None:
        tasks = {"added": Share(job_spec.tasks, ((0, job_spec.tasks - 1),))}
        return JobPlan("submit", 1, tasks, problem=problem)
    tasks = _tasks(updates.spec_of(job), job_spec)
    if outcome == "unchanged":
        return JobPlan("none", job.spec_version, tasks)
    return JobPlan("update", job.spec_version + 1, tasks, job_spec.max_down(), problem)


def _tasks(old: spec.JobSpec, new: spec.JobSpec) -> dict[str, Share]:
    ranges: dict[str, list[tuple[int, int]]] = {}
    for first, last, kind in spec.changes(old, new):
        ranges.setdefault(_NAMES[kind], []).append((first, last))
    if new.tasks > old.tasks:
        ranges["added"] = [(old.tasks, new.tasks - 1)]
    if new.tasks < old.tasks:
        ranges["removed"] = [(new.tasks, old.tasks - 1)]
    return {
        name: Share(sum(last - first + 1 for first, last in spans), tuple(spans))
        for name, spans in ranges.items()
    }
