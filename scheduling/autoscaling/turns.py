"""Takes turns of the autoscaler in a cell: reads usage, stores recommendations, and changes jobs.

    claim a turn ─► rows follow the specs ─► numbers of tasks, every 5 s ─┐
                                         └─► limits, every minute ────────┴─► ordinary updates of jobs

Any process of a master may claim the next turn. What a turn writes names the version of the job that it has read, so
two processes cannot make the same change twice, and a slow turn overwrites nothing newer. An error with one job, or
with one part of a turn, even of the database, does not keep the others from being scaled.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError, connection

from scheduling.autoscaling.changes import changes_apply
from scheduling.autoscaling.limits_turn import limits_recommend
from scheduling.autoscaling.rows import rows_follow
from scheduling.autoscaling.tasks_turn import EVERY_S, tasks_recommend
from scheduling.journal.sql import execute, query
from scheduling.models import CellAutoscaling

log = structlog.get_logger(__name__)

# The age of the last turn in seconds, and whether there are jobs to scale.
_PEEK = """
SELECT extract(epoch FROM clock_timestamp() - c.turned_at)::float8,
  EXISTS (SELECT FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id
    WHERE j.cell_id = %(cell)s AND j.state <> 'dead')
FROM (SELECT %(cell)s::bigint AS id) AS one LEFT JOIN scheduling_cellautoscaling AS c ON c.cell_id = one.id
"""
# A process has the turn until it ends it. A killed process holds it up for this long.
_CLAIM_S = 30.0
_CLAIM = """
UPDATE scheduling_cellautoscaling
SET turned_at = clock_timestamp(), claimed_until = clock_timestamp() + make_interval(secs => %s)
WHERE cell_id = %s AND (turned_at IS NULL OR turned_at <= clock_timestamp() - make_interval(secs => %s))
  AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())
RETURNING turned_at
"""
# Changes of jobs wait for locks, so each may take a second.
_EXTEND = """
UPDATE scheduling_cellautoscaling SET claimed_until = clock_timestamp() + make_interval(secs => %s)
WHERE cell_id = %s AND turned_at = %s
"""
# A turn that took too long ends only its own claim, not that of the next process.
_END = """
UPDATE scheduling_cellautoscaling SET claimed_until = NULL,
  finished_at = CASE WHEN %s THEN clock_timestamp() ELSE finished_at END WHERE cell_id = %s AND turned_at = %s
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. `changed`: how many jobs changed. `live`: whether there are jobs to scale. `taken`: whether
    this call took a turn.
    """

    changed: int = 0
    live: bool = False
    taken: bool = False


def autoscale(cell_id: int, *, every_s: float = EVERY_S) -> Turn:
    """Take a turn, unless a process has taken one in the last `every_s` seconds. Without a job to scale, this makes one
    query.
    """
    ((age_s, live),) = query(_PEEK, {"cell": cell_id})
    if not live:
        return Turn()
    if age_s is not None and age_s < every_s:
        return Turn(live=True)
    CellAutoscaling.objects.bulk_create([CellAutoscaling(cell_id=cell_id)], ignore_conflicts=True)
    claimed = query(_CLAIM, [_CLAIM_S, cell_id, every_s])
    if not claimed:
        return Turn(live=True)
    now: dt.datetime = claimed[0][0]
    changed, whole = 0, False
    try:
        rows_follow(cell_id, now)
        changed, problem = _take(cell_id, now)
        whole = problem is None
        if isinstance(problem, (DatabaseError, InterfaceError)):
            raise problem
    finally:
        execute(_END, [whole, cell_id, now])
    return Turn(changed, live=True, taken=True)


def _take(cell_id: int, now: dt.datetime) -> tuple[int, Exception | None]:
    """Take both parts of a turn: recommend, and change jobs. Return how many jobs have changed, and the last error."""
    changed = 0
    problem: Exception | None = None
    for recommend in (tasks_recommend, limits_recommend):
        try:
            changes = recommend(cell_id, now)
            execute(_EXTEND, [_CLAIM_S + len(changes), cell_id, now])
            changed += changes_apply(changes)
        except (DatabaseError, InterfaceError) as error:  # the thread logs it
            problem = error
            connection.close_if_unusable_or_obsolete()
        except Exception as error:
            log.exception("a turn of the autoscaler failed", cell_id=cell_id, part=recommend.__name__)
            problem = problem or error
    return changed, problem


def lag_s() -> dict[int, float]:
    """Return by cell id for how many seconds no turn has ended without an error. Cells without a job to scale are left
    out.
    """
    return dict(
        query(
            "SELECT j.cell_id, greatest(0, extract(epoch FROM clock_timestamp()"
            " - greatest(c.finished_at, min(j.created_at))))::float8 FROM scheduling_jobautoscaling AS a"
            " JOIN scheduling_job AS j ON j.id = a.job_id"
            " LEFT JOIN scheduling_cellautoscaling AS c ON c.cell_id = j.cell_id"
            " WHERE j.state <> 'dead' GROUP BY j.cell_id, c.finished_at"
        )
    )


def limited_jobs() -> dict[int, int]:
    """Return by cell id how many live jobs have a change that was rejected."""
    return dict(
        query(
            "SELECT j.cell_id, count(*) FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id"
            " WHERE j.state <> 'dead' AND a.version = j.spec_version"
            " AND (a.limited_since IS NOT NULL OR a.tasks_limited_since IS NOT NULL)"
            " GROUP BY j.cell_id"
        )
    )
