"""Reads the health of many jobs with two queries. `core.vocabulary.job_health` computes the health from counts of
tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from borglet.messages import EndCause, Phase
from borglet.messages import Health as TaskHealth
from quota.model_rows import read_models
from scheduling.core.vocabulary.job_health import NO_TROUBLES, JobHealth, Troubles, job_health
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import JobState
from scheduling.journal.sql import query
from scheduling.models import Job, Task, Update
from scheduling.spec.job_spec import JobSpecification

# A task that was restarted more than once counts as crashing until it has been up for this time.
SETTLED_S = 60
# A task that was moved because it crashed counts as crashing until it is up elsewhere, but at most for this time.
MOVED_S = 900
# Ends after which a task moves to another machine although the task did not fail.
BLAMELESS = [cause.value for cause in (EndCause.MACHINE_SHORT, EndCause.MACHINE_RESTARTED, EndCause.STOPPED)]
_CRASHED = "SELECT max(at) FROM scheduling_crashedpair AS c WHERE c.task_id = t.id"
# One row per task that is in trouble: the kind of trouble, and whether the task is up.
_TROUBLES = f"""
SELECT t.id, t.job_id, t.up, CASE
    WHEN t.state = 'dead' THEN 'failed'
    WHEN t.state = 'pending' OR t.phase = %(backoff)s OR t.restarts > 0
      OR ({_CRASHED}) > now() - make_interval(secs => %(moved)s) THEN 'crashing'
    ELSE 'unhealthy' END AS trouble
FROM scheduling_task AS t
WHERE t.job_id = ANY(%(uneven)s) AND NOT t.up AND (
    t.state = 'dead' AND t.outcome = 'failed'
    OR t.state = 'pending' AND t.exit IS NOT NULL AND NOT (t.exit->>'cause') = ANY(%(blameless)s)
       AND ({_CRASHED}) >= t.since
    OR t.state = 'running' AND (t.phase = %(backoff)s OR t.restarts > 0 OR t.health = %(unhealthy)s
       OR ({_CRASHED}) > now() - make_interval(secs => %(moved)s)))
UNION ALL
SELECT t.id, t.job_id, t.up, 'crashing' FROM scheduling_task AS t
WHERE t.job_id = ANY(%(live)s) AND t.restarts > 1 AND t.up
  AND t.since > now() - make_interval(secs => %(settled)s)
"""


@dataclass(frozen=True, slots=True)
class HealthOfJob:
    """The health of a job. `troubles`: how many of its tasks crash, are unhealthy or have failed. `update`: the update
    in progress, or None.
    """

    state: JobHealth
    troubles: Troubles = NO_TROUBLES
    update: Update | None = None


def with_health(jobs: Iterable[Job]) -> list[Job]:
    """Return the jobs, each with its `HealthOfJob` as the attribute `health`. Makes at most two queries.

    Makes one query less if the jobs already have the attribute `open_updates` (`selectors.with_details`).
    """
    rows = list(jobs)
    live = [job for job in rows if job.state != JobState.DEAD]
    troubles = troubles_of(live)
    updates = _updates(live)
    for job in rows:
        found, update = troubles.get(job.id, NO_TROUBLES), updates.get(job.id)
        state = job_health(
            ended=job.state == JobState.DEAD,
            updating=update is not None,
            living=may_be_up(job),
            placed=job.tasks_running,
            up=job.tasks_up,
            troubles=found,
        )
        job.health = HealthOfJob(state, found, update)  # type: ignore[attr-defined]
    return rows


def may_be_up(job: Job) -> int:
    """Return how many tasks of the job may be up at once: its live tasks, but at most its `max_running`."""
    living = job.tasks_total - job.tasks_dead
    return min(living, job.max_running or living)


def new_with_details(job: Job, job_spec: JobSpecification) -> bool:
    """Return whether the job is new. If it is, set those attributes of `job` that pages show, without a query.

    A new job has only pending tasks. It has no update in progress, and no task that crashes, is unhealthy or has
    failed.
    """
    revision = getattr(job, "new_at", None)
    if revision is None or job.alloc_set_id is not None or job.tasks_total < job_spec.tasks:
        return False
    job.cell = copy(job.cell)
    job.cell.revision = revision
    job.tasks_wanted, job.open_updates = job.tasks_total, []  # type: ignore[attr-defined]
    state = job_health(ended=False, updating=False, living=job.tasks_total, placed=0, up=0, troubles=NO_TROUBLES)
    job.health = HealthOfJob(state)  # type: ignore[attr-defined]
    return True


def health_of(job: Job) -> HealthOfJob:
    """Return the health of a job. The health is read from the database only if the job object does not have it yet."""
    if not hasattr(job, "health"):
        with_health([job])
    found: HealthOfJob = job.health  # type: ignore[attr-defined]
    return found


def troubles_of(jobs: Sequence[Job]) -> dict[int, Troubles]:
    """Return, by job id, how many tasks of each job crash, are unhealthy or have failed. Jobs without such tasks are
    left out. Makes at most one query.

    The tasks of a job are read only if the job's counters show that some of its tasks are not up.
    """
    if not jobs:
        return {}
    rows = query(
        "SELECT job_id, count(*) FILTER (WHERE trouble = 'crashing'),"
        " count(*) FILTER (WHERE trouble = 'crashing' AND up), count(*) FILTER (WHERE trouble = 'unhealthy'),"
        f" count(*) FILTER (WHERE trouble = 'failed') FROM ({_TROUBLES}) AS t GROUP BY job_id",
        _figures(jobs),
    )
    return {job_id: Troubles(*counts) for job_id, *counts in rows}


def crashing_tasks(job: Job, *, index: int | None = None, most: int = 20) -> list[Task]:
    """Return the crashing tasks of a live job, in the order of their indexes, with their machines. Makes two queries.

    `index`: look only at the task of this index. `most`: the largest number of tasks to return.
    """
    rows = query(
        f"SELECT id FROM ({_TROUBLES}) AS t WHERE trouble = 'crashing' AND (%(task)s IS NULL OR id = %(task)s)"
        " ORDER BY id LIMIT %(most)s",
        {**_figures([job]), "task": None if index is None else task_id(job.id, index), "most": most},
    )
    ids = [identity for (identity,) in rows]
    return list(Task.objects.filter(id__in=ids).select_related("machine").order_by("id")) if ids else []


def first_crashing_tasks(jobs: Sequence[Job]) -> dict[int, Task]:
    """Return, by job id, the crashing task with the lowest index of each live job, with its machine. Jobs without a
    crashing task are left out. Makes at most two queries.
    """
    if not jobs:
        return {}
    rows = query(f"SELECT min(id) FROM ({_TROUBLES}) AS t WHERE trouble = 'crashing' GROUP BY job_id", _figures(jobs))
    ids = [identity for (identity,) in rows]
    return {task.job_id: task for task in Task.objects.filter(id__in=ids).select_related("machine")} if ids else {}


def _figures(jobs: Sequence[Job]) -> dict[str, Any]:
    return {
        "uneven": [job.id for job in jobs if job.tasks_up < job.tasks_total],
        "live": [job.id for job in jobs],
        "backoff": Phase.BACKOFF.value,
        "unhealthy": TaskHealth.UNHEALTHY.value,
        "blameless": BLAMELESS,
        "moved": MOVED_S,
        "settled": SETTLED_S,
    }


def _updates(jobs: Sequence[Job]) -> dict[int, Update]:
    known = {job.id: job.open_updates[0] for job in jobs if getattr(job, "open_updates", None)}  # type: ignore[attr-defined]
    asked = [job.id for job in jobs if not hasattr(job, "open_updates")]
    if asked:
        statement = "SELECT {columns} FROM scheduling_update AS t WHERE state = 'open' AND job_id = ANY(%s)"
        known |= {one.job_id: one for one in read_models(Update, statement, [asked])}
    return known
