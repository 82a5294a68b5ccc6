"""Alloc sets and the jobs inside them (§2.4). This module checks jobs and changes of alloc sets.

    a job with `alloc_set` ─► alloc_sets_named ─► JobSubmitted.alloc_set ─► its tasks are placed in running allocs

An alloc is a task of a job of kind `alloc-set`. A task inside an alloc (an inner task) uses the alloc's limit instead
of the machine's capacity. It needs no quota, because the alloc set already uses quota for the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import F

from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.resources import NAMES, PORTS, describe
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.journal.sql import query
from scheduling.models import Cell, Job, JobSpec, Task
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.alloc_fit import misfits
from scheduling.spec.field_errors import rejection

KIND = "alloc-set"
_MOST_NAMED = 5  # jobs in a message


@dataclass(frozen=True, slots=True)
class AllocSet:
    """A live alloc set (a job whose tasks are allocs), with its current spec."""

    job_id: int
    spec: spec.JobSpecification


def still_there(allocs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return those pairs in `allocs` whose alloc still runs on the machine. A pair is (task id of the alloc, machine
    id).
    """
    wanted = set(allocs)
    if not wanted:
        return set()
    rows = Task.objects.filter(pk__in={alloc for alloc, _ in wanted}, state=TaskState.RUNNING.value)
    return wanted & set(rows.order_by().values_list("id", "machine_id"))


# -- admission


def alloc_sets_named(cell: Cell, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], AllocSet]:
    """Return the live alloc sets with these names, by (tenant id, name). Makes at most one query."""
    wanted = set(names)
    if not wanted:
        return {}
    rows = (
        JobSpec.objects.filter(
            job__cell=cell,
            job__kind=KIND,
            job__tenant_id__in={tenant for tenant, _ in wanted},
            job__name__in={name for _, name in wanted},
            version=F("job__spec_version"),
        )
        .exclude(job__state=JobState.DEAD.value)
        .values_list("job__tenant_id", "job__name", "job_id", "spec")
    )
    extra = tuple(cell.extra_resources)
    return {(tenant, name): AllocSet(job_id, parser.load(stored, extra=extra)) for tenant, name, job_id, stored in rows}


def refusal(job_spec: spec.JobSpecification, alloc_set: spec.JobSpecification | None) -> Rejected | None:
    """Return the rejection of a job that cannot run in its alloc set with the spec `job_spec`, or None if it can.
    `alloc_set`: the spec of the set, or None if there is no such set.
    """
    if alloc_set is None:
        detail = (
            f"tenant {job_spec.tenant} has no live alloc set {job_spec.alloc_set!r} in cell {job_spec.cell}; submit the"
            " alloc set first (kind: AllocSet), or remove alloc_set"
        )
        return invalid("alloc_set", detail, "no-such-alloc-set")
    problems = misfits(alloc_set, job_spec)
    return rejection(problems) if problems else None


# -- leaving and shrinking


def check_kill(job: Job, indexes: Sequence[int] | None) -> None:
    """Raise `Conflict` if live jobs run in an alloc set and the kill would remove its last alloc. The error names the
    jobs. `indexes`: the allocs to kill; None: all.
    """
    if job.kind != KIND:
        return
    left = Task.objects.filter(job=job).exclude(state=TaskState.DEAD.value)
    if indexes is not None and left.exclude(index__in=indexes).exists():
        return
    inside = [inner.name for inner in inner_jobs(job)]
    if inside:
        detail = f"the last alloc of a set cannot end while jobs are inside the set; kill {_listed(inside)} first"
        raise _in_use(job, inside, detail)


def check_change(job: Job, alloc_set: spec.JobSpecification) -> None:
    """Check that all jobs inside the alloc set `job` fit into its new spec `alloc_set`. Raises `Conflict` if a job does
    not fit; the error names these jobs.
    """
    if job.kind != KIND:
        return
    inside = inner_jobs(job)
    if not inside:
        return
    rows = JobSpec.objects.filter(job__in=inside, version=F("job__spec_version")).select_related("job")
    for row in rows.order_by("job_id"):
        problems = misfits(alloc_set, parser.load(row.spec, extra=alloc_set.extra))
        if problems:
            path, what = next(iter(problems.items()))
            detail = (
                f"job {row.job.name} inside the alloc set would no longer fit ({path}: {what}); update or kill this job"
                " first"
            )
            raise _in_use(job, [row.job.name], detail)
    held = _held(job)
    names = (*NAMES, *alloc_set.extra)
    for position, (used, room) in enumerate(zip(held, alloc_set.total, strict=False)):
        if position != PORTS and used > room:
            extra = alloc_set.extra
            detail = (
                f"the tasks inside the alloc set use {describe(position, used, extra=extra)} of {names[position]}, and"
                f" all allocs together would have {describe(position, room, extra=extra)}; make"
                f" {_listed([inner.name for inner in inside])} smaller first"
            )
            raise _in_use(job, [inner.name for inner in inside], detail)


def inner_jobs(job: Job) -> list[Job]:
    """Return the live jobs inside an alloc set, by name."""
    return list(Job.objects.filter(alloc_set=job).exclude(state=JobState.DEAD.value).order_by("name"))


def _held(job: Job) -> list[int]:
    """Return the sum of the limits of all tasks inside an alloc set, as a list with one amount per resource."""
    rows = query(
        'SELECT sum(r.amount)::bigint FROM scheduling_task AS i, unnest(i."limit") WITH ORDINALITY AS r(amount, n)'
        " WHERE i.alloc_id IN (SELECT id FROM scheduling_task WHERE job_id = %s AND state = 'running')"
        " GROUP BY r.n ORDER BY r.n",
        [job.id],
    )
    return [amount for (amount,) in rows]


def _in_use(job: Job, inside: list[str], detail: str) -> Conflict:
    text = f"alloc set {job.name}: {detail}"
    return Conflict("alloc-set-in-use", text, fields={"alloc_set": detail}, figures={"jobs": inside})


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more jobs" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
