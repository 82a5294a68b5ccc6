"""Changes of cron jobs: apply, delete, suspend, resume, and a run by hand. Each is one transaction that locks the
cell's row, and has an event in the journal.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from quota.models import Tenant
from quota.tenancy.authentication import principals_of_users
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.tenant_permission import own_tenant, require_tenant
from scheduling.brakes import confirmation
from scheduling.config_files import known_files
from scheduling.core.vocabulary import events
from scheduling.cron import cron_spec, due_runs, selectors
from scheduling.cron.cron_spec import CronSpecification
from scheduling.cron.run_history import DueRun, RunResult, runs_record
from scheduling.jobs import job_name_rules
from scheduling.jobs.submission import revisions
from scheduling.jobs.submit_and_kill import spec_limits
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.models import Cell, CronJob, CronRun
from scheduling.packages import pinning
from scheduling.secrets import known_secrets, spec_rules
from scheduling.spec.field_errors import rejection
from scheduling.spec.privileges import privilege_refusal

_UID_DIGITS = 12
NEW = "new"
_MOST_COUNTED = 100  # due times that a message counts
# Columns that come from the file, and the columns that an apply writes. Others may change at the same time: an erasure
# changes the name of the owner without the lock of the cell.
_OF_FILE = ("labels", "schedule", "time_zone", "overlap", "catch_up_s", "keep_runs", "template")
_APPLIED = (*_OF_FILE, "tasks", "digest", "version", "owner", "owner_name", "changed_at", "next_at")


@dataclass(frozen=True, slots=True)
class CronChange:
    """The result of an apply. `outcome`: submitted, updated or unchanged. `cron_job`: as it is now."""

    outcome: str
    cron_job: CronJob


def cron_spec_for(
    *, principal: Principal, cell: Cell, file: bytes | Mapping[str, Any], tenant: str = "", name: str = ""
) -> CronSpecification:
    """Read a job file of kind `CronJob` for this cell, tenant and name. Raises `Rejected`, which names the wrong
    field.
    """
    read = cron_spec.parse(file, limits=spec_limits(cell), least_period_s=settings.BORG_CRON_MIN_PERIOD_S)
    job_name_rules.check_same(cell=(read.cell, cell.name), tenant=(read.tenant, tenant), name=(read.name, name))
    spec = read.at(cell=cell.name, tenant=read.tenant or tenant or own_tenant(principal))
    longest = cron_spec.run_name(spec.name, dt.datetime(2000, 1, 1, tzinfo=dt.UTC), by_hand=True)
    run = msgspec.structs.replace(spec.job, name=longest, cell=spec.cell, tenant=spec.tenant)
    job_name_rules.check_lengths(run)
    pinning.pinned_for(principal, cell, run)
    require_tenant(principal, Action.JOB_WRITE, spec.tenant, cell.name)
    refusals = known_secrets.refusals(cell.name, [run], lock=False) + known_files.refusals([run], lock=False)
    for problem in filter(None, refusals):
        fields = {f"job.{path}": text.replace(longest, f"{spec.name}-*") for path, text in problem.fields.items()}
        raise rejection(fields)
    return spec


def cron_apply(*, principal: Principal, cell: Cell, spec: CronSpecification, if_revision: str = "") -> CronChange:
    """Create the cron job, or change it to `spec`. Idempotent. The caller becomes its owner. An equal cron job keeps
    its owner, as long as the owner may submit the job.

    `if_revision`: the revision that the cron job must have (`revision_of`). Raises `Rejected` if a limit is exceeded or
    the revision is another one, and `Forbidden` if the caller may not submit the job.
    """
    require_tenant(principal, Action.JOB_WRITE, spec.tenant, cell.name)
    if principal.user_id is None:
        detail = f"{principal.name} cannot own a cron job, because it is not a user; apply the file as a user"
        raise Forbidden("cron.own", detail)
    if refusal := privilege_refusal(principal, cell.name, spec.job):
        raise refusal
    tenant = Tenant.objects.filter(name=spec.tenant).first()
    if tenant is None:
        raise NotFound("tenant", spec.tenant)
    digest = spec.digest()
    with journal.write(cell.pk, principal) as entry:
        row = CronJob.objects.filter(cell=cell, tenant=tenant, name=spec.name).first()
        _check_revision(row, if_revision, spec.name)
        # Its times could not be computed. An apply starts it again.
        stopped = row is not None and row.next_at is None and row.suspended_at is None
        if row is not None and row.digest == digest and not stopped and _keeps_owner(row, principal, spec):
            return CronChange("unchanged", row)
        _check_plain_secrets(cell, row, spec)
        outcome = "submitted" if row is None else "updated"
        if row is None:
            _check_numbers(cell, tenant, spec.name)
            row = CronJob(cell=cell, tenant=tenant, name=spec.name, version=0, created_at=entry.time)
        timed = stopped or (row.schedule, row.time_zone) != (spec.schedule, spec.time_zone)
        if timed and row.pk is not None:
            _record_dropped(entry, row, "its schedule was changed")
        for name in _OF_FILE:
            setattr(row, name, getattr(spec, name))
        row.tasks, row.digest, row.version = spec.job.tasks, digest, row.version + 1
        row.owner_id, row.owner_name, row.changed_at = principal.user_id, principal.name, entry.time
        if timed and row.suspended_at is None:
            row.next_at = due_runs.next_time(row.schedule, row.time_zone, entry.time)
        row.save(update_fields=None if row.pk is None else _APPLIED)
        _append_set(entry, row)
        return CronChange(outcome, row)


def cron_delete(*, principal: Principal, cron_job: CronJob, reason: str = "") -> None:
    """Delete a cron job with its history. Live runs go on."""
    with _locked(principal, cron_job) as (entry, row):
        cron_jobs_remove(entry, [row], reason)


def cron_jobs_remove(entry: JournalEntry, rows: list[CronJob], reason: str) -> None:
    """Delete cron jobs in the caller's transaction. Each row has its tenant."""
    for row in rows:
        entry.append(events.CronDeleted(cron_id=row.pk, tenant=row.tenant.name, name=row.name, reason=reason))
    ids = [row.pk for row in rows]
    CronRun.objects.filter(cron_job_id__in=ids)._raw_delete(using="default")
    CronJob.objects.filter(pk__in=ids)._raw_delete(using="default")


def cron_suspend(*, principal: Principal, cron_job: CronJob) -> CronJob:
    """Suspend a cron job: no further run starts. Live runs go on. Idempotent."""
    with _locked(principal, cron_job) as (entry, row):
        if row.suspended_at is None:
            _record_dropped(entry, row, "it was suspended")
            row.suspended_at, row.next_at = entry.time, None
            _store(entry, row)
    return row


def cron_resume(*, principal: Principal, cron_job: CronJob) -> CronJob:
    """Resume a suspended cron job. The times during which it was suspended are not caught up. Idempotent."""
    with _locked(principal, cron_job) as (entry, row):
        if row.suspended_at is not None:
            row.suspended_at = None
            row.next_at = due_runs.next_time(row.schedule, row.time_zone, entry.time)
            _store(entry, row)
    return row


def cron_run_now(*, principal: Principal, cron_job: CronJob, confirm: int | None = None) -> RunResult:
    """Submit a run now, with the permissions of the caller; also of a suspended cron job. The next due time stays.

    Raises `Rejected` if the job is rejected, and `Conflict` if the overlap policy forbids the run; the history records
    both. `confirm`: the number of running tasks that the policy `replace` may stop. If this number is large and
    `confirm` is missing or lower, raises `Conflict` with code `confirm`.
    """
    require_tenant(principal, Action.JOB_WRITE, cron_job.tenant.name, cron_job.cell.name)
    with transaction.atomic():
        cell = due_runs.cell_lock(cron_job.cell_id)
        row = CronJob.objects.select_related("tenant").filter(pk=cron_job.pk).first()
        if cell is None or row is None:
            raise NotFound("cron job", cron_job.name)
        if row.overlap == cron_spec.REPLACE:
            stopped = selectors.tasks_running(row)
            confirmation.require(cell, stopped, confirm, what=f"replace the live runs of cron job {row.name}")
        result = due_runs.run_now(cell, _run_by_hand(row, principal, timezone.now()), principal)
        if result.problem is not None:
            transaction.set_rollback(True)
    if result.problem is None:
        return result
    problem = result.problem
    if problem.code == "job-exists":
        detail = (
            f"cannot start a run of cron job {cron_job.name}: there is already a live job {result.run.job_name},"
            " and a second run in the same second would have this name too; try again after a second"
        )
        problem = Conflict("cron-run-exists", detail)
    _record_rejected(replace(result, problem=problem))
    raise problem


def _record_rejected(result: RunResult) -> None:
    """Add a run that was not submitted to the history, unless the cron job was deleted meanwhile."""
    with transaction.atomic():
        if CronJob.objects.select_for_update(no_key=True).filter(pk=result.run.cron_id).exists():
            runs_record([result])


def revision_of(cron_job: CronJob | None) -> str:
    """Return the revision of a cron job, or "new" if there is none. It changes with each change by a person."""
    return NEW if cron_job is None else f"{cron_job.uid.hex[:_UID_DIGITS]}-{cron_job.version}"


def file_of(cron_job: CronJob) -> dict[str, Any]:
    """Return the fields of the cron job as `CronSpecification.to_json` has them, without apiVersion and kind."""
    place = {"name": cron_job.name, "tenant": cron_job.tenant.name, "cell": cron_job.cell.name}
    fields = {name: getattr(cron_job, name) for name in _OF_FILE if name != "template"}
    return {**place, **fields, "job": cron_job.template}


def _check_plain_secrets(cell: Cell, row: CronJob | None, spec: CronSpecification) -> None:
    """Raise `Rejected` if the job of a run has values in `env` that look like secrets, unless the cron job had them
    before.
    """
    before = None
    if row is not None and spec_rules.plain_secrets(spec.job):
        template = msgspec.json.encode(row.template, order="deterministic").decode()
        before = cron_spec.load_template(template, extra=tuple(cell.extra_resources))
    if problems := spec_rules.plain_secrets(spec.job, before):
        raise rejection({f"job.{path}": text for path, text in problems.items()})


def _keeps_owner(row: CronJob, principal: Principal, spec: CronSpecification) -> bool:
    """Return whether an apply of an equal file leaves the owner of the cron job as it is. Then users who apply the same
    files in turn change nothing.
    """
    if row.owner_id is None or row.owner_id == principal.user_id:
        return row.owner_id is not None
    owner = principals_of_users([row.owner_id]).get(row.owner_id)
    return (
        owner is not None
        and may(owner, Action.JOB_WRITE, tenant=spec.tenant, cell=spec.cell)
        and privilege_refusal(owner, spec.cell, spec.job) is None
    )


def _record_dropped(entry: JournalEntry, row: CronJob, cause: str) -> None:
    """Record the due times that have passed without a run as one missed run, because `cause` drops them."""
    if row.next_at is None or row.next_at > entry.time:
        return
    number = 0
    at: dt.datetime | None = row.next_at
    while at is not None and at <= entry.time and number < _MOST_COUNTED:
        number, at = number + 1, due_runs.next_time(row.schedule, row.time_zone, at)
    times = f"{number}{' or more' * (number == _MOST_COUNTED)} due time{'s' * (number > 1)}"
    detail = (
        f"cron job {row.name} has no run for {times}, because {cause} by {entry.principal.name} at"
        f" {entry.time:%Y-%m-%d %H:%M:%S} UTC, before a run was submitted; start a run with"
        f" `borgctl cron run {row.name}` if you need it"
    )
    missed = CronRun(cron_job=row, due_at=row.next_at, outcome=CronRun.MISSED, code="cron-changed", detail=detail)
    missed.at = entry.time
    CronRun.objects.bulk_create([missed], ignore_conflicts=True)
    entry.append(
        events.CronSkipped(
            cron_id=row.pk,
            tenant=row.tenant.name,
            name=row.name,
            due_at=row.next_at.timestamp(),
            outcome=CronRun.MISSED,
            code=missed.code,
            detail=detail,
        )
    )


def _run_by_hand(row: CronJob, principal: Principal, now: dt.datetime) -> DueRun:
    return DueRun(
        cron_id=row.pk,
        tenant=row.tenant.name,
        name=row.name,
        version=row.version,
        schedule=row.schedule,
        time_zone=row.time_zone,
        overlap=row.overlap,
        catch_up_s=row.catch_up_s,
        keep_runs=row.keep_runs,
        template=msgspec.json.encode(row.template, order="deterministic").decode(),
        tasks=row.tasks,
        owner_id=principal.user_id,
        due_at=now,
        by=principal.name,
    )


@contextmanager
def _locked(principal: Principal, cron_job: CronJob) -> Iterator[tuple[JournalEntry, CronJob]]:
    """Check the permission, lock the cell's row, and read the cron job again."""
    require_tenant(principal, Action.JOB_WRITE, cron_job.tenant.name, cron_job.cell.name)
    with journal.write(cron_job.cell_id, principal) as entry:
        row = CronJob.objects.select_related("tenant", "cell").filter(pk=cron_job.pk).first()
        if row is None:
            raise NotFound("cron job", cron_job.name)
        yield entry, row


def _store(entry: JournalEntry, row: CronJob) -> None:
    row.version, row.changed_at = row.version + 1, entry.time
    row.save(update_fields=("version", "changed_at", "suspended_at", "next_at"))
    _append_set(entry, row)


def _append_set(entry: JournalEntry, row: CronJob) -> None:
    entry.append(
        events.CronSet(
            cron_id=row.pk,
            tenant=row.tenant.name,
            name=row.name,
            version=row.version,
            schedule=row.schedule,
            time_zone=row.time_zone,
            overlap=row.overlap,
            suspended=row.suspended_at is not None,
        )
    )


def _check_revision(row: CronJob | None, wanted: str, name: str) -> None:
    found = revision_of(row)
    now = "no cron job has this name now" if row is None else f"the cron job has revision {found} now"
    if problem := revisions.refusal(f"cron job {name}", wanted, found, now):
        raise problem


def _check_numbers(cell: Cell, tenant: Tenant, name: str) -> None:
    numbers = CronJob.objects.filter(cell=cell).aggregate(all=Count("pk"), own=Count("pk", filter=Q(tenant=tenant)))
    for found, most, who in (
        (numbers["own"], settings.BORG_MAX_CRON_JOBS_PER_TENANT, f"tenant {tenant.name}"),
        (numbers["all"], settings.BORG_MAX_CRON_JOBS_PER_CELL, "all tenants together"),
    ):
        if found >= most:
            raise Rejected(
                "too-many-cron-jobs",
                f"cannot create cron job {name}: cell {cell.name} has {found} cron jobs of {who}, and at most {most}"
                " are possible; delete some, or ask an SRE for a higher limit",
                figures={"cron_jobs": found, "most": most},
                status=403,
            )
