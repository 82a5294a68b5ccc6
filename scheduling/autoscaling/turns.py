"""Takes turns of the autoscaler in a cell: reads usage, stores recommendations, and changes jobs.

    claim a turn ─► rows follow the specs ─► numbers of tasks, every 5 s ─┐
                                         └─► limits, every minute ────────┴─► ordinary updates of jobs

Any process of a master may claim the next turn. What a turn writes names the version of the job that it has read, so
two processes cannot make the same change twice, and a slow turn overwrites nothing newer. An error with one job, or
with one part of a turn, does not keep the others from being scaled.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError

from scheduling.autoscaling.changes import Change, changes_apply
from scheduling.autoscaling.limits_turn import limits_recommend
from scheduling.autoscaling.rows import AT_ONCE, rows_follow
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
_END = """
UPDATE scheduling_cellautoscaling SET claimed_until = NULL,
  finished_at = CASE WHEN %s THEN clock_timestamp() ELSE finished_at END WHERE cell_id = %s
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
    changes: list[Change] = []
    whole = True
    while rows_follow(cell_id, now) == AT_ONCE:
        pass
    for recommend in (tasks_recommend, limits_recommend):
        try:
            changes += recommend(cell_id, now)
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            log.exception("a turn of the autoscaler failed", cell_id=cell_id, part=recommend.__name__)
            whole = False
    changed = changes_apply(changes)
    execute(_END, [whole, cell_id])
    return Turn(changed, live=True, taken=True)


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
            " WHERE j.state <> 'dead' AND a.limited_since IS NOT NULL GROUP BY j.cell_id"
        )
    )
