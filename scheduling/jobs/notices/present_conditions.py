"""Reads which jobs are failing, crash-looping, pending for too long, or near their deadline, and what the autoscaler
has found.

The number of queries depends on the number of jobs only for more than a thousand jobs in trouble. Study cells are left
out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, QuerySet

from quota.admission import admission
from scheduling.core.vocabulary.job_health import Condition, JobHealth
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.health import MOVED_S, HealthOfJob, with_health
from scheduling.jobs.notices.condition_rules import PENDING_PROD_S, ConditionKey, PresentConditions, longest_pending_s
from scheduling.journal.sql import query
from scheduling.models import CrashedPair, Job, Task
from scheduling.tasks import held_tasks

# Number of jobs whose health is read at once.
_AT_ONCE = 1000
_LIVE = "j.state <> 'dead' AND c.study_of IS NULL"
_PENDING = f"""
SELECT t.job_id, j.priority, min({held_tasks.SINCE}) AS since
FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id JOIN scheduling_cell AS c ON c.id = j.cell_id
WHERE {_LIVE} AND t.state = 'pending' AND {held_tasks.MAY_START}
GROUP BY t.job_id, j.priority
HAVING min({held_tasks.SINCE}) <= %(before)s"""
_PENDING_OF_JOBS = f"""
SELECT t.job_id, min({held_tasks.SINCE}) AS since FROM scheduling_task AS t JOIN scheduling_job AS j ON j.id = t.job_id
WHERE t.job_id = ANY(%(jobs)s) AND t.state = 'pending' AND {held_tasks.MAY_START} GROUP BY t.job_id"""
# A deadline is near in the last tenth of its time and in the last ten minutes, but never in the first half.
_NEAR_DEADLINE = f"""
SELECT j.id, j.deadline_at - d.near AS since
FROM scheduling_job AS j JOIN scheduling_cell AS c ON c.id = j.cell_id,
LATERAL (SELECT j.deadline_at - j.created_at AS whole) AS w,
LATERAL (SELECT least(greatest(w.whole / 10, interval '10 minutes'), w.whole / 2) AS near) AS d
WHERE {_LIVE} AND j.ended_at IS NULL AND j.deadline_at > %(now)s AND j.deadline_at - d.near <= %(now)s"""

_SCALING = f"""
SELECT a.job_id, CASE WHEN a.vertical = 'recommend' THEN a.wanted_since END,
  least(a.limited_since, a.tasks_limited_since)
FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id
JOIN scheduling_cell AS c ON c.id = j.cell_id
WHERE {_LIVE} AND a.version = j.spec_version AND (a.vertical = 'recommend' AND a.wanted_since IS NOT NULL
  OR a.limited_since IS NOT NULL OR a.tasks_limited_since IS NOT NULL)"""


@dataclass(frozen=True, slots=True)
class Examined:
    """The present conditions of jobs. `health`: the health of the jobs that were examined for it, by job id."""

    conditions: PresentConditions
    health: dict[int, HealthOfJob]


def present_conditions(known: Collection[ConditionKey], *, now: dt.datetime) -> Examined:
    """Return the present conditions of all live jobs. `known`: the conditions that were found before.

    The health is read only of jobs without a task that is up, of jobs with restarted or crashed tasks, and of jobs
    whose health was bad before.
    """
    bad = {key.job_id for key in known if key.condition in (Condition.FAILING, Condition.CRASH_LOOPING)}
    health = _health(bad, now)
    since = {}
    unsettled = set()
    for job_id, found in health.items():
        failing, crashing = ConditionKey(job_id, Condition.FAILING), ConditionKey(job_id, Condition.CRASH_LOOPING)
        if found.state is JobHealth.FAILING:
            since[failing] = now
        if found.troubles.crashing:
            since[crashing] = now
        if found.state is not JobHealth.HEALTHY:
            unsettled |= {failing, crashing}
    for job_id, begun in _pending_too_long(now):
        since[ConditionKey(job_id, Condition.PENDING)] = begun
    unsettled |= _still_pending(key.job_id for key in known if key.condition is Condition.PENDING)
    for job_id, begun in query(_NEAR_DEADLINE, {"now": now}):
        since[ConditionKey(job_id, Condition.DEADLINE_AT_RISK)] = begun
    for job_id, wanted_since, limited_since in query(_SCALING):
        if wanted_since is not None:
            since[ConditionKey(job_id, Condition.RECOMMENDATION)] = wanted_since
        if limited_since is not None:
            since[ConditionKey(job_id, Condition.SCALING_LIMITED)] = limited_since
    healthy = frozenset(job_id for job_id, found in health.items() if found.state is JobHealth.HEALTHY)
    return Examined(PresentConditions(since, frozenset(unsettled), healthy), health)


def pending_since(job_ids: Collection[int]) -> dict[int, dt.datetime]:
    """Return, by job id, since when the oldest pending task of each job has waited. Jobs that only hold their tasks
    back themselves are left out. Makes one query, or none without jobs.
    """
    return dict(query(_PENDING_OF_JOBS, {"jobs": list(job_ids)})) if job_ids else {}


def _health(known: Collection[int], now: dt.datetime) -> dict[int, HealthOfJob]:
    restarted = Task.objects.filter(job=OuterRef("pk"), restarts__gt=1)
    crashed = CrashedPair.objects.filter(at__gte=now - dt.timedelta(seconds=MOVED_S)).values("task__job")
    suspects = _live().filter(Q(tasks_up=0) | Exists(restarted) | Q(pk__in=crashed) | Q(pk__in=known)).order_by("id")
    ids = list(suspects.values_list("id", flat=True))
    found: dict[int, HealthOfJob] = {}
    for first in range(0, len(ids), _AT_ONCE):
        part = with_health(_live().filter(pk__in=ids[first : first + _AT_ONCE]))
        found |= {job.id: job.health for job in part}  # type: ignore[attr-defined]
    return found


def _live() -> QuerySet[Job]:
    return Job.objects.filter(cell__study_of__isnull=True).exclude(state=JobState.DEAD.value)


def _pending_too_long(now: dt.datetime) -> Iterable[tuple[int, dt.datetime]]:
    """Yield (job id, since when) for jobs with a task that has been pending for longer than its priority allows."""
    bands = admission.bands()
    before = now - dt.timedelta(seconds=PENDING_PROD_S)
    for job_id, priority, since in query(_PENDING, {"before": before}):
        longest_s = longest_pending_s(priority, bands)
        if longest_s is not None and (now - since).total_seconds() >= longest_s:
            yield job_id, since


def _still_pending(job_ids: Iterable[int]) -> set[ConditionKey]:
    """Return the condition `pending` of those of the jobs that have pending tasks. As long as a queue moves, its oldest
    task changes, and the tenant is notified once.
    """
    waiting = _live().filter(pk__in=list(job_ids), tasks_pending__gt=0).values_list("id", flat=True)
    return {ConditionKey(job_id, Condition.PENDING) for job_id in waiting}
