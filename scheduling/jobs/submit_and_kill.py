"""Submits and kills jobs, one or thousands at a time (§2.3). `scheduling.jobs.updates` changes live jobs.

files ─► parse ─► permissions ─► chunks of ≤ 5,000 tasks ─► lock the cell ─► names, quota ─► rows + events
           └──────────┴────────────── a verdict per job ──────────────────────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from django.conf import settings
from django.db import connection

from quota.admission import admission
from quota.model_rows import read_models
from quota.models import Tenant
from quota.vocabulary.bands import Band
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import own_tenant, require_tenant
from scheduling.allocs import alloc_sets
from scheduling.brakes import confirmation
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import job_name_rules, quota_rejections, updates
from scheduling.jobs.actions.autoscaled import FILE, with_scaled_values
from scheduling.jobs.dependencies import binding
from scheduling.jobs.submission.checks import (
    check_alloc_sets,
    check_config_files,
    check_names,
    check_numbers,
    check_secrets,
    check_times,
    pin_packages,
)
from scheduling.jobs.submission.idempotency_keys import check_keys
from scheduling.jobs.submission.outcomes import Item, Submission
from scheduling.jobs.submission.rows import jobs_create, rejection_append
from scheduling.journal import group_commit, journal
from scheduling.models import Cell, Job, StoppedJob, Task
from scheduling.packages import pinning
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.privileges import privilege_refusal
from scheduling.tasks import counters, transitions

# Largest number of jobs of one transaction, even if they have few tasks.
JOBS_AT_ONCE = 1_000


def spec_limits(cell: Cell, bands: Sequence[Band] | None = None) -> parser.CellLimits:
    """Return the limits for job files in this cell. `bands`: the priority bands, if the caller has read them."""
    return parser.CellLimits(
        max_tasks=min(settings.BORG_MAX_TASKS_PER_JOB, 1 << INDEX_BITS),
        bands=admission.bands() if bands is None else bands,
        extra=tuple(cell.extra_resources),
    )


def spec_for(
    *, principal: Principal, cell: Cell, file: bytes | Mapping[str, Any], tenant: str = "", name: str = ""
) -> spec.JobSpecification:
    """Read a job file for this cell, tenant and name. Replace the tags of its packages by the digests that they now
    refer to.

    A cell, tenant or name in the file must be the same as the argument. If no tenant is given, the only tenant of the
    caller is used. If the file is wrong, raises `Rejected`, which names the wrong field.
    """
    job_spec = _read(principal, cell, file, spec_limits(cell), tenant=tenant, name=name)
    return pinning.pinned_for(principal, cell, job_spec)


def _read(
    principal: Principal,
    cell: Cell,
    file: bytes | Mapping[str, Any],
    limits: parser.CellLimits,
    *,
    tenant: str,
    name: str = "",
) -> spec.JobSpecification:
    read = parser.parse(file, limits=limits)
    job_name_rules.check_same(cell=(read.cell, cell.name), tenant=(read.tenant, tenant), name=(read.name, name))
    owner = read.tenant or tenant or own_tenant(principal)
    job_spec = read.at(cell=cell.name, tenant=owner)
    job_name_rules.check_lengths(job_spec)
    return job_spec


def job_submit(
    *,
    principal: Principal,
    cell: Cell,
    job_spec: spec.JobSpecification,
    key: str = "",
    dry_run: bool = False,
    if_revision: str = "",
    earlier: bool = False,
    given: spec.JobSpecification | None = None,
) -> Submission:
    """Submit a new job. Its tasks are pending. If an equal job is already live, nothing changes.

    `key`: idempotency key. If an earlier submission had the same key, its job is returned, even if that job is dead.
    `if_revision`: the revision that the live job of this name must have (`submission.revisions`). `earlier`: the spec
    was accepted before, so values in `env` that look like secrets are accepted. `given`: the spec of the job file, if
    `job_spec` has other values of the autoscaler; it is compared with the earlier submission of the key.

    Raises `Rejected` if the job exceeds the quota or a limit or the revision is different, `Conflict` if a different
    live job has the name or the key was used for a different job, and `NotFound` if the caller may not see the tenant.
    Locks: the cell's row, then the tenant's use of quota.
    """
    (verdict,) = _submit(
        principal,
        cell,
        [job_spec],
        key=key,
        dry_run=dry_run,
        if_revision=if_revision,
        earlier=earlier,
        key_digest=(given or job_spec).digest() if key else "",
    )
    if verdict.problem is not None:
        raise verdict.problem
    return verdict


def job_apply(
    *,
    principal: Principal,
    cell: Cell,
    job_spec: spec.JobSpecification,
    key: str = "",
    dry_run: bool = False,
    if_revision: str = "",
    source: str = FILE,
) -> Submission:
    """Submit the job if no live job of the tenant has its name. Otherwise update the live job to the spec.
    Idempotent.

    `key`: the idempotency key of the submission; an update ignores it. `if_revision`: as in `job_submit`. `source`: as
    in `updates.job_update`. Raises the same errors and takes the same locks as `job_submit` and `updates.job_update`.
    """
    require_tenant(principal, Action.JOB_WRITE, job_spec.tenant, cell.name)
    job = live_job(cell, job_spec)
    if job is None or (_is_of_key(job, key) and job.spec_version == 1):
        return job_submit(
            principal=principal, cell=cell, job_spec=job_spec, key=key, dry_run=dry_run, if_revision=if_revision
        )
    done = updates.job_update(
        principal=principal, job=job, job_spec=job_spec, dry_run=dry_run, if_revision=if_revision, source=source
    )
    return Submission(job_spec.name, job_spec.tenant, done.outcome, job=done.job)


def _is_of_key(job: Job | None, key: str) -> bool:
    """Return whether an earlier request with this idempotency key submitted `job`. Then this request is a repetition,
    and the job was new for the first request.
    """
    return bool(key) and job is not None and job.key == key


def live_job(cell: Cell, job_spec: spec.JobSpecification) -> Job | None:
    """Return the live job that has the spec's tenant and name, or None."""
    live = Job.objects.select_related("cell", "tenant").exclude(state=JobState.DEAD.value)
    return live.filter(cell=cell, tenant__name=job_spec.tenant, name=job_spec.name).first()


def jobs_submit_bulk(
    *, principal: Principal, cell: Cell, files: Sequence[Any], tenant: str = "", dry_run: bool = False
) -> list[Submission]:
    """Submit many new jobs. Return the outcome of each job, in the order of `files`. A rejected job does not affect the
    others.

    One transaction creates at most about 5,000 tasks and 1,000 jobs. It locks the cell's row, then the tenants' uses
    of quota. Raises `Rejected` if `files` has too many jobs.
    """
    if len(files) > settings.BORG_MAX_BULK_JOBS:
        raise Rejected(
            "too-many-jobs",
            f"the request has {len(files)} jobs; send at most {settings.BORG_MAX_BULK_JOBS} per request",
            figures={"jobs": len(files), "most": settings.BORG_MAX_BULK_JOBS},
            status=413,
        )
    limits = spec_limits(cell)
    # The master places the first jobs while the next ones are read. A dry run is one transaction, which is rolled back.
    step = max(1, len(files)) if dry_run else JOBS_AT_ONCE
    rejected: set[tuple[str, str]] = set()
    return [
        verdict
        for first in range(0, len(files), step)
        for verdict in _submit_part(
            principal, cell, files[first : first + step], limits, rejected, tenant=tenant, dry_run=dry_run
        )
    ]


def _submit_part(
    principal: Principal,
    cell: Cell,
    files: Sequence[Any],
    limits: parser.CellLimits,
    rejected: set[tuple[str, str]],
    *,
    tenant: str,
    dry_run: bool,
) -> list[Submission]:
    """Submit a part of a request. `rejected`: as `Item.rejected_names`, for the whole request."""
    read: list[spec.JobSpecification | Submission] = []
    for file in files:
        try:
            read.append(_read(principal, cell, file, limits, tenant=tenant))
        except Rejected as problem:
            name = str(file.get("name", ""))[:63] if isinstance(file, Mapping) else ""
            read.append(Submission(name, tenant, "refused", problem=problem))
            given = file.get("tenant") if isinstance(file, Mapping) else None
            rejected |= {(owner, name) for owner in (given, tenant, *principal.roles) if isinstance(owner, str)}
    specs = with_scaled_values(cell, [item for item in read if isinstance(item, spec.JobSpecification)])
    verdicts = iter(_submit(principal, cell, specs, dry_run=dry_run, rejected=rejected))
    return [item if isinstance(item, Submission) else next(verdicts) for item in read]


def jobs_submit_specs(
    *,
    principal: Principal,
    cell: Cell,
    specs: Sequence[spec.JobSpecification],
    binds: bool = True,
    missing: Collection[tuple[str, str]] = (),
    dry_run: bool = False,
) -> list[Submission]:
    """Submit new jobs whose specs are known. Return the outcome of each job, in the order of `specs`. Rejections are
    neither explained nor recorded in the journal, because the caller may try again. The `start_after` of a job may have
    passed. `binds`: whether the jobs wait for the jobs in their `after`. `missing`: (tenant, name) of jobs for which
    they cannot wait, because these jobs were not submitted.
    """
    return _submit(principal, cell, specs, dry_run=dry_run, quiet=True, binds=binds, rejected=set(missing))


def jobs_submit_for(*, cell: Cell, asked: Sequence[tuple[Principal, spec.JobSpecification]]) -> list[Submission]:
    """Submit new jobs for several principals in one revision of the cell, inside the caller's transaction. Return the
    outcome of each job, in the order of `asked`. Rejections are neither explained nor recorded in the journal.

    The jobs of one call should have at most `journal.CHUNK` tasks together; a single job may have more. Locks: the
    cell's row, then the tenants' use of quota.
    """
    items = _items(cell, asked, earlier=True)
    written = [item for item in items if isinstance(item, Item)]
    rejected = {(item.tenant, item.name) for item in items if isinstance(item, Submission)}
    for item in written:
        item.rejected_names = rejected
    if written:
        _write(cell, written, dry_run=False, quiet=True)
    return [item.result() if isinstance(item, Item) else item for item in items]


def job_kill(
    *,
    principal: Principal,
    job: Job,
    indexes: Sequence[int] | None = None,
    reason: str = "",
    dry_run: bool = False,
    confirm: int | None = None,
    comes_back: bool = False,
) -> int:
    """Kill a job, or only the tasks in `indexes`. Return the number of tasks that this call kills.

    A job that is killed as a whole does not come back with its service, also if a stop of the service has begun to end
    it. `comes_back`: the kill is a part of such a stop.

    Tasks inside a killed alloc become pending. Raises `Conflict` if this would kill the last allocs of an alloc set
    that contains live jobs. `confirm`: the number of running tasks that this call stops. If this number is large and
    `confirm` is missing or different, raises `Conflict` with code `confirm`.

    One transaction kills at most 5,000 tasks. It locks the cell's row, then the tasks in order of id.
    """
    require_tenant(principal, Action.JOB_WRITE, job.tenant.name, job.cell.name)
    tasks = Task.objects.filter(job=job).exclude(state=TaskState.DEAD.value)
    if indexes is not None:
        known = set(Task.objects.filter(job=job, index__in=indexes).values_list("index", flat=True))
        unknown = sorted(set(indexes) - known)
        if unknown:
            detail = (
                f"job {job.name} has no task {', '.join(map(str, unknown[:10]))}; give indexes from 0 to"
                f" {job.tasks_total - 1}"
            )
            raise Rejected("no-such-task", detail, fields={"indexes": detail}, status=404)
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
            # Live tasks are read under the lock, because an update may add tasks until it ends.
            living = list(tasks.order_by("id").values_list("id", flat=True)[: journal.CHUNK])
            if indexes is None:
                updates.updates_close(entry, [job.id], "the job is being killed")
                if not comes_back:
                    StoppedJob.objects.filter(job=job).exclude(job__state=JobState.DEAD.value).delete()
            ended = transitions.tasks_end(entry, [Ending(task, "killed", detail=detail) for task in living])
            counters.jobs_end_if_over(entry, [job.id])
        killed += len(ended)
        if len(living) < journal.CHUNK:
            return killed


def jobs_end(entry: journal.JournalEntry, jobs: Sequence[int], *, detail: str) -> dict[int, int]:
    """Kill jobs in the caller's transaction. Return the number of ended tasks by job id. `jobs`: the ids of the jobs.
    `detail`: why. Ends at most `journal.CHUNK` tasks; the caller repeats the call if it ends so many.

    The caller has checked the permission, and that no job lives in an alloc set that ends.
    """
    living = Task.objects.filter(job__in=jobs).exclude(state=TaskState.DEAD.value).order_by("id")
    rows = list(living.values_list("id", "job_id")[: journal.CHUNK])
    updates.updates_close(entry, jobs, "the job is being killed")
    transitions.tasks_end(entry, [Ending(task, "killed", detail=detail) for task, _ in rows])
    counters.jobs_end_if_over(entry, jobs)
    return Counter(job for _, job in rows)


class _Rehearsal(Exception):
    """Raised to roll back a dry run."""


def _submit(
    principal: Principal,
    cell: Cell,
    specs: Sequence[spec.JobSpecification],
    *,
    dry_run: bool,
    key: str = "",
    if_revision: str = "",
    quiet: bool = False,
    binds: bool = True,
    rejected: set[tuple[str, str]] | None = None,
    earlier: bool = False,
    key_digest: str = "",
) -> list[Submission]:
    asked = [(principal, job_spec) for job_spec in specs]
    items = _items(cell, asked, key=key, if_revision=if_revision, earlier=earlier or quiet)
    written = [item for item in items if isinstance(item, Item)]
    shared = set() if rejected is None else rejected
    shared |= {(item.tenant, item.name) for item in items if isinstance(item, Submission)}
    for item in written:
        item.binds, item.rejected_names, item.key_digest = binds, shared, key_digest
    write = partial(_write, cell, dry_run=dry_run, quiet=quiet)
    for batch in _batches(written, whole=dry_run):
        # A caller with a transaction may have locked the cell already, so it must not wait for others here.
        outermost = not connection.in_atomic_block
        if len(batch) == 1 and not dry_run and not quiet and outermost:
            group_commit.of_cell(cell.id).write(batch[0], write)
            continue
        try:
            with group_commit.bulk_turn(cell.id) if len(batch) > 1 and outermost else nullcontext():
                write(batch)
        except _Rehearsal:
            for item in batch:
                item.job = None
        except group_commit.TurnLost as problem:  # earlier batches may be stored, so each job gets an outcome
            for item in batch:
                item.refuse(problem)
                shared.add(item.full_name)
    if not quiet:  # The locks are released now, so that the queries for explanations delay nobody.
        problems = [(item.verdict.problem, item.ask()) for item in written if item.verdict and item.verdict.problem]
        quota_rejections.explain(principal, cell, problems)
    done = [item.result() if isinstance(item, Item) else item for item in items]
    for item in written:
        if item.job is not None and item.size < item.spec.tasks:
            updates.update_advance_job(item.job)
    return done


def _items(
    cell: Cell,
    asked: Sequence[tuple[Principal, spec.JobSpecification]],
    *,
    key: str = "",
    if_revision: str = "",
    earlier: bool = False,
) -> list[Item | Submission]:
    """Return an item for each job that its principal may submit, and the rejection of each other job."""
    callers = {(id(principal), job_spec.tenant): (principal, job_spec.tenant) for principal, job_spec in asked}
    forbidden = {place: _refusal(principal, cell, tenant) for place, (principal, tenant) in callers.items()}
    names = sorted({job_spec.tenant for _, job_spec in asked})
    found = read_models(Tenant, "SELECT {columns} FROM quota_tenant AS t WHERE name = ANY(%s)", [names])
    tenants = {row.name: row for row in found}
    items: list[Item | Submission] = []
    for principal, job_spec in asked:
        problem = forbidden[id(principal), job_spec.tenant]
        if problem is None and job_spec.tenant not in tenants:
            problem = NotFound("tenant", job_spec.tenant)
        problem = problem or job_name_rules.reserved(job_spec.name) or privilege_refusal(principal, cell.name, job_spec)
        if problem is not None:
            items.append(Submission(job_spec.name, job_spec.tenant, "refused", problem=problem))
            continue
        items.append(
            Item(
                principal,
                job_spec,
                tenants[job_spec.tenant],
                job_spec.digest(),
                min(job_spec.tasks, journal.CHUNK),
                submission_key=key,
                if_revision=if_revision,
                earlier=earlier,
            )
        )
    return items


def _refusal(principal: Principal, cell: Cell, tenant: str) -> Rejected | None:
    try:
        require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    except Rejected as problem:
        return problem
    return None


def _batches(items: Sequence[Item], *, whole: bool) -> Iterator[list[Item]]:
    """Yield the items in batches that are small enough for one transaction. If `whole` is true, yield all items in
    one batch.
    """
    batch: list[Item] = []
    tasks = 0
    for item in items:
        if batch and tasks + item.size > journal.CHUNK and not whole:
            yield batch
            batch, tasks = [], 0
        batch.append(item)
        tasks += item.size
    if batch:
        yield batch


def _write(cell: Cell, items: Sequence[Item], *, dry_run: bool, quiet: bool) -> None:
    """Check the submissions `items`, and write them in one revision of the cell. The number of SQL statements does
    not depend on the number of jobs.
    """

    def undecided() -> list[Item]:
        return [item for item in items if item.verdict is None]

    with journal.write(cell.id, items[0].principal) as entry:
        check_keys(cell, items)
        pin_packages(cell, undecided())
        check_names(cell, undecided())
        check_secrets(cell, undecided())
        check_config_files(undecided())
        if not quiet:
            check_times(undecided(), now=entry.time)
        check_numbers(undecided())
        binding.bind(cell, items)
        asking = undecided()
        bands = admission.bands_with_ids()
        problems = admission.admit(cell=cell.name, asks=[item.ask() for item in asking], read=bands)
        for item, problem in zip(asking, problems, strict=True):
            if problem is not None:
                item.refuse(problem)
        check_alloc_sets(cell, undecided())
        binding.refuse_bound_to_refused(cell, items)
        if dry_run:
            raise _Rehearsal
        jobs_create(entry, cell, undecided(), [band for _, band in bands])
        for item in () if quiet else items:
            rejection_append(entry, item)
