"""The history of the runs of cron jobs: rows of `CronRun`, and the next due times."""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from quota.vocabulary.errors import Rejected
from scheduling.cron import cron_spec
from scheduling.journal import copy_rows
from scheduling.journal.sql import execute, query
from scheduling.models import CronRun, Job

# One of this many runs cuts the history of its cron job, so that not every run reads all of it.
_CUT_EVERY = 8
_ATTRIBUTES = ("cron_job_id", "due_at", "outcome", "job_name", "job_uid", "code", "detail", "by", "at")


@dataclass(frozen=True, slots=True)
class DueRun:
    """A due time of a cron job, with what is needed to submit its job. `template`: the job of a run in JSON. `by`: who
    asked for this run; empty for a run by the cron line.
    """

    cron_id: int
    tenant: str
    name: str
    version: int
    schedule: str
    time_zone: str
    overlap: str
    catch_up_s: float
    keep_runs: int
    template: str
    tasks: int
    owner_id: int | None
    due_at: dt.datetime
    by: str = ""

    @property
    def job_name(self) -> str:
        return cron_spec.run_name(self.name, self.due_at, by_hand=bool(self.by))


@dataclass(frozen=True, slots=True)
class RunResult:
    """What happened to a run at the time `at`. `outcome`: as in `CronRun`. `problem`: why no job was submitted."""

    run: DueRun
    outcome: str
    at: dt.datetime
    job: Job | None = None
    problem: Rejected | None = None


def runs_record(results: Sequence[RunResult]) -> None:
    """Add the runs to the history, and cut long histories."""
    copy_rows.values(
        CronRun,
        _ATTRIBUTES,
        [
            (
                result.run.cron_id,
                result.run.due_at,
                result.outcome,
                result.run.job_name if result.job else "",
                result.job.uid if result.job else None,
                result.problem.code[:64] if result.problem else "",
                result.problem.detail[:500] if result.problem else "",
                result.run.by,
                result.at,
            )
            for result in results
        ],
    )
    cut = [run for run in (result.run for result in results) if _is_cut(run.cron_id, run.due_at)]
    if cut:
        execute(
            "DELETE FROM scheduling_cronrun AS r USING unnest(%s::bigint[], %s::int[]) AS c(id, keep)"
            " WHERE r.cron_job_id = c.id AND r.due_at <= (SELECT due_at FROM scheduling_cronrun"
            " WHERE cron_job_id = c.id ORDER BY due_at DESC OFFSET c.keep LIMIT 1)",
            # Notices compare a run with the one before.
            [[run.cron_id for run in cut], [max(run.keep_runs, 2) for run in cut]],
        )


def runs_known(runs: Sequence[DueRun]) -> set[tuple[int, dt.datetime]]:
    """Return (id of the cron job, due time) of the runs that the history already has."""
    rows = query(
        "SELECT r.cron_job_id, r.due_at FROM unnest(%s::bigint[], %s::timestamptz[]) AS d(id, due_at)"
        " JOIN scheduling_cronrun AS r ON r.cron_job_id = d.id AND r.due_at = d.due_at",
        [[run.cron_id for run in runs], [run.due_at for run in runs]],
    )
    return set(rows)


def _is_cut(cron_id: int, due_at: dt.datetime) -> bool:
    """Return whether this run cuts the history. The checksum has no pattern that follows the period of a cron line."""
    return zlib.crc32(f"{cron_id} {due_at.timestamp():.0f}".encode()) % _CUT_EVERY == 0


def next_times_store(times: Sequence[tuple[int, dt.datetime | None]]) -> None:
    """Store the next due times. `times`: (id of the cron job, its next due time)."""
    execute(
        "UPDATE scheduling_cronjob AS c SET next_at = n.next_at FROM unnest(%s::bigint[], %s::timestamptz[])"
        " AS n(id, next_at) WHERE c.id = n.id",
        [[cron_id for cron_id, _ in times], [at for _, at in times]],
    )
