"""Changes a job for the autoscaler, by an ordinary update of the job.

Change ─► lock the cell ─► unchanged since? may it change? ─► job_update (quota, journal, version) ─┬─ one commit
                                                                    JobAutoscaling: what was changed ◄┘
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Q

from quota.vocabulary.errors import Conflict, Rejected
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import AUTOSCALER, ScaledValues, values_of, with_values
from scheduling.jobs.submission.revisions import revision_of
from scheduling.models import Job, JobAutoscaling, Update

log = structlog.get_logger(__name__)

# Rejections that end by themselves: the job has changed, is being updated, or has ended.
_PASSING = ("update-open", "revision-changed", "job-ended")
# The code of a rejection that also stops changes that ask for nothing more.
STOPPED = "update-stopped"
LEAST_RETRY_S, MOST_RETRY_S = 60.0, 3_600.0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job's number of tasks or of the limits of its tasks. `version`: the version of the spec from which
    it was decided. `values`: the values afterwards. `times`: columns of `JobAutoscaling` that are set if it succeeds.
    """

    job_id: int
    version: int
    values: ScaledValues
    reason: str
    times: dict[str, Any]


def shared(changes: Sequence[tuple[int, Change]], most: int) -> list[Change]:
    """Return at most `most` changes, so that the tenants take turns: first the first one of each tenant, then the
    second one of each. `changes`: pairs of a tenant's id and a change, the most urgent ones first.
    """
    seen: Counter[int] = Counter()
    ranked = []
    for tenant, change in changes:
        ranked.append((seen[tenant], change))
        seen[tenant] += 1
    ranked.sort(key=lambda pair: pair[0])
    return [change for _, change in ranked[:most]]


def changes_apply(changes: Sequence[Change]) -> int:
    """Make changes, one after the other. Return how many jobs have changed. An error with one job does not keep the
    others from changing; errors of the database do.
    """
    changed = 0
    for change in changes:
        try:
            changed += change_apply(change)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            log.exception("the autoscaler cannot change a job", job_id=change.job_id)
    return changed


def change_apply(change: Change) -> bool:
    """Make a change. Return whether the job has changed. The row of the job stores why a change was rejected, and when
    the autoscaler tries again: after a minute, and then after twice as long each time, at most an hour. If quota has no
    room for all further tasks, a part of them is added.

    The journal records a rejection by quota once. Locks: as `updates.job_update`.
    """
    with transaction.atomic():
        job = Job.objects.select_related("cell", "tenant", "alloc_set").get(pk=change.job_id)
        row = JobAutoscaling.objects.filter(pk=change.job_id).first()
        if row is None or job.spec_version != change.version or job.state == JobState.DEAD:
            return False
        problem: Rejected | None = None
        done: updates.JobChange | None = None
        for values in _attempts(change.values, row.tasks):
            try:
                new = with_values(updates.spec_of(job), values, job.cell)
                done = updates.job_update(
                    principal=AUTOSCALER,
                    job=job,
                    job_spec=new,
                    reason=change.reason,
                    later=True,
                    quiet=row.limited_since is not None or problem is not None,
                    if_revision=revision_of(job),
                    check=_may_change,
                    continues=True,
                )
                break
            except Rejected as refusal:
                problem = problem or refusal
                if refusal.code not in updates.ADMISSION:
                    break
        if problem is not None:
            _rejected(row, problem, job.name)
        if done is None:
            return False
        values = values_of(new)
        free = {"limited_code": "", "limited_detail": "", "limited_since": None, "retry_at": None}
        JobAutoscaling.objects.filter(pk=job.pk).update(
            version=done.version, **values._asdict(), **change.times, **(free if problem is None else {})
        )
    return True


def _attempts(values: ScaledValues, tasks: int) -> list[ScaledValues]:
    """Return the values to try, the wanted ones first. If quota has no room for all further tasks, fewer are tried."""
    more = values.tasks - tasks
    parts = sorted({more // 2, more // 4, more // 8} - {0}, reverse=True) if more > 1 else []
    return [values, *(values._replace(tasks=tasks + part) for part in parts)]


def _may_change(job: Job) -> None:
    """Raise `Conflict` if the autoscaler must not change the job: an update is open, or the last one was stopped. Then
    its tasks have different versions, or crash, and a further update would go on with it without a person.
    """
    no_open_update(job)
    last = Update.objects.filter(job=job).order_by("-id").first()
    if last is not None and last.state == Update.STOPPED:
        detail = f"cannot scale job {job.name}, because its last update was stopped: {last.detail or 'no reason'};"
        raise Conflict(STOPPED, f"{detail} update, undo or restart the job")


def no_open_update(job: Job) -> None:
    """Raise `Conflict` if an update or a restart of the job is open, even a paused one. An update by the autoscaler
    counts only if it is paused or tries canary tasks: if it cannot end, for example because a larger task fits on no
    machine, the next one goes on with it.
    """
    running = Q(actor=AUTOSCALER.name, paused_at=None, canary=0)
    if Update.objects.filter(job=job, state=Update.OPEN).exclude(running).exists():
        detail = f"cannot change job {job.name}, because an update of it is open; wait until it ends, or undo it first"
        raise Conflict("update-open", detail)


def _rejected(row: JobAutoscaling, problem: Rejected, name: str) -> None:
    if problem.code in _PASSING:
        return
    now = dt.datetime.now(dt.UTC)
    since = row.limited_since or now
    retry_s = min(MOST_RETRY_S, max(LEAST_RETRY_S, (now - since).total_seconds()))
    if row.limited_since is None:
        log.warning("a job cannot be scaled", job=name, code=problem.code, detail=problem.detail)
    JobAutoscaling.objects.filter(pk=row.pk).update(
        limited_code=problem.code,
        limited_detail=problem.detail[:500],
        limited_since=since,
        retry_at=now + dt.timedelta(seconds=retry_s),
    )
