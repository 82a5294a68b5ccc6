"""Submits the runs of cron jobs that are due, many in one transaction, and each exactly once.

    CronJob.next_at, by an index ── due? ──► lock the cell ─► read again ─► overlap ─► submit the jobs ─┐
                                                                                                        ├─ one commit
                                             CronRun: one row per due time ◄─ CronJob.next_at: later ◄──┘

A process that is killed before the commit leaves the runs due, and another process submits them. After the commit, the
due times have passed. Any number of processes may do this at once: they take turns per cell.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from zoneinfo import ZoneInfo

import structlog
from django.db import transaction

from quota.tenancy.authentication import principals_of_users
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal, system
from scheduling.core.vocabulary import events
from scheduling.cron import cron_spec, overlaps, run_history, run_submission
from scheduling.cron.run_history import DueRun, RunResult
from scheduling.cron.run_submission import Jobs, jobs_of
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Cell, CronRun
from scheduling.spec.schedules import cron_lines

log = structlog.get_logger(__name__)

# Runs of one transaction.
AT_ONCE = 1_000
# Bytes of their templates together.
MAX_BYTES = 16 * 2**20
# The first key of the advisory lock by which processes take turns; the second one is the id of the cell.
_TURN = 0x63726F6E

_COLUMNS = (
    "c.id, t.name, c.name, c.version, c.schedule, c.time_zone, c.overlap, c.catch_up_s, c.keep_runs,"
    " c.template::text, c.tasks, c.owner_id, c.next_at"
)
_SELECT = f"SELECT {_COLUMNS} FROM scheduling_cronjob AS c JOIN quota_tenant AS t ON t.id = c.tenant_id"
# Due runs in the order in which they are chosen, with their tasks and the bytes of their templates. Only a long
# template is stored compressed, so the length of a short one need not be counted.
_CHOOSE = """
SELECT c.id, c.tasks,
       CASE WHEN pg_column_size(c.template) < 1500 THEN pg_column_size(c.template)
            ELSE octet_length(c.template::text) END
FROM (SELECT id, place, random() AS shuffled
      FROM (SELECT id, row_number() OVER (PARTITION BY tenant_id ORDER BY next_at, id) AS place
            FROM scheduling_cronjob WHERE cell_id = %s AND next_at <= %s) AS due
      ORDER BY place, shuffled LIMIT %s) AS chosen
JOIN scheduling_cronjob AS c ON c.id = chosen.id ORDER BY chosen.place, chosen.shuffled
"""


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
    """Handle at most `at_once` due times of the cell's cron jobs: submit the job of each run, or record why it is not
    submitted. A later call handles further ones.

    `later_s`: leave out runs that have been due for less than this many seconds. `reached`: a function that is called
    with the name of each step; tests use it. Without a due time, this makes one query and locks nothing. Locks: the
    turn of the cell, the cell's row, then the tenants' use of quota.
    """
    wait_s = _wait_s(cell_id)
    if wait_s is None or wait_s + later_s > 0:
        return Turn(wait_s=None if wait_s is None else wait_s + later_s)
    with transaction.atomic():
        if not query("SELECT pg_try_advisory_xact_lock(%s, %s)", [_TURN, cell_id])[0][0]:
            return Turn(wait_s=wait_s, busy=True)
        now, runs = _read_due(cell_id, at_once)
        reached("read")
        jobs = jobs_of(cell_id, runs)  # before the lock, because new templates are parsed
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
    the cell's row. Return its result, whose outcome may be `rejected` or `skipped`. Raises `Conflict` if it would
    replace live runs with more than `journal.CHUNK` tasks. If no job was submitted, the caller rolls its transaction
    back.
    """
    results = run_submission.runs_submit(cell, [run], jobs_of(cell.id, [run]), {run.cron_id: principal}, run.due_at)
    if not results:  # the live runs have too many tasks for one transaction, and the caller rolls this one back
        ((_, name), *_) = overlaps.live_runs([run.cron_id])[run.cron_id]
        raise overlaps.too_large(run, name)
    (result,) = results
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
    """Return the time of the database, and runs that are due, oldest first: at most `at_once` runs, with at most
    `journal.CHUNK` tasks and `MAX_BYTES` of templates together. A single run may have more.

    The tenants share a turn: first comes the oldest run of each tenant, in random order, then the second one of each.
    A run that does not fit waits for a later turn. So neither many runs nor large runs of a tenant keep others waiting.
    """
    now = query("SELECT clock_timestamp()")[0][0]
    chosen: list[int] = []
    tasks = size = 0
    for cron_id, of_run, length in query(_CHOOSE, [cell_id, now, at_once]):
        of_run = min(of_run, journal.CHUNK)
        if not chosen or (tasks + of_run <= journal.CHUNK and size + length <= MAX_BYTES):
            chosen.append(cron_id)
            tasks, size = tasks + of_run, size + length
    rows = query(f"{_SELECT} WHERE c.id = ANY(%s) AND c.next_at <= %s ORDER BY c.next_at, c.id", [chosen, now])
    return now, [DueRun(*row) for row in rows]


def _still_due(runs: Sequence[DueRun]) -> list[DueRun]:
    """Return the runs that nobody has changed, suspended or deleted before the cell was locked."""
    found = query(
        "SELECT id, version, next_at FROM scheduling_cronjob WHERE id = ANY(%s)", [[run.cron_id for run in runs]]
    )
    unchanged = set(found)
    return [run for run in runs if (run.cron_id, run.version, run.due_at) in unchanged]


def _handle(cell: Cell, runs: Sequence[DueRun], jobs: Jobs, now: dt.datetime) -> int:
    owners = {
        user: replace(principal, request_id="cron")
        for user, principal in principals_of_users({run.owner_id for run in runs if run.owner_id}).items()
    }
    callers = {run.cron_id: owners[run.owner_id] for run in runs if run.owner_id in owners}
    known = run_history.runs_known(runs)
    results: list[RunResult] = []
    wanted: list[DueRun] = []
    following: dict[int, dt.datetime | None] = {}
    for run in runs:
        result, following[run.cron_id] = _checked_timing(run, now)
        if (run.cron_id, run.due_at) in known:
            continue
        if result is None:
            wanted.append(run)
        else:
            results.append(result)
    results += run_submission.runs_submit(cell, wanted, jobs, callers, now)
    lost = [result for result in results if result.outcome != CronRun.SUBMITTED]
    if lost:
        with journal.write(cell.id, system("cron")) as entry:
            for result in lost:
                entry.append(_skipped_event(result))
    run_history.runs_record(results)
    handled = [result.run.cron_id for result in results]
    handled += [run.cron_id for run in runs if (run.cron_id, run.due_at) in known]
    run_history.next_times_store([(cron_id, following[cron_id]) for cron_id in handled])
    return len(handled)


def _checked_timing(run: DueRun, now: dt.datetime) -> tuple[RunResult | None, dt.datetime | None]:
    """Return the same as `_timing`. A cron job whose times cannot be computed is rejected and has no further run."""
    try:
        return _timing(run, now)
    except Exception:
        log.exception("the times of a cron job cannot be computed", tenant=run.tenant, cron_job=run.name)
        what = f"the next times of the schedule {run.schedule!r} in the time zone {run.time_zone} cannot be computed"
        problem = run_submission.internal(run, what)
        return RunResult(run, CronRun.REJECTED, now, problem=problem), None


def _timing(run: DueRun, now: dt.datetime) -> tuple[RunResult | None, dt.datetime | None]:
    """Return why a run that is late is not submitted, or None, and the due time that comes after it.

    With the overlap policy `allow`, each due time in the catch-up window runs. With `forbid` and `replace`, only the
    newest one runs, because a run for each one would skip or replace the run before it.
    """
    oldest = now - dt.timedelta(seconds=run.catch_up_s)
    missed = _missed(run, now) if run.due_at < oldest else None
    following = next_time(run.schedule, run.time_zone, run.due_at)
    if following is None or following > now:
        return missed, following
    if run.overlap == cron_spec.ALLOW:
        return missed, next_time(run.schedule, run.time_zone, oldest) if missed else following
    newest = _newest_time(run.schedule, run.time_zone, run.due_at, now)
    if newest is None or newest < oldest:
        return missed, next_time(run.schedule, run.time_zone, now)
    return missed or _superseded(run, now), newest


def _missed(run: DueRun, now: dt.datetime) -> RunResult:
    late_s = (now - run.due_at).total_seconds()
    detail = (
        f"the run was due {late_s:,.0f} s ago, and catch_up_s allows {run.catch_up_s:,.0f} s; later due times that are"
        " too late now are left out as well. Raise catch_up_s, or start a run with `borgctl cron run`"
    )
    return RunResult(run, CronRun.MISSED, now, problem=Rejected("cron-missed", detail))


def _superseded(run: DueRun, now: dt.datetime) -> RunResult:
    late_s = (now - run.due_at).total_seconds()
    detail = (
        f"the run was due {late_s:,.0f} s ago, and a later run is due now too; with the overlap policy {run.overlap},"
        " only the newest of them starts. Choose allow if each one should start"
    )
    return RunResult(run, CronRun.SKIPPED, now, problem=Rejected("cron-superseded", detail))


@lru_cache(maxsize=8192)
def next_time(schedule: str, time_zone: str, after: dt.datetime) -> dt.datetime | None:
    """Return the first due time of a cron line after a moment, in UTC. Return None if there is none."""
    return cron_lines.parse(schedule).next_after(after, ZoneInfo(time_zone))


@lru_cache(maxsize=1024)
def _newest_time(schedule: str, time_zone: str, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
    return cron_lines.parse(schedule).newest_between(after, until, ZoneInfo(time_zone))


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
