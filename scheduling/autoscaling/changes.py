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
from quota.vocabulary.resources import CPU, RAM, describe
from scheduling.autoscaling.rejections import STOPPED, Columns, rejected_values
from scheduling.autoscaling.rules.largest_limits import largest_limits
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import AUTOSCALER, ScaledValues, values_of, with_values
from scheduling.jobs.fit_guidance import able_machines
from scheduling.jobs.rollouts.rollout import hopeless_tasks, is_used_up
from scheduling.jobs.submission.revisions import revision_of
from scheduling.models import Job, JobAutoscaling, Update
from scheduling.spec.job_spec import JobSpecification

log = structlog.get_logger(__name__)

# Whether an update of the job `j` is open with which the autoscaler does not go on: the rule of `no_open_update` in
# SQL. Change both together.
UPDATING = """EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = j.id AND u.state = 'open'
    AND (u.actor <> 'system:autoscaler' OR u.paused_at IS NOT NULL OR u.canary > 0))"""
# Rejections that end by themselves: the job has changed, is being updated, or has ended.
_PASSING = ("update-open", "revision-changed", "job-ended")


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a job's number of tasks or of the limits of its tasks. `version`: the version of the spec from which
    it was decided. `values`: the values afterwards. `why`: the last part of the reason in the journal. `times`: columns
    of `JobAutoscaling` that are set if it succeeds. `rejection`: the columns that store a rejection.

    `waiting`: the resources whose rise was rejected before and is left out, until the next attempt. `killed`: whether a
    task ran out of memory.
    """

    job_id: int
    version: int
    values: ScaledValues
    why: str
    times: dict[str, Any]
    rejection: Columns
    waiting: frozenset[str] = frozenset()
    killed: bool = False


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
    the autoscaler tries again. If quota or the machines have no room for the whole change, a part of it is made.

    The journal records a rejection by quota once. Locks: as `updates.job_update`.
    """
    job = Job.objects.select_related("cell", "tenant", "alloc_set").get(pk=change.job_id)
    row = JobAutoscaling.objects.filter(pk=change.job_id).first()
    if row is None or job.spec_version != change.version or job.state == JobState.DEAD:
        return False
    since, now = getattr(row, change.rejection.since), ScaledValues(row.tasks, row.cpu, row.ram)
    current = updates.spec_of(job)
    possible = _possible(job, current, change.values, now)
    problem = None if possible == change.values else _too_large(job, change.values, possible)
    made = now
    with transaction.atomic():
        done: updates.JobChange | None = None
        for values in _attempts(possible, now):
            try:
                new = with_values(current, values, job.cell)
                done = updates.job_update(
                    principal=AUTOSCALER,
                    job=job,
                    job_spec=new,
                    reason=format_reason(values, now, change.why),
                    later=True,
                    quiet=since is not None or problem is not None,
                    if_revision=revision_of(job),
                    check=_may_change,
                    continues=True,
                )
                break
            except Rejected as refusal:
                if refusal.code not in updates.ADMISSION:
                    problem = refusal
                    break
                problem = problem or refusal
        columns = {} if change.waiting else change.rejection.values()
        if done is not None:
            made = values_of(new)
            columns |= {"version": done.version, **made._asdict(), **change.times}
            if change.killed and made.ram == now.ram < possible.ram:  # the kill still counts
                columns["oom_at"] = change.times["limits_at"] + dt.timedelta(microseconds=1)
        if problem is not None:
            if problem.code in _PASSING:
                return False
            less = {name for name in ("cpu", "ram") if getattr(made, name) < getattr(change.values, name)}
            of = change.waiting | less
            urgent = change.killed and made.ram == now.ram < possible.ram and problem.code in updates.ADMISSION
            columns |= rejected_values(change.rejection, since, problem.code, problem.detail, of=of, urgent=urgent)
            if change.waiting:  # the time of the next attempt stays, so that the limit that waits does not wait longer
                del columns[change.rejection.retry_at]
            if since is None:
                log.warning("a job cannot be scaled", job=job.name, code=problem.code, detail=problem.detail)
        JobAutoscaling.objects.filter(pk=job.pk).update(**columns)
    return done is not None


def _attempts(values: ScaledValues, now: ScaledValues) -> list[ScaledValues]:
    """Return the values to try, the wanted ones first. If quota has no room for all further tasks, fewer are tried. If
    it has none for both limits, RAM is tried alone, and then CPU.
    """
    if values == now:
        return []
    more = values.tasks - now.tasks
    parts = sorted({more // 2, more // 4, more // 8, 1} - {0}, reverse=True) if more > 1 else []
    tried = [values, *(values._replace(tasks=now.tasks + part) for part in parts)]
    if values.cpu != now.cpu and values.ram != now.ram:
        tried += [values._replace(cpu=now.cpu), values._replace(ram=now.ram)]
    return tried


def _may_change(job: Job) -> None:
    """Raise `Conflict` if the autoscaler must not change the job: an update is open, or the last one was stopped. Then
    its tasks have different versions, or crash, and a further update would go on with it without a person.

    An update by the autoscaler that has caused as many disruptions as it may does not count, unless its tasks crash.
    The next update goes on with its number of disruptions, so it disrupts no task. An update by the system after it,
    such as a demotion, does not count either.
    """
    no_open_update(job)
    updates_of_job = Update.objects.filter(job=job).order_by("-id")
    last = updates_of_job.first()
    if last is None or last.state != Update.STOPPED:
        return
    crashing = hopeless_tasks(last)
    if is_used_up(last) and not crashing:
        by = updates_of_job.exclude(Q(actor__startswith="system:") & ~Q(actor=AUTOSCALER.name)).first()
        if by is None or by.actor == AUTOSCALER.name or by.state != Update.STOPPED:
            return
    why = f"{crashing} tasks crash again and again" if crashing else last.detail or "no reason"
    detail = f"cannot scale job {job.name}, because its last update was stopped: {why};"
    raise Conflict(STOPPED, f"{detail} update, undo or restart the job, so that the autoscaler scales it again")


def no_open_update(job: Job) -> None:
    """Raise `Conflict` if an update or a restart of the job is open, even a paused one. An update by the autoscaler
    counts only if it is paused or tries canary tasks: if it cannot end, for example because a larger task fits on no
    machine, the next one goes on with it.
    """
    running = Q(actor=AUTOSCALER.name, paused_at=None, canary=0)
    if Update.objects.filter(job=job, state=Update.OPEN).exclude(running).exists():
        detail = f"cannot change job {job.name}, because an update of it is open; wait until it ends, or undo it first"
        raise Conflict("update-open", detail)


def _possible(job: Job, job_spec: JobSpecification, values: ScaledValues, now: ScaledValues) -> ScaledValues:
    """Return the values, with limits that rise only as far as machines can hold the tasks of the job."""
    if values.cpu <= now.cpu and values.ram <= now.ram:
        return values
    limits = values.cpu, values.ram
    for requirement, tasks, capacity in able_machines(job.cell, job_spec):
        limits = largest_limits(limits, (now.cpu, now.ram), requirement, tasks, capacity)
    return values._replace(cpu=limits[0], ram=limits[1])


def _too_large(job: Job, wanted: ScaledValues, possible: ScaledValues) -> Rejected:
    detail = (
        f"cannot raise the limits of job {job.name} to {_limits(wanted)}, because the machines that are up and"
        f" that its tasks may use cannot hold all of them then; the largest limits that fit are {_limits(possible)};"
        " lower autoscale.vertical.max, change the constraints of the job, or add machines"
    )
    return Conflict("machines-too-small", detail)


def _limits(values: ScaledValues) -> str:
    return f"{describe(CPU, values.cpu)} of CPU and {describe(RAM, values.ram)} of RAM"


def format_reason(values: ScaledValues, now: ScaledValues, why: str) -> str:
    """Return the reason of a change from the values `now`, for the journal."""
    if values.tasks != now.tasks:
        return f"autoscaler: {now.tasks} to {values.tasks} tasks{why}"
    parts = [
        f"{name} from {describe(index, old)} to {describe(index, new)}"
        for name, index, old, new in (("CPU", CPU, now.cpu, values.cpu), ("RAM", RAM, now.ram, values.ram))
        if old != new
    ]
    return f"autoscaler: limit of {' and of '.join(parts)}{why}"
