"""Keeps the rows of the autoscaler in step with the specs of jobs: their rules, and what a user has set."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Any

import msgspec

from scheduling.autoscaling.changes import ME
from scheduling.jobs.actions.autoscaled import ScaledValues, own_values, seen_values, stored_values
from scheduling.journal.sql import execute, query
from scheduling.models import JobAutoscaling
from scheduling.spec.autoscaling.fields import OFF, Autoscale, Horizontal, Vertical

# Rows that one call reads at most.
AT_ONCE = 500
_CHANGED = """
SELECT a.job_id, s.version, s.actor, (s.spec->'autoscale')::text,
  json_build_object('tasks', s.spec->'tasks', 'task', json_build_object('limit', s.spec->'task'->'limit'))::text
FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id
JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version
WHERE j.cell_id = %s AND j.state <> 'dead' AND a.version <> j.spec_version ORDER BY a.job_id LIMIT %s
"""
_ENDED = """
DELETE FROM scheduling_jobautoscaling AS a USING scheduling_job AS j
WHERE j.id = a.job_id AND j.cell_id = %s AND j.state = 'dead'
"""
# Jobs without a row, as after a restore of the cell.
_MISSING = """
SELECT j.id FROM scheduling_job AS j JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version
WHERE j.cell_id = %s AND j.state <> 'dead' AND s.spec ? 'autoscale'
  AND NOT EXISTS (SELECT FROM scheduling_jobautoscaling AS a WHERE a.job_id = j.id) ORDER BY j.id
"""


def rows_follow(cell_id: int, now: dt.datetime) -> int:
    """Read the specs that have changed since the last call. Return the number of rows that were read, at most
    `AT_ONCE`. Rows of jobs whose spec has no rules any more are deleted.

    If a user has changed a value that the autoscaler sets, the autoscaler leaves the job alone for some time.
    """
    found = query(_CHANGED, [cell_id, AT_ONCE])
    if not found:
        return 0
    rows = JobAutoscaling.objects.in_bulk([job_id for job_id, *_ in found])
    kept, gone = [], []
    for job_id, version, actor, rules, values in found:
        if job_id not in rows:
            continue
        if not rules:
            gone.append(job_id)
            continue
        row = rows[job_id]
        _follow(row, version, actor, msgspec.json.decode(rules), stored_values(msgspec.json.decode(values)), now)
        kept.append(row)
    if kept:
        # One INSERT with ON CONFLICT: `bulk_update` would need a second for a hundred rows.
        JobAutoscaling.objects.bulk_create(
            kept, update_conflicts=True, update_fields=_COLUMNS, unique_fields=["job_id"]
        )
    JobAutoscaling.objects.filter(pk__in=gone).delete()
    return len(found)


_COLUMNS = (
    *("version", "rules", "vertical", "horizontal", "tasks", "cpu", "ram", "own_tasks", "own_cpu", "own_ram"),
    *("held_until", "wanted_cpu", "wanted_ram", "wanted_since", "wanted_tasks", "schedule_at", "scheduled", "needed"),
    *("low_since", "low_most", "retry_at", "limited_code", "limited_detail", "limited_since"),
)


def rows_repair(cell_id: int) -> int:
    """Delete the rows of ended jobs, and create missing rows. Return the number of created rows."""
    execute(_ENDED, [cell_id])
    missing = query(_MISSING, [cell_id])
    JobAutoscaling.objects.bulk_create([JobAutoscaling(job_id=job) for (job,) in missing], ignore_conflicts=True)
    return len(missing)


@lru_cache(maxsize=8192)
def read_rules(stored: str) -> Autoscale:
    """Return rules from their JSON. Equal rules are parsed once."""
    return msgspec.json.decode(stored, type=Autoscale)


def _follow(
    row: JobAutoscaling, version: int, actor: str, rules: dict[str, Any], now_values: ScaledValues, now: dt.datetime
) -> None:
    """Change `row` to the version of the spec that `actor` made."""
    read = msgspec.convert(rules, Autoscale)
    vertical, horizontal = read.vertical or Vertical(mode=OFF), read.horizontal or Horizontal(max=1, mode=OFF)
    own = ScaledValues(row.own_tasks, row.own_cpu, row.own_ram)
    if row.version == 0:
        own = now_values
    elif actor != ME.name:
        own = own_values(own, seen_values(row), now_values)
        held_s = max(
            horizontal.down_s if now_values.tasks != row.tasks else 0.0,
            vertical.every_s if (now_values.cpu, now_values.ram) != (row.cpu, row.ram) else 0.0,
        )
        if held_s:
            row.held_until = now + dt.timedelta(seconds=held_s)
    row.own_tasks, row.own_cpu, row.own_ram = own
    row.tasks, row.cpu, row.ram = now_values
    row.version = version
    if rules != row.rules:
        row.rules = rules
        row.schedule_at = row.scheduled = row.needed = row.low_since = row.low_most = None
    row.vertical = "" if vertical.mode == OFF else vertical.mode
    row.horizontal = "" if horizontal.mode == OFF else horizontal.mode
    if not row.vertical:
        row.wanted_cpu = row.wanted_ram = row.wanted_since = None
    if not row.horizontal:
        row.wanted_tasks = None
    row.retry_at = row.limited_since = None
    row.limited_code = row.limited_detail = ""
