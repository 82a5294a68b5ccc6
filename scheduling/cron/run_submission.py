"""Submits the jobs of runs that are due, or decides why a run has no job.

    runs ─► timing ─► owner, template, permissions, privileges ─► overlap ─► end replaced runs, submit jobs
              │                        │                            │         └── one savepoint, or none of it ──┘
          missed, skipped           rejected                     skipped                  rejected

A run that is rejected replaces nothing. A run that cannot be handled at all blocks no other one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.cron import cron_spec, overlaps
from scheduling.cron.cron_spec import ALLOW
from scheduling.cron.run_history import DueRun, RunResult
from scheduling.jobs.submission.outcomes import Submission
from scheduling.jobs.submit_and_kill import jobs_submit_for
from scheduling.models import Cell, CronRun
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.privileges import privilege_refusal

log = structlog.get_logger(__name__)

Jobs = Mapping[int, JobSpecification | Rejected]
# How often a turn tries to replace runs without those that were rejected. The others stay due.
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class _Ask:
    """A run that should be submitted. `replaced`: (job id, name) of the live runs that it replaces."""

    run: DueRun
    principal: Principal
    job: JobSpecification
    replaced: Sequence[tuple[int, str]] = ()


class _Undone(Exception):
    """Raised to undo replacements, because these runs were rejected."""

    def __init__(self, rejected: list[RunResult]) -> None:
        super().__init__()
        self.rejected = rejected


def jobs_of(cell_id: int, runs: Sequence[DueRun]) -> Jobs:
    """Return the job of each run without its name, or why it is not valid any more, by the id of the cron job."""
    extra = tuple(Cell.objects.values_list("extra_resources", flat=True).get(pk=cell_id))
    jobs: dict[int, JobSpecification | Rejected] = {}
    for run in runs:
        try:
            jobs[run.cron_id] = cron_spec.load_template(run.template, extra=extra)
        except Rejected as problem:
            jobs[run.cron_id] = problem
        except Exception:
            log.exception("the job of a cron job cannot be read", tenant=run.tenant, cron_job=run.name)
            jobs[run.cron_id] = internal(run, "its job cannot be read")
    return jobs


def runs_submit(
    cell: Cell, runs: Sequence[DueRun], jobs: Jobs, callers: Mapping[int, Principal], now: dt.datetime
) -> list[RunResult]:
    """Submit the runs that should be submitted. Return a result per run. A run stays due and has no result if the run
    that it replaces has more than `journal.CHUNK` tasks, so that some are still live.

    `callers`: who submits, by the id of the cron job. The caller's transaction has locked the cell.
    """
    results: list[RunResult] = []
    asks: list[_Ask] = []
    live = overlaps.live_runs([run.cron_id for run in runs if run.overlap != ALLOW])
    for run in runs:
        job, caller = jobs[run.cron_id], callers.get(run.cron_id)
        if caller is None:
            results.append(RunResult(run, CronRun.REJECTED, now, problem=_no_owner(run)))
        elif isinstance(job, Rejected):
            results.append(RunResult(run, CronRun.REJECTED, now, problem=job))
        elif problem := _refusal(caller, cell, run, job):
            results.append(RunResult(run, CronRun.REJECTED, now, problem=problem))
        elif isinstance(replaced := overlaps.replaced_by(run, live.get(run.cron_id, [])), Rejected):
            results.append(RunResult(run, CronRun.SKIPPED, now, problem=replaced))
        else:
            asks.append(_Ask(run, caller, _named(job, run, cell.name), replaced))
    return results + _replaced_and_submitted(cell, asks, now, _ATTEMPTS)


def _replaced_and_submitted(cell: Cell, asks: Sequence[_Ask], now: dt.datetime, attempts: int) -> list[RunResult]:
    """End the live runs that are replaced, and submit the jobs, all in one savepoint. If a replacement is rejected,
    undo this, and try again without it. If something fails because of one job, handle each half of the jobs alone.
    """
    if not asks:
        return []
    try:
        with transaction.atomic():
            return _in_savepoint(cell, asks, now)
    except _Undone as undone:
        lost = {result.run.cron_id for result in undone.rejected}
        asks = [ask for ask in asks if ask.run.cron_id not in lost and (attempts > 1 or not ask.replaced)]
        return undone.rejected + _replaced_and_submitted(cell, asks, now, attempts - 1)
    except (OperationalError, InterfaceError):  # PostgreSQL is away or busy, for all of them alike
        raise
    except Exception as error:
        if len(asks) > 1:
            middle = len(asks) // 2
            halves = asks[:middle], asks[middle:]
            return [done for half in halves for done in _replaced_and_submitted(cell, half, now, attempts)]
        run = asks[0].run
        log.exception("a run of a cron job cannot be submitted", cell=cell.name, tenant=run.tenant, job=run.job_name)
        reason = "PostgreSQL rejects it" if isinstance(error, DatabaseError) else "of an internal error"
        problem = internal(run, f"job {run.job_name} cannot be submitted, because {reason}")
        return [RunResult(run, CronRun.REJECTED, now, problem=problem)]


def _in_savepoint(cell: Cell, asks: Sequence[_Ask], now: dt.datetime) -> list[RunResult]:
    unfinished = overlaps.runs_end(cell.id, {job_id: ask.run for ask in asks for job_id, _ in ask.replaced})
    ready = [ask for ask in asks if unfinished.isdisjoint(job_id for job_id, _ in ask.replaced)]
    done = jobs_submit_for(cell=cell, asked=[(ask.principal, ask.job) for ask in ready])
    results = [_result(ask.run, submission, now) for ask, submission in zip(ready, done, strict=True)]
    rejected = [
        result
        for ask, result in zip(ready, results, strict=True)
        if ask.replaced and result.outcome != CronRun.SUBMITTED
    ]
    if rejected:
        raise _Undone(rejected)
    return results


def _result(run: DueRun, submission: Submission, now: dt.datetime) -> RunResult:
    if submission.outcome == "submitted":
        return RunResult(run, CronRun.SUBMITTED, now, submission.job)
    # A run has a name of its own, so an equal live job is one that somebody else submitted under this name.
    return RunResult(run, CronRun.REJECTED, now, problem=submission.problem or _name_taken(run))


def _named(job: JobSpecification, run: DueRun, cell: str) -> JobSpecification:
    labels = {**job.labels, cron_spec.LABEL: run.name}
    return msgspec.structs.replace(job, name=run.job_name, tenant=run.tenant, cell=cell, labels=labels)


def _refusal(caller: Principal, cell: Cell, run: DueRun, job: JobSpecification) -> Rejected | None:
    try:
        require_tenant(caller, Action.JOB_WRITE, run.tenant, cell.name)
    except Rejected as problem:
        return problem
    return privilege_refusal(caller, cell.name, job)


def internal(run: DueRun, what: str) -> Rejected:
    """Return the problem of a run that cannot be handled. `what`: what is wrong."""
    detail = f"cannot start a run of cron job {run.name}: {what}; apply the job file again, or ask an SRE for the log"
    return Rejected("internal", detail, status=500)


def _no_owner(run: DueRun) -> Rejected:
    detail = (
        f"the owner of cron job {run.name} is disabled or does not exist any more; apply the job file again as another"
        " member of the tenant"
    )
    return Rejected("no-owner", detail, status=403)


def _name_taken(run: DueRun) -> Rejected:
    cure = "start the run again in a second" if run.by else "kill that job, or give it another name"
    detail = f"cannot start run {run.job_name}: a live job already has this name; {cure}"
    return Rejected("job-exists", detail, status=409)
