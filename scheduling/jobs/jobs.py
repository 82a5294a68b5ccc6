"""Jobs: submitted, one or thousands at a time, and killed (§2.3). Changes of live jobs are `services.updates`.

files ─► parse ─► may they? ─► chunks of ≤ 5,000 tasks ─► lock the cell ─► names, quota ─► rows + events
           └──────────┴────────────── a verdict per job ──────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection

from quota.admission import admission
from quota.models import Tenant
from quota.vocabulary.bands import Band
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenancy import own_tenant, require_tenant
from scheduling.allocs import alloc_sets
from scheduling.brakes import confirmation
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.jobs import names, updates
from scheduling.jobs import quota_rejections as refusals
from scheduling.jobs.submission_checks import check_alloc_sets, check_keys, check_names, check_numbers, pin_packages
from scheduling.jobs.submission_rows import jobs_create, rejection_append
from scheduling.jobs.submissions import Item, Submission
from scheduling.journal import group_commit, journal
from scheduling.models import Cell, Job, Task
from scheduling.packages import pinning
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.privileges import privilege_refusal
from scheduling.tasks import counters, transitions
from scheduling.tasks.changes import Ending

# Jobs of one transaction at most, however few tasks they have.
JOBS_AT_ONCE = 1_000


def spec_limits(cell: Cell) -> parser.CellLimits:
    """Return the limits for job files in this cell."""
    return parser.CellLimits(
        max_tasks=min(settings.BORG_MAX_TASKS_PER_JOB, 1 << INDEX_BITS),
        bands=admission.bands(),
        extra=tuple(cell.extra_resources),
    )


def spec_for(
    *,
    principal: Principal,
    cell: Cell,
    file: bytes | Mapping[str, Any],
    tenant: str = "",
    name: str = "",
    limits: parser.CellLimits | None = None,
) -> spec.JobSpecification:
    """A job file read for this cell, tenant and name; what the file says must agree with them.

    Without a tenant anywhere, it is the only one the caller belongs to. Its packages are pinned to what their tags
    mean now. Raises `Rejected` naming the field.
    """
    job_spec = _read(principal, cell, file, tenant=tenant, name=name, limits=limits)
    return pinning.pinned_for(principal, cell, job_spec)


def _read(
    principal: Principal,
    cell: Cell,
    file: bytes | Mapping[str, Any],
    *,
    tenant: str,
    name: str,
    limits: parser.CellLimits | None,
) -> spec.JobSpecification:
    read = parser.parse(file, limits=limits or spec_limits(cell))
    for path, found, wanted in (
        ("cell", read.cell, cell.name),
        ("tenant", read.tenant, tenant),
        ("name", read.name, name),
    ):
        if found and wanted and found != wanted:
            raise Rejected(
                "invalid-spec",
                f"{path}: the file has {found!r} and the request has {wanted!r}; use the same value in both",
                fields={path: f"{found!r} is not {wanted!r}"},
            )
    owner = read.tenant or tenant or own_tenant(principal)
    job_spec = read.at(cell=cell.name, tenant=owner)
    names.check_lengths(job_spec)
    return job_spec


def job_submit(
    *, principal: Principal, cell: Cell, job_spec: spec.JobSpecification, key: str = "", dry_run: bool = False
) -> Submission:
    """A new job with all its tasks pending. An equal live job is left as it is.

    `key`: the same key of a tenant submits once, and answers with that job, dead or alive.
    Raises `Rejected` (quota, limits), `Conflict` when a different live job has the name or the key was used for another
    job, `NotFound` for a tenant the caller may not know. Locks: the cell's row, then the tenant's use of quota.
    """
    (verdict,) = _submit(principal, cell, [job_spec], key=key, dry_run=dry_run)
    if verdict.problem is not None:
        raise verdict.problem
    return verdict


def job_apply(
    *, principal: Principal, cell: Cell, job_spec: spec.JobSpecification, key: str = "", dry_run: bool = False
) -> Submission:
    """Submit the job if no live one has its name, or else update it to the spec. Idempotent.

    `key` is for the submission, as in `job_submit`. Raises and locks as `job_submit` and `updates.job_update`.
    """
    require_tenant(principal, Action.JOB_WRITE, job_spec.tenant, cell.name)
    job = (
        Job.objects.select_related("cell", "tenant")
        .filter(cell=cell, tenant__name=job_spec.tenant, name=job_spec.name)
        .exclude(state=JobState.DEAD.value)
        .first()
    )
    if job is None or (key and job.key == key and job.spec_version == 1):
        return job_submit(principal=principal, cell=cell, job_spec=job_spec, key=key, dry_run=dry_run)
    done = updates.job_update(principal=principal, job=job, job_spec=job_spec, dry_run=dry_run)
    return Submission(job_spec.name, job_spec.tenant, done.outcome, job=done.job)


def jobs_submit_bulk(
    *, principal: Principal, cell: Cell, files: Sequence[Any], tenant: str = "", dry_run: bool = False
) -> list[Submission]:
    """Submit many new jobs. Return a verdict for each, in order. A rejected job does not affect the others.

    Locks: the cell's row, then the tenants' uses of quota, for one chunk of about 5,000 tasks, 1,000 jobs at most,
    at a time. Raises `Rejected` when there are too many for one request.
    """
    if len(files) > settings.BORG_MAX_BULK_JOBS:
        raise Rejected(
            "too-many-jobs",
            f"the request has {len(files)} jobs; send at most {settings.BORG_MAX_BULK_JOBS} per request",
            figures={"jobs": len(files), "most": settings.BORG_MAX_BULK_JOBS},
            status=413,
        )
    limits = spec_limits(cell)
    # The master places the first of them while the next are read; a dry run is one transaction that is taken back.
    step = max(1, len(files)) if dry_run else JOBS_AT_ONCE
    parts = [files[first : first + step] for first in range(0, len(files), step)]
    return [
        verdict
        for part in parts
        for verdict in _submit_part(principal, cell, part, limits, tenant=tenant, dry_run=dry_run)
    ]


def _submit_part(
    principal: Principal, cell: Cell, files: Sequence[Any], limits: parser.CellLimits, *, tenant: str, dry_run: bool
) -> list[Submission]:
    read: list[spec.JobSpecification | Submission] = []
    for file in files:
        try:
            read.append(_read(principal, cell, file, tenant=tenant, name="", limits=limits))
        except Rejected as problem:
            name = str(file.get("name", ""))[:63] if isinstance(file, Mapping) else ""
            read.append(Submission(name, tenant, "refused", problem=problem))
    verdicts = iter(
        _submit(principal, cell, [s for s in read if isinstance(s, spec.JobSpecification)], dry_run=dry_run)
    )
    return [item if isinstance(item, Submission) else next(verdicts) for item in read]


def job_kill(
    *,
    principal: Principal,
    job: Job,
    indexes: Sequence[int] | None = None,
    reason: str = "",
    dry_run: bool = False,
    confirm: int | None = None,
) -> int:
    """Kill a job, or some of its tasks. Returns how many die by it: none when they are dead already.

    Tasks inside a killed alloc go back to the queue; raises `Conflict` for the last allocs of a set that live jobs
    are in, and with code `confirm` when more tasks run than may be stopped at once without saying their number.

    Locks: the cell's row, then the tasks in order of id, for 5,000 tasks at a time.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    tasks = Task.objects.filter(job=job).exclude(state=TaskState.DEAD.value)
    if indexes is not None:
        known = set(Task.objects.filter(job=job, index__in=indexes).values_list("index", flat=True))
        unknown = sorted(set(indexes) - known)
        if unknown:
            raise Rejected(
                "no-such-task",
                f"job {job.name} has no task {', '.join(map(str, unknown[:10]))}; it has {job.tasks_total} tasks",
                fields={"indexes": f"no such task: {unknown[:10]}"},
                status=404,
            )
        tasks = tasks.filter(index__in=indexes)
    running = tasks.filter(state=TaskState.RUNNING.value).count()
    confirmation.require(job.cell, running, confirm, what=f"kill tasks of {job.name}")
    if dry_run:
        alloc_sets.check_kill(job, indexes)
        return tasks.count()
    killed = 0
    detail = reason or f"killed by {principal.name}"
    while True:
        with journal.write(job.cell_id, principal) as entry:
            alloc_sets.check_kill(job, indexes)
            # Live tasks are read under the lock, because an update may add tasks until it has ended.
            living = list(tasks.order_by("id").values_list("id", flat=True)[: journal.CHUNK])
            if indexes is None:
                updates.update_close(entry, job.id, "the job is being killed")
            ended = transitions.tasks_end(entry, [Ending(task, "killed", detail=detail) for task in living])
            counters.jobs_end_if_over(entry, [job.id])
        killed += len(ended)
        if len(living) < journal.CHUNK:
            return killed


class _Rehearsal(Exception):
    """Roll a dry run back."""


@dataclass(slots=True)
class _Batch:
    items: list[Item] = field(default_factory=list)
    tasks: int = 0


def _submit(
    principal: Principal, cell: Cell, specs: Sequence[spec.JobSpecification], *, dry_run: bool, key: str = ""
) -> list[Submission]:
    refusals = {tenant: _refusal(principal, cell, tenant) for tenant in {s.tenant for s in specs}}
    found = Tenant.objects.raw("SELECT * FROM quota_tenant WHERE name = ANY(%s)", [list(refusals)])
    tenants = {row.name: row for row in found}
    items: list[Item | Submission] = []
    for job_spec in specs:
        problem = refusals[job_spec.tenant]
        if problem is None and job_spec.tenant not in tenants:
            problem = NotFound("tenant", job_spec.tenant)
        if problem is None:
            problem = names.reserved(job_spec.name) or privilege_refusal(principal, cell.name, job_spec)
        if problem is not None:
            items.append(Submission(job_spec.name, job_spec.tenant, "refused", problem=problem))
        else:
            size = min(job_spec.tasks, journal.CHUNK)
            items.append(
                Item(principal, job_spec, tenants[job_spec.tenant], job_spec.digest(), size, submission_key=key)
            )
    bands = admission.bands()
    for batch in _batches([item for item in items if isinstance(item, Item)], whole=dry_run):
        write = partial(_write, cell, bands=bands, dry_run=dry_run)
        if len(batch.items) == 1 and not dry_run and not connection.in_atomic_block:
            group_commit.of_cell(cell.id).write(batch.items[0], write)
            continue
        try:
            write(batch.items)
        except _Rehearsal:
            for item in batch.items:
                item.job = None
    _explain(principal, cell, [item for item in items if isinstance(item, Item)])
    done = [_verdict(item) if isinstance(item, Item) else item for item in items]
    for item in items:  # type: ignore[assignment]
        if isinstance(item, Item) and item.job is not None and item.size < item.spec.tasks:
            updates.update_advance_job(item.job)
    return done


def _explain(principal: Principal, cell: Cell, items: Sequence[Item]) -> None:
    """Add explanations after the locks were released."""
    refused = [
        (item.verdict.problem, item.ask())
        for item in items
        if item.verdict is not None and item.verdict.problem is not None
    ]
    refusals.explain(principal, cell, refused)


def _verdict(item: Item) -> Submission:
    return item.verdict or Submission(item.spec.name, item.spec.tenant, "submitted", job=item.job)


def _refusal(principal: Principal, cell: Cell, tenant: str) -> Rejected | None:
    try:
        require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    except Rejected as problem:
        return problem
    return None


def _batches(items: Sequence[Item], *, whole: bool) -> Iterator[_Batch]:
    """Yield batches of about one chunk of tasks, so that no transaction holds the cell's lock for long; `whole`: all
    in one.
    """
    batch = _Batch()
    for item in items:
        if batch.items and batch.tasks + item.size > journal.CHUNK and not whole:
            yield batch
            batch = _Batch()
        batch.items.append(item)
        batch.tasks += item.size
    if batch.items:
        yield batch


def _write(cell: Cell, items: Sequence[Item], *, bands: Sequence[Band], dry_run: bool) -> None:
    """Write one revision. The number of statements does not depend on the number of jobs."""
    with journal.write(cell.id, items[0].principal) as entry:
        check_keys(cell, items)
        pin_packages(cell, [item for item in items if item.verdict is None])
        check_names(cell, [item for item in items if item.verdict is None])
        check_numbers([item for item in items if item.verdict is None])
        asking = [item for item in items if item.verdict is None]
        asks = [item.ask() for item in asking]
        for item, problem in zip(asking, admission.admit(cell=cell.name, asks=asks), strict=True):
            if problem is not None:
                item.refuse(problem)
        check_alloc_sets(cell, [item for item in items if item.verdict is None])
        if dry_run:
            raise _Rehearsal
        admitted = [item for item in items if item.verdict is None]
        jobs_create(entry, cell, admitted, bands)
        for item in items:
            rejection_append(entry, item)
