"""Submits the runs of cron jobs that are due, many in one transaction, and each exactly once.

    CronJob.next_at, by an index ── due? ──► lock the cell ─► read again ─► overlap ─► submit the jobs ─┐
                                                                                                        ├─ one commit
                                             CronRun: one row per due time ◄─ CronJob.next_at: later ◄──┘

A process that is killed before the commit leaves the runs due, and another process submits them. After the commit, the
due times have passed. Any number of processes may do this at once: they take turns per cell.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from zoneinfo import ZoneInfo

import msgspec
import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from quota.tenancy.authentication import principals_of_users
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal, system
from scheduling.core.vocabulary import events
from scheduling.cron import cron_lines, cron_spec, overlaps, run_history
from scheduling.cron.run_history import DueRun, RunResult
from scheduling.jobs.submission.outcomes import Submission
from scheduling.jobs.submit_and_kill import jobs_submit_for
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Cell, CronRun
from scheduling.spec.job_spec import JobSpecification

_Jobs = Mapping[int, JobSpecification | Rejected]

log = structlog.get_logger(__name__)

# Runs of one transaction.
AT_ONCE = 1_000
# The first key of the advisory lock by which processes take turns; the second one is the id of the cell.
_TURN = 0x63726F6E

_COLUMNS = (
    "c.id, c.uid, t.name, c.name, c.version, c.schedule, c.time_zone, c.overlap, c.catch_up_s, c.keep_runs,"
    " c.template::text, c.tasks, c.owner_id, c.owner_name, c.next_at"
)
_SELECT = f"SELECT {_COLUMNS} FROM scheduling_cronjob AS c JOIN quota_tenant AS t ON t.id = c.tenant_id"


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. `handled`: how many due times were handled. `wait_s`: how long until the next due time;
    None if there is none. `busy`: whether another process has its turn now.
    """

    handled: int = 0
    wait_s: float | None = None
    busy: bool = False


def runs_submit_due(
    cell_id: int, *, at_once: int = AT_ONCE, later_s: float = 0.0, reached: Callable[[str], None] = lambda step: None
) -> Turn:
    """Handle at most `at_once` due times of the cell's cron jobs, the oldest first: submit the job of each run, or
    record why it is not submitted. A later call handles further ones.

    `later_s`: leave out runs that are due since less than so many seconds. `reached`: a function that is called with
    the name of each step; tests use it. Without a due time, this makes one query and locks nothing. Locks: the turn of
    the cell, the cell's row, then the tenants' use of quota.
    """
    wait_s = _wait_s(cell_id)
    if wait_s is None or wait_s + later_s > 0:
        return Turn(wait_s=None if wait_s is None else wait_s + later_s)
    with transaction.atomic():
        if not query("SELECT pg_try_advisory_xact_lock(%s, %s)", [_TURN, cell_id])[0][0]:
            return Turn(wait_s=wait_s, busy=True)
        now, runs = _read_due(cell_id, at_once)
        reached("read")
        jobs = _jobs_of(cell_id, runs)  # before the lock, because new templates are parsed
        reached("prepared")
        cell = cell_lock(cell_id)
        if cell is None or not (runs := _still_due(runs)):
            return Turn(wait_s=0.0)
        handled = _handle(cell, runs, jobs, now)
        reached("before-commit")
    reached("after-commit")
    return Turn(handled=handled, wait_s=0.0)


def run_now(cell: Cell, run: DueRun, principal: Principal) -> RunResult:
    """Submit a run that `principal` asks for, with the permissions of `principal`. The caller's transaction has locked
    the cell's row. Return its result, whose outcome may be `rejected` or `skipped`.
    """
    (result,) = _decide(cell, [run], _jobs_of(cell.id, [run]), {run.cron_id: principal}, run.due_at)
    if result.outcome == CronRun.SUBMITTED:
        run_history.runs_record([result])
    return result


def cell_lock(cell_id: int) -> Cell | None:
    """Lock the cell's row, as `journal.write` does. Return None if the cell was deleted or does not exist."""
    return Cell.operated.select_for_update(no_key=True).filter(pk=cell_id).first()


def lag_s() -> dict[int, float]:
    """Return how many seconds the oldest due run of each cell is late, by cell id. Cells without a late run are left
    out.
    """
    return dict(
        query(
            "SELECT cell_id, extract(epoch FROM clock_timestamp() - min(next_at))::float8 FROM scheduling_cronjob"
            " WHERE next_at < clock_timestamp() GROUP BY cell_id"
        )
    )


def _wait_s(cell_id: int) -> float | None:
    """Return in how many seconds the next run is due; negative if it is due. Return None if there is none."""
    rows = query(
        "SELECT extract(epoch FROM next_at - clock_timestamp())::float8 FROM scheduling_cronjob"
        " WHERE cell_id = %s AND next_at IS NOT NULL ORDER BY next_at LIMIT 1",
        [cell_id],
    )
    return rows[0][0] if rows else None


def _read_due(cell_id: int, at_once: int) -> tuple[dt.datetime, list[DueRun]]:
    """Return the time of the database, and the runs that are due, oldest first, with at most `journal.CHUNK` tasks
    together. A single run may have more.
    """
    now = query("SELECT clock_timestamp()")[0][0]
    rows = query(
        f"{_SELECT} WHERE c.cell_id = %s AND c.next_at <= %s ORDER BY c.next_at, c.id LIMIT %s", [cell_id, now, at_once]
    )
    runs: list[DueRun] = []
    tasks = 0
    for row in rows:
        run = DueRun(*row)
        tasks += min(run.tasks, journal.CHUNK)
        if runs and tasks > journal.CHUNK:
            break
        runs.append(run)
    return now, runs


def _still_due(runs: Sequence[DueRun]) -> list[DueRun]:
    """Return the runs that nobody has changed, suspended or deleted before the cell was locked."""
    found = query(
        "SELECT id, version, next_at FROM scheduling_cronjob WHERE id = ANY(%s)", [[run.cron_id for run in runs]]
    )
    unchanged = set(found)
    return [run for run in runs if (run.cron_id, run.version, run.due_at) in unchanged]


def _handle(cell: Cell, runs: Sequence[DueRun], jobs: _Jobs, now: dt.datetime) -> int:
    owners = {
        user: replace(principal, request_id="cron")
        for user, principal in principals_of_users({run.owner_id for run in runs if run.owner_id}).items()
    }
    callers = {run.cron_id: owners[run.owner_id] for run in runs if run.owner_id in owners}
    known = run_history.runs_known(runs)
    results = _decide(cell, [run for run in runs if (run.cron_id, run.due_at) not in known], jobs, callers, now)
    lost = [result for result in results if result.outcome != CronRun.SUBMITTED]
    if lost:
        with journal.write(cell.id, system("cron")) as entry:
            for result in lost:
                entry.append(_skipped_event(result))
    run_history.runs_record(results)
    handled = [RunResult(run, CronRun.SUBMITTED, now) for run in runs if (run.cron_id, run.due_at) in known]
    times = [(result.run.cron_id, _next_at(result, now)) for result in (*results, *handled)]
    run_history.next_times_store(times)
    return len(times)


def _decide(
    cell: Cell, runs: Sequence[DueRun], jobs: _Jobs, callers: Mapping[int, Principal], now: dt.datetime
) -> list[RunResult]:
    """Submit the runs that should be submitted. Return a result per run; a run whose turn comes later, because an
    earlier run that it replaces has not ended yet, has none. `callers`: who submits, by the id of the cron job.
    """
    results: list[RunResult] = []
    wanted: list[DueRun] = []
    for run in runs:
        if _is_missed(run, now):
            results.append(_missed(run, now))
        elif run.cron_id not in callers:
            results.append(RunResult(run, CronRun.REJECTED, now, problem=_no_owner(run)))
        else:
            wanted.append(run)
    ready, skipped = overlaps.settle(cell.id, wanted)
    results += [RunResult(run, CronRun.SKIPPED, now, problem=problem) for run, problem in skipped]
    asked: list[tuple[DueRun, Principal, JobSpecification]] = []
    for run in ready:
        job = jobs[run.cron_id]
        if isinstance(job, Rejected):
            results.append(RunResult(run, CronRun.REJECTED, now, problem=job))
        else:
            asked.append((run, callers[run.cron_id], _named(job, run, cell.name)))
    done = _submitted(cell, [(principal, job) for _, principal, job in asked])
    for (run, _, _), submission in zip(asked, done, strict=True):
        # A run has a name of its own, so an equal live job is one that somebody else submitted under this name.
        outcome = CronRun.SUBMITTED if submission.outcome == "submitted" else CronRun.REJECTED
        results.append(RunResult(run, outcome, now, submission.job, submission.problem or _name_taken(submission)))
    return results


def _submitted(cell: Cell, asked: Sequence[tuple[Principal, JobSpecification]]) -> list[Submission]:
    """Submit the jobs together. If that fails because of one of them, submit each of them alone."""
    if not asked:
        return []
    try:
        with transaction.atomic():
            return jobs_submit_for(cell=cell, asked=asked)
    except (OperationalError, InterfaceError):  # PostgreSQL is away or busy, for all of them alike
        raise
    except Exception as error:
        if len(asked) > 1:
            return [done for one in asked for done in _submitted(cell, [one])]
        (_, job) = asked[0]
        log.exception("a run of a cron job cannot be submitted", cell=cell.name, tenant=job.tenant, job=job.name)
        reason = "PostgreSQL rejects it" if isinstance(error, DatabaseError) else "of an internal error"
        detail = f"job {job.name} cannot be submitted, because {reason}; change the job, or ask an SRE for the log"
        return [Submission(job.name, job.tenant, "refused", problem=Rejected("internal", detail, status=500))]


def _jobs_of(cell_id: int, runs: Sequence[DueRun]) -> _Jobs:
    """Return the job of each run without its name, or why it is not valid any more, by the id of the cron job."""
    extra = Cell.objects.values_list("extra_resources", flat=True).get(pk=cell_id)
    jobs: dict[int, JobSpecification | Rejected] = {}
    for run in runs:
        try:
            jobs[run.cron_id] = cron_spec.load_template(run.template, extra=tuple(extra))
        except Rejected as problem:
            jobs[run.cron_id] = problem
    return jobs


def _named(job: JobSpecification, run: DueRun, cell: str) -> JobSpecification:
    labels = {**job.labels, cron_spec.LABEL: run.name}
    return msgspec.structs.replace(job, name=run.job_name, tenant=run.tenant, cell=cell, labels=labels)


def _is_missed(run: DueRun, now: dt.datetime) -> bool:
    return now - run.due_at > dt.timedelta(seconds=run.catch_up_s)


def _missed(run: DueRun, now: dt.datetime) -> RunResult:
    late_s = (now - run.due_at).total_seconds()
    detail = (
        f"the run was due {late_s:,.0f} s ago, and catch_up_s allows {run.catch_up_s:,.0f} s; earlier due times than"
        " that were missed too. Raise catch_up_s, or start a run with `borgctl cron run`"
    )
    return RunResult(run, CronRun.MISSED, now, problem=Rejected("cron-missed", detail))


def _no_owner(run: DueRun) -> Rejected:
    detail = (
        f"the owner of cron job {run.name} is disabled or does not exist any more; apply the job file again as another"
        " member of the tenant"
    )
    return Rejected("no-owner", detail, status=403)


def _name_taken(submission: Submission) -> Rejected | None:
    if submission.outcome == "submitted":
        return None
    detail = f"a live job already has the name {submission.name}; kill it, or give it another name"
    return Rejected("job-exists", detail, status=409)


def _next_at(result: RunResult, now: dt.datetime) -> dt.datetime | None:
    """Return the due time after that of `result`. After a missed run, due times that would be missed too are left
    out.
    """
    run = result.run
    after = run.due_at
    if result.outcome == CronRun.MISSED:
        after = max(after, now - dt.timedelta(seconds=run.catch_up_s))
    return next_time(run.schedule, run.time_zone, after)


@lru_cache(maxsize=8192)
def next_time(schedule: str, time_zone: str, after: dt.datetime) -> dt.datetime | None:
    """Return the first due time of a cron line after a moment, in UTC. Return None if there is none."""
    return cron_lines.parse(schedule).next_after(after, ZoneInfo(time_zone))


def _skipped_event(result: RunResult) -> events.CronSkipped:
    run, problem = result.run, result.problem
    assert problem is not None
    return events.CronSkipped(
        cron_id=run.cron_id,
        tenant=run.tenant,
        name=run.name,
        due_at=run.due_at.timestamp(),
        outcome=result.outcome,
        code=problem.code,
        detail=problem.detail[:500],
    )
