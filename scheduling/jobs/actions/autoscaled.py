"""Jobs whose limits or number of tasks the autoscaler sets: what a job file means for them.

    job file ─► value as in the job file before? ── yes ─► the value that the autoscaler has set stays
                                                 └─ no ──► the value of the job file

So a job file from a Git repository can be applied again and again, and a person who changes a value wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from quota.vocabulary.resources import CPU, RAM, parse_quantity
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Cell, Job, JobAutoscaling, JobSpec
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.autoscaling.fields import AUTO, Autoscale
from scheduling.spec.task_spec import quantity_json


class ScaledValues(NamedTuple):
    """The values of a job that the autoscaler may change: the number of tasks, and the limits of a task."""

    tasks: int
    cpu: int
    ram: int


def values_of(job_spec: spec.JobSpecification) -> ScaledValues:
    return ScaledValues(job_spec.tasks, job_spec.base.limit[CPU], job_spec.base.limit[RAM])


def stored_values(stored: Mapping[str, Any]) -> ScaledValues:
    """Return the values in a stored spec, without reading the rest of it."""
    limit = stored["task"]["limit"]
    return ScaledValues(stored["tasks"], *(parse_quantity(name, limit.get(name, 0)) for name in ("cpu", "ram")))


def own_values(own: ScaledValues, seen: ScaledValues, now: ScaledValues) -> ScaledValues:
    """Return the values that a user set last. `own`: the same, when the autoscaler read the job last. `seen`: the
    values of the job at that time. `now`: its present values. A value that differs from `seen` was set by a user.
    """
    return ScaledValues(*(a if b == c else c for a, b, c in zip(own, seen, now, strict=True)))


def seen_values(row: JobAutoscaling) -> ScaledValues:
    return ScaledValues(row.tasks, row.cpu, row.ram)


def with_scaled_values(cell: Cell, job_spec: spec.JobSpecification) -> spec.JobSpecification:
    """Return the spec of a job file with the values that the autoscaler has set, where the job file has the same value
    as before. Makes at most two queries.
    """
    rules = job_spec.autoscale
    if rules is None:
        return job_spec
    jobs = JobAutoscaling.objects.select_related("job").exclude(job__state=JobState.DEAD.value)
    of_name = {"job__tenant__name": job_spec.tenant, "job__name": job_spec.name}
    row = jobs.filter(job__cell=cell, version__gt=0, **of_name).first()
    if row is None:
        return job_spec
    current = JobSpec.objects.values_list("spec", flat=True).get(job=row.job, version=row.job.spec_version)
    now = stored_values(current)
    own = own_values(ScaledValues(row.own_tasks, row.own_cpu, row.own_ram), seen_values(row), now)
    return with_values(job_spec, _kept(rules, own, now, values_of(job_spec)), cell)


def _kept(rules: Autoscale, own: ScaledValues, now: ScaledValues, given: ScaledValues) -> ScaledValues:
    kept = given
    if rules.horizontal is not None and rules.horizontal.mode == AUTO and given.tasks == own.tasks:
        kept = kept._replace(tasks=min(max(now.tasks, rules.horizontal.min), rules.horizontal.max))
    if rules.vertical is not None and rules.vertical.mode == AUTO:
        kept = kept._replace(
            cpu=now.cpu if given.cpu == own.cpu else given.cpu, ram=now.ram if given.ram == own.ram else given.ram
        )
    return kept


def with_values(job_spec: spec.JobSpecification, values: ScaledValues, cell: Cell) -> spec.JobSpecification:
    """Return the spec with other values. Raises `Rejected` if a job with this spec cannot have them."""
    if values == values_of(job_spec):
        return job_spec
    file = job_spec.to_json()
    limit = file["task"]["limit"] | {name: quantity_json(name, getattr(values, name)) for name in ("cpu", "ram")}
    file |= {"tasks": values.tasks, "task": file["task"] | {"limit": limit}}
    return parser.parse(file, limits=parser.CellLimits(bands=None, extra=tuple(cell.extra_resources)))


def autoscaling_create(jobs: Sequence[tuple[Job, spec.JobSpecification]]) -> None:
    """Create the rows of jobs that the autoscaler looks at. Makes no query if there are none."""
    rows = [JobAutoscaling(job=job) for job, job_spec in jobs if job_spec.autoscale is not None]
    if rows:
        JobAutoscaling.objects.bulk_create(rows, ignore_conflicts=True)
