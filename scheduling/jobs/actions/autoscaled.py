"""Jobs whose limits or number of tasks the autoscaler sets: what a job file means for them.

    job file ─► value as in the job file before? ── yes ─► the value that the autoscaler has set stays
                                                 └─ no ──► the value of the job file

So a job file from a Git repository can be applied again and again, and a person who changes a value wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import F

from quota.vocabulary.permissions import system
from quota.vocabulary.resources import CPU, RAM, parse_quantity
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Cell, Job, JobAutoscaling, JobSpec
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.autoscaling.fields import AUTO, Autoscale
from scheduling.spec.task_spec import quantity_json

AUTOSCALER = system("autoscaler")
# What an update comes from: a job file, or a change of single values.
FILE, VALUES = "file", "values"


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


def with_scaled_values(cell: Cell, specs: Sequence[spec.JobSpecification]) -> list[spec.JobSpecification]:
    """Return the specs of job files with the values that the autoscaler has set, where a job file has the value that a
    user set last. Makes one query, and none if no spec has rules.
    """
    names = {(one.tenant, one.name) for one in specs if one.autoscale is not None}
    if not names:
        return list(specs)
    live = JobSpec.objects.filter(job__cell=cell, version=F("job__spec_version"), job__autoscaling__isnull=False)
    found = live.exclude(job__state=JobState.DEAD.value).filter(
        job__tenant__name__in={tenant for tenant, _ in names}, job__name__in={name for _, name in names}
    )
    own = [f"job__autoscaling__own_{name}" for name in ScaledValues._fields]
    rows = {
        (tenant, name): (ScaledValues(*values), stored_values(stored))
        for tenant, name, stored, *values in found.values_list("job__tenant__name", "job__name", "spec", *own)
    }
    result = []
    for one in specs:
        own_and_now = rows.get((one.tenant, one.name)) if one.autoscale is not None else None
        result.append(one if own_and_now is None else _with_kept(one, *own_and_now, cell))
    return result


def with_kept_values(job: Job, job_spec: spec.JobSpecification) -> spec.JobSpecification:
    """Return the spec of a job file for a live job as `with_scaled_values` does. The caller has locked the cell."""
    row = JobAutoscaling.objects.filter(job=job).first() if job_spec.autoscale is not None else None
    if row is None:
        return job_spec
    current = JobSpec.objects.filter(job=job).order_by("-version").values_list("spec", flat=True)[0]
    own = ScaledValues(row.own_tasks, row.own_cpu, row.own_ram)
    return _with_kept(job_spec, own, stored_values(current), job.cell)


def with_values_since(job: Job, job_spec: spec.JobSpecification, version: int) -> spec.JobSpecification:
    """Return a spec that a person has made from the version `version` of a job, with the values that the autoscaler
    has set since, where the person did not change them.
    """
    if job_spec.autoscale is None or version == job.spec_version:
        return job_spec
    found = JobSpec.objects.filter(job=job, version__in=(version, job.spec_version)).values_list("version", "spec")
    stored = {of: stored_values(one) for of, one in found}
    return _with_kept(job_spec, stored[version], stored[job.spec_version], job.cell)


def changed_by_users(job: Job, version: int) -> bool:
    """Return whether the job has a version after `version` that the autoscaler did not make, or lacks this version."""
    versions = JobSpec.objects.filter(job=job)
    later = versions.filter(version__gt=version).exclude(actor=AUTOSCALER.name)
    return later.exists() or not versions.filter(version=version).exists()


def own_values_store(job: Job, own: ScaledValues, *, before: ScaledValues | None = None) -> None:
    """Store what a user has set: all values, or only those that differ from the values `before`."""
    columns = {
        f"own_{name}": value
        for name, value in own._asdict().items()
        if before is None or value != getattr(before, name)
    }
    if columns:
        JobAutoscaling.objects.filter(job=job).update(**columns)


def undone(job: Job, before: spec.JobSpecification, version: int) -> spec.JobSpecification:
    """Return the earlier spec `before` of a job, its version `version`, with the values that the autoscaler has set
    since. A value that a user has changed since returns to what it was before this change. In the modes of `before` in
    which the autoscaler does not set a value, it is that of `before`.
    """
    if before.autoscale is None:
        return before
    versions = JobSpec.objects.filter(job=job)
    by_users = list(
        versions.filter(version__gt=version).exclude(actor=AUTOSCALER.name).values_list("version", flat=True)
    )
    wanted = {job.spec_version, *by_users, *(one - 1 for one in by_users)}
    found = {of: stored_values(one) for of, one in versions.filter(version__in=wanted).values_list("version", "spec")}
    result = list(found[job.spec_version])
    for of in sorted(by_users, reverse=True):  # the first change by a user counts
        if (old := found.get(of - 1)) is not None:
            result = [a if a != b else c for a, b, c in zip(old, found[of], result, strict=True)]
    return _with_kept(before, values_of(before), ScaledValues(*result), job.cell)


def _with_kept(
    job_spec: spec.JobSpecification, own: ScaledValues, now: ScaledValues, cell: Cell
) -> spec.JobSpecification:
    assert job_spec.autoscale is not None
    return with_values(job_spec, _kept(job_spec.autoscale, own, now, values_of(job_spec)), cell)


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
    rows = []
    for job, job_spec in jobs:
        if job_spec.autoscale is not None:
            own = {f"own_{name}": value for name, value in values_of(job_spec)._asdict().items()}
            rows.append(JobAutoscaling(job=job, **own))
    if rows:
        JobAutoscaling.objects.bulk_create(rows, ignore_conflicts=True)
