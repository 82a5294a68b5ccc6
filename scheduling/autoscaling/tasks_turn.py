"""Recommends numbers of tasks, and sets them where a job asks for it (horizontal scaling).

    Redis: use of CPU ─┐
    metrics of tasks ──┼─► load of each job ─► decision ─┬─► rows: smoothed load, since when fewer are enough
    schedule ──────────┘                                 └─► mode auto: changes, a few per turn

All jobs of a cell are read with one query, and written with one.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from scheduling.autoscaling.changes import UPDATING, Change, shared
from scheduling.autoscaling.measured_use import load_by_cpu, present_use
from scheduling.autoscaling.rejections import TASKS, Rejection, rejections_end
from scheduling.autoscaling.rows import read_rules, readable
from scheduling.autoscaling.rules import horizontal_rules
from scheduling.autoscaling.rules.horizontal_rules import Load, ScaleDecision, ScaleState
from scheduling.autoscaling.rules.loads import combined
from scheduling.autoscaling.task_metrics import metrics_read
from scheduling.jobs.actions.autoscaled import ScaledValues
from scheduling.journal.sql import execute, query
from scheduling.spec.autoscaling.fields import AUTO, Horizontal

log = structlog.get_logger(__name__)

EVERY_S = 5.0
# Jobs that one turn changes at most.
MOST_CHANGES = 20
# A smoothed load that differs less is not written, except after this time.
_LEAST_DIFFERENCE, _WRITTEN_EVERY_S = 0.005, 60.0
_ROWS = f"""
SELECT a.job_id, a.version, a.rules::text, a.horizontal, a.tasks, a.cpu, a.ram, a.tasks_held_until,
  a.needed,
  a.needed_at, a.wanted_tasks, a.low_since, a.low_most, a.scheduled, a.schedule_at, a.tasks_at, j.tasks_running,
  j.tasks_total - j.tasks_dead, j.tenant_id, {UPDATING}, {TASKS.sql}
FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id
WHERE j.cell_id = %s AND j.state <> 'dead' AND a.horizontal <> '' AND a.version = j.spec_version ORDER BY a.job_id
"""
_STORE = """
UPDATE scheduling_jobautoscaling AS a SET needed = n.needed, needed_at = n.needed_at, wanted_tasks = n.wanted_tasks,
  low_since = n.low_since, low_most = n.low_most, scheduled = n.scheduled, schedule_at = n.schedule_at
FROM unnest(%s::bigint[], %s::integer[], %s::float8[], %s::timestamptz[], %s::integer[], %s::timestamptz[],
  %s::integer[], %s::integer[], %s::timestamptz[]) AS n(job_id, version, needed, needed_at, wanted_tasks, low_since,
  low_most, scheduled, schedule_at)
WHERE a.job_id = n.job_id AND a.version = n.version
"""


@dataclass(slots=True)
class _Row:
    """A row of `_ROWS`."""

    job_id: int
    version: int
    rules: str
    mode: str
    tasks: int
    cpu: int
    ram: int
    tasks_held_until: dt.datetime | None
    needed: float | None
    needed_at: dt.datetime | None
    wanted_tasks: int | None
    low_since: dt.datetime | None
    low_most: int | None
    scheduled: int | None
    schedule_at: dt.datetime | None
    tasks_at: dt.datetime | None
    running: int
    live: int
    tenant_id: int
    updating: bool
    limited_code: str
    retry_at: dt.datetime | None
    stopped: bool

    @property
    def rejection(self) -> Rejection:
        return Rejection(self.limited_code, self.retry_at, self.stopped)

    @property
    def horizontal(self) -> Horizontal:
        return read_rules(self.rules).horizontal or Horizontal(max=self.tasks)

    @property
    def state(self) -> ScaleState:
        return ScaleState(
            self.needed,
            _seconds(self.needed_at) or 0.0,
            _seconds(self.low_since),
            self.low_most or 0,
            -math.inf if self.tasks_at is None else self.tasks_at.timestamp(),
        )


def tasks_recommend(cell_id: int, now: dt.datetime) -> list[Change]:
    """Store new recommendations of all jobs of a cell with horizontal scaling. Return the changes that are due, at most
    `MOST_CHANGES`, those that need more tasks first. Jobs of which a task has ended by itself are left out.
    """
    stored = readable(_Row(*row) for row in query(_ROWS, [cell_id]))
    rows = [row for row in stored if row.updating or row.live >= row.tasks]
    loads = _loads(cell_id, rows)
    decisions = []
    for row in rows:
        before = (row.scheduled, row.schedule_at)
        try:
            _follow_schedule(row, now)
            load, rules = loads.get(row.job_id), row.horizontal
            decision = horizontal_rules.decide(row.state, row.tasks, load, row.scheduled, rules, now=now.timestamp())
        except Exception:  # such as a time zone that this host does not have
            log.exception("the autoscaler cannot read the rules of a job", job_id=row.job_id)
            continue
        decisions.append((row, decision, before != (row.scheduled, row.schedule_at)))
    _store(decisions)
    rejections_end(TASKS, _rejections(stored, rows, decisions, loads), now)
    return _changes([(row, decision) for row, decision, _ in decisions], now)


def _rejections(
    stored: Sequence[_Row],
    rows: Sequence[_Row],
    decisions: Sequence[tuple[_Row, ScaleDecision, bool]],
    loads: Mapping[int, Load],
) -> list[tuple[int, Rejection, bool, bool]]:
    """Return the arguments of `rejections_end`. Jobs of which a task has ended by itself ask for nothing. Jobs whose
    load is unknown, and jobs without a decision, are left out.
    """
    scaled = {row.job_id for row in rows}
    wanted = {row.job_id: row.tasks for row in stored if row.job_id not in scaled}
    for row, decision, _ in decisions:
        if row.job_id in loads or not (row.horizontal.cpu or row.horizontal.metric):
            wanted[row.job_id] = decision.wanted
    return [
        (row.job_id, row.rejection, wanted[row.job_id] > row.tasks, wanted[row.job_id] != row.tasks)
        for row in stored
        if row.job_id in wanted
    ]


def _loads(cell_id: int, rows: Sequence[_Row]) -> Mapping[int, Load]:
    """Return the load of each job from all its signals, by job id. Jobs whose load is unknown are left out."""
    of_cpu: dict[int, Load | None] = {}
    by_cpu = [row for row in rows if row.horizontal.cpu is not None]
    use = present_use(cell_id, [row.job_id for row in by_cpu]) if by_cpu else None
    for place, row in enumerate(by_cpu if use is not None else ()):
        assert use is not None
        assert row.horizontal.cpu is not None
        of_cpu[row.job_id] = load_by_cpu(
            use.cpu[place], int(use.tasks[place]), row.running, limit=row.cpu, share=row.horizontal.cpu
        )
    asked = {row.job_id: metric for row in rows if (metric := row.horizontal.metric) is not None}
    of_metric = metrics_read(asked) if asked else {}
    found = {}
    for row in rows:
        signals = [of_cpu.get(row.job_id)] if row.horizontal.cpu is not None else []
        signals += [of_metric.get(row.job_id)] if row.job_id in asked else []
        if (load := combined(signals)) is not None:
            found[row.job_id] = load
    return found


def _follow_schedule(row: _Row, now: dt.datetime) -> None:
    """Set the number of tasks by schedule if a time of the schedule has come since the last turn."""
    schedule = row.horizontal.schedule
    if not schedule or (row.schedule_at is not None and now < row.schedule_at):
        return
    tasks, row.schedule_at = horizontal_rules.scheduled_tasks(schedule, now)
    row.scheduled = row.scheduled if tasks is None else tasks


def _store(decisions: Sequence[tuple[_Row, ScaleDecision, bool]]) -> None:
    """Write what has changed. A change of the number of tasks is stored with the update of the job."""
    new: list[tuple[Any, ...]] = []
    for row, decision, scheduled in decisions:
        state, old = decision.state, row.state
        changed = abs((state.needed or 0.0) - (old.needed or 0.0)) > _LEAST_DIFFERENCE * max(1.0, row.tasks)
        late = state.needed_at - old.needed_at > _WRITTEN_EVERY_S
        low = (state.low_since, state.low_most) != (old.low_since, old.low_most) and decision.tasks == row.tasks
        if not (scheduled or changed or late or low or decision.wanted != row.wanted_tasks):
            continue
        kept = state if decision.tasks == row.tasks else old
        new.append(
            (
                *(
                    row.job_id,
                    row.version,
                    state.needed,
                    _time(state.needed_at or None),
                    decision.wanted,
                    _time(kept.low_since),
                ),
                *(kept.low_most or None, row.scheduled, row.schedule_at),
            )
        )
    if new:
        execute(_STORE, [list(column) for column in zip(*new, strict=True)])


def _changes(decisions: Sequence[tuple[_Row, ScaleDecision]], now: dt.datetime) -> list[Change]:
    found: list[tuple[int, int, Change]] = []
    for row, decision in decisions:
        if decision.tasks == row.tasks or row.mode != AUTO or row.updating:
            continue
        held = row.tasks_held_until is not None and row.tasks_held_until > now
        if held or row.rejection.delays(now, more=decision.tasks > row.tasks):
            continue
        values = ScaledValues(decision.tasks, row.cpu, row.ram)
        times = {"tasks_at": now, "low_since": None, "low_most": None}
        change = Change(row.job_id, row.version, values, _why(row, decision), times, TASKS)
        found.append((row.tasks - decision.tasks, row.tenant_id, change))
    found.sort(key=lambda one: one[0])
    return shared([(tenant, change) for _, tenant, change in found], MOST_CHANGES)


def _why(row: _Row, decision: ScaleDecision) -> str:
    """Return the last part of the reason of a change, for the journal."""
    if row.scheduled is not None and decision.wanted == row.scheduled:
        return ", by schedule"
    needed = decision.state.needed
    if needed is None:
        return ""
    return f", because {needed:.1f} tasks are needed to bring the load of each to its target"


def _seconds(at: dt.datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _time(at: float | None) -> dt.datetime | None:
    return None if at is None else dt.datetime.fromtimestamp(at, dt.UTC)
