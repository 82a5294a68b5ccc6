"""Keeps the rows of the autoscaler in step with the specs of jobs: their rules, and what a user has set."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Protocol, TypeVar

import msgspec
import structlog

from scheduling.autoscaling.rejections import LIMITS, TASKS
from scheduling.jobs.actions.autoscaled import AUTOSCALER, ScaledValues, stored_values
from scheduling.journal.sql import execute, query
from scheduling.models import JobAutoscaling
from scheduling.spec.autoscaling.checks import bound_of
from scheduling.spec.autoscaling.fields import OFF, Autoscale, Horizontal, Vertical

log = structlog.get_logger(__name__)

# Rows that one query reads at most.
AT_ONCE = 500
_CHANGED = """
SELECT a.job_id, s.version, s.actor, (s.spec->'autoscale')::text,
  json_build_object('tasks', s.spec->'tasks', 'task', json_build_object('limit', s.spec->'task'->'limit'))::text
FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id
JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version
WHERE j.cell_id = %s AND j.state <> 'dead' AND a.version <> j.spec_version AND a.job_id > %s
ORDER BY a.job_id LIMIT %s
"""
# A stopped job of a service keeps its row: a start needs the values that a user has set.
_ENDED = """
DELETE FROM scheduling_jobautoscaling AS a USING scheduling_job AS j
WHERE j.id = a.job_id AND j.cell_id = %s AND j.state = 'dead'
  AND NOT EXISTS (SELECT FROM scheduling_stoppedjob AS s WHERE s.job_id = j.id)
"""
# Jobs without a row, as after a restore of the cell.
_MISSING = """
SELECT j.id FROM scheduling_job AS j JOIN scheduling_jobspec AS s ON s.job_id = j.id AND s.version = j.spec_version
WHERE j.cell_id = %s AND j.state <> 'dead' AND s.spec ? 'autoscale'
  AND NOT EXISTS (SELECT FROM scheduling_jobautoscaling AS a WHERE a.job_id = j.id) ORDER BY j.id
"""

# What users have set last, as far as it is known: the newest version that the autoscaler did not make.
_BY_USERS = """
SELECT DISTINCT ON (s.job_id) s.job_id,
  json_build_object('tasks', s.spec->'tasks', 'task', json_build_object('limit', s.spec->'task'->'limit'))::text
FROM scheduling_jobspec AS s WHERE s.job_id = ANY(%s) AND s.actor <> 'system:autoscaler'
ORDER BY s.job_id, s.version DESC
"""


def rows_follow(cell_id: int, now: dt.datetime) -> None:
    """Read the specs that have changed since the last call. Rows of jobs whose spec has no rules any more are deleted.

    If an update that is not its own has changed a value, the autoscaler leaves this value alone for some time. An error
    with the rules of one job ends only its scaling. Its row stays at its version, so that a newer version of the
    software reads it.
    """
    last = 0
    while found := query(_CHANGED, [cell_id, last, AT_ONCE]):
        _follow_all(found, now)
        last = found[-1][0]
        if len(found) < AT_ONCE:
            break


def _follow_all(found: Sequence[tuple[Any, ...]], now: dt.datetime) -> None:
    """Change the rows of jobs to their present specs, the rows `found` of `_CHANGED`."""
    rows = JobAutoscaling.objects.in_bulk([job_id for job_id, *_ in found])
    kept, gone = [], []
    for job_id, version, actor, rules, values in found:
        if job_id not in rows:
            continue
        if not rules:
            gone.append(job_id)
            continue
        row = rows[job_id]
        try:
            _follow(row, version, actor, msgspec.json.decode(rules), stored_values(msgspec.json.decode(values)), now)
        except Exception:  # such as rules that a newer version of the software has written
            if _is_first(job_id, version):
                log.exception("the autoscaler cannot read the rules of a job", job_id=job_id)
            continue
        kept.append(row)
    if kept:
        # One INSERT with ON CONFLICT: `bulk_update` would need a second for a hundred rows.
        JobAutoscaling.objects.bulk_create(
            kept, update_conflicts=True, update_fields=_COLUMNS, unique_fields=["job_id"]
        )
    JobAutoscaling.objects.filter(pk__in=gone).delete()


# The specs, as pairs of a job's id and a version, that this process could not read. Each is logged once.
_unreadable: set[tuple[int, int]] = set()


def _is_first(job_id: int, version: int) -> bool:
    """Return whether this process has not yet logged that it cannot read this version of the job's spec."""
    if len(_unreadable) > 10_000:
        return False
    number = len(_unreadable)
    _unreadable.add((job_id, version))
    return len(_unreadable) > number


_COLUMNS = (
    *("version", "rules", "vertical", "horizontal", "tasks", "cpu", "ram", "limits_at"),
    *("tasks_held_until", "limits_held_until", "wanted_cpu", "wanted_ram", "wanted_since", "wanted_tasks"),
    *("schedule_at", "scheduled", "needed"),
    *("low_since", "low_most", *TASKS.values(), *LIMITS.values()),
)


def rows_repair(cell_id: int) -> int:
    """Delete the rows of ended jobs, except of those that a start of their service brings back, and create missing
    rows. Return the number of created rows.
    """
    execute(_ENDED, [cell_id])
    missing = [job_id for (job_id,) in query(_MISSING, [cell_id])]
    if missing:
        rows = []
        for job_id, stored in query(_BY_USERS, [missing]):
            own = stored_values(msgspec.json.decode(stored))
            rows.append(JobAutoscaling(job_id=job_id, own_tasks=own.tasks, own_cpu=own.cpu, own_ram=own.ram))
        JobAutoscaling.objects.bulk_create(rows, ignore_conflicts=True)
    return len(missing)


class _Stored(Protocol):
    """A row that has the rules of a job as JSON."""

    @property
    def job_id(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def rules(self) -> str: ...


_Row = TypeVar("_Row", bound=_Stored)


def readable(rows: Iterable[_Row]) -> list[_Row]:
    """Return the rows whose rules this process can read. After `rows_follow` of a newer version of the software, rules
    may have fields that this version does not know. The newer version scales these jobs.
    """
    found = []
    for row in rows:
        try:
            read_rules(row.rules)
        except Exception:
            if _is_first(row.job_id, row.version):
                log.exception("the autoscaler cannot read the rules of a job", job_id=row.job_id)
            continue
        found.append(row)
    return found


@lru_cache(maxsize=8192)
def read_rules(stored: str) -> Autoscale:
    """Return rules from their JSON. Equal rules are parsed once."""
    return _checked(msgspec.json.decode(stored, type=Autoscale))


def _checked(rules: Autoscale) -> Autoscale:
    """Return rules. Raises an error if this version of the software cannot read an amount in them."""
    if rules.vertical is not None:
        for which, name in product(("min", "max"), ("cpu", "ram")):
            bound_of(rules.vertical, which, name)
    return rules


def _follow(
    row: JobAutoscaling, version: int, actor: str, rules: dict[str, Any], now_values: ScaledValues, now: dt.datetime
) -> None:
    """Change `row` to the version of the spec that `actor` made."""
    read = _checked(msgspec.convert(rules, Autoscale))
    vertical, horizontal = read.vertical or Vertical(mode=OFF), read.horizontal or Horizontal(max=1, mode=OFF)
    limits = (now_values.cpu, now_values.ram)
    if row.version and actor != AUTOSCALER.name:
        if now_values.tasks != row.tasks and horizontal.mode != OFF:
            row.tasks_held_until = now + dt.timedelta(seconds=horizontal.down_s)
        if limits != (row.cpu, row.ram):
            row.limits_at = now
            if vertical.mode != OFF:
                row.limits_held_until = now + dt.timedelta(seconds=vertical.every_s)
    row.tasks, row.cpu, row.ram = now_values
    row.version = version
    if rules != row.rules:
        before = row.rules.get("horizontal") or {}
        if before.get("schedule") != (rules.get("horizontal") or {}).get("schedule"):
            row.schedule_at = row.scheduled = None
        row.rules = rules
        row.needed = row.low_since = row.low_most = None
    row.vertical = "" if vertical.mode == OFF else vertical.mode
    row.horizontal = "" if horizontal.mode == OFF else horizontal.mode
    if not row.vertical:
        row.wanted_cpu = row.wanted_ram = row.wanted_since = None
    if not row.horizontal:
        row.wanted_tasks = None
    for name, value in (TASKS.values() | LIMITS.values()).items():
        setattr(row, name, value)
