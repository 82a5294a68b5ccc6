"""Recommends limits of tasks, and sets them where a job asks for it (vertical scaling).

    windows of usage ─► histograms of each job ─► recommended limits ─┬─► rows: pages, REST, notices
    reservations, tasks out of memory ────────────────────────────────┘└─► mode auto: changes, a few per turn

The row of each job stores until when its windows are in its histograms, and one transaction writes both. So each window
counts once, also if a process is killed, the job changes during a turn, or a turn leaves it out. All jobs of a cell are
read with five queries, and written with one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import transaction

from scheduling.autoscaling.changes import UPDATING, Change, shared
from scheduling.autoscaling.measured_use import MeasuredJobs, NewUse, TaskFacts, present_use, tasks_read, windows_read
from scheduling.autoscaling.rejections import LIMITS, Rejection, rejections_end
from scheduling.autoscaling.rows import read_rules, readable
from scheduling.autoscaling.rules import histograms, vertical_rules
from scheduling.autoscaling.rules.histograms import CPU_BUCKETS, RAM_BUCKETS, Ints, Weights
from scheduling.autoscaling.rules.vertical_rules import Bools, LimitChanges, LimitRules, rules_of
from scheduling.jobs.actions.autoscaled import ScaledValues
from scheduling.journal.sql import execute, query
from scheduling.models import CellAutoscaling
from scheduling.spec.autoscaling.fields import AUTO, Vertical

EVERY_S = 60.0
# Windows arrive some time after their end. Those that arrive later than this are left out.
DELAY = dt.timedelta(seconds=120)
# Jobs that one turn changes at most.
MOST_CHANGES = 50
# Jobs whose histograms are this old are read apart, at most so many per turn, because PostgreSQL then reads more
# partitions. New jobs read all usage that is stored. A row is written at least this often.
LATE = dt.timedelta(minutes=10)
MOST_LATE, MOST_NEW = 2000, 200
_ROWS = f"""
SELECT a.job_id, a.version, a.rules::text, a.vertical, a.horizontal, a.tasks, a.cpu, a.ram,
  a.limits_held_until,
  a.cpu_weights, a.ram_weights, a.decayed_at, a.first_at, a.wanted_cpu, a.wanted_ram, a.wanted_since, a.oom_at,
  a.oom_sum, a.limits_at, j.latency_sensitive, j.tenant_id,
  {UPDATING}, {LIMITS.sql}, a.limited_of
FROM scheduling_jobautoscaling AS a JOIN scheduling_job AS j ON j.id = a.job_id
WHERE j.cell_id = %s AND j.state <> 'dead' AND a.vertical <> '' AND a.version = j.spec_version ORDER BY a.job_id
"""
_STORE = """
UPDATE scheduling_jobautoscaling AS a SET
  cpu_weights = coalesce(n.cpu_weights, a.cpu_weights), ram_weights = coalesce(n.ram_weights, a.ram_weights),
  decayed_at = coalesce(n.decayed_at, a.decayed_at), first_at = n.first_at, oom_at = n.oom_at,
  oom_sum = n.oom_sum,
  wanted_cpu = CASE WHEN a.version = n.version THEN n.wanted_cpu ELSE a.wanted_cpu END,
  wanted_ram = CASE WHEN a.version = n.version THEN n.wanted_ram ELSE a.wanted_ram END,
  wanted_since = CASE WHEN a.version = n.version THEN n.wanted_since ELSE a.wanted_since END
FROM unnest(%s::bigint[], %s::integer[], %s::bytea[], %s::bytea[], %s::timestamptz[], %s::timestamptz[],
  %s::timestamptz[], %s::float8[], %s::bigint[], %s::bigint[], %s::timestamptz[])
  AS n(job_id, version, cpu_weights, ram_weights, decayed_at, first_at, oom_at, oom_sum, wanted_cpu, wanted_ram,
    wanted_since)
WHERE a.job_id = n.job_id
"""
# Earlier versions of the software also stored rejections of numbers of tasks in these columns.
_UNUSED = f"""
UPDATE scheduling_jobautoscaling AS a SET {LIMITS.code} = '', {LIMITS.detail} = '', {LIMITS.since} = NULL
FROM scheduling_job AS j
WHERE j.id = a.job_id AND j.cell_id = %s AND a.vertical = '' AND a.{LIMITS.since} IS NOT NULL
"""
# The most CPU and RAM that a machine has. Before limits rise, `changes` asks for a machine that has both.
_LARGEST = """
SELECT coalesce(max(capacity[1]), 0)::float8, coalesce(max(capacity[2]), 0)::float8 FROM scheduling_machine
WHERE cell_id = %s AND state = 'up'
"""


@dataclass(slots=True)
class _Row:
    """A row of `_ROWS`."""

    job_id: int
    version: int
    rules: str
    mode: str
    horizontal: str
    tasks: int
    cpu: int
    ram: int
    limits_held_until: dt.datetime | None
    cpu_weights: bytes
    ram_weights: bytes
    decayed_at: dt.datetime | None
    first_at: dt.datetime | None
    wanted_cpu: int | None
    wanted_ram: int | None
    wanted_since: dt.datetime | None
    oom_at: dt.datetime | None
    oom_sum: float
    limits_at: dt.datetime | None
    latency_sensitive: bool
    tenant_id: int
    updating: bool
    limited_code: str
    retry_at: dt.datetime | None
    stopped: bool
    limited_of: str

    @property
    def rejection(self) -> Rejection:
        return Rejection(self.limited_code, self.retry_at, self.stopped)

    def is_late(self, until: dt.datetime) -> bool:
        """Return whether older windows of the job may be missing in its histograms."""
        return self.decayed_at is None or until - self.decayed_at > LATE

    @property
    def vertical(self) -> Vertical:
        return read_rules(self.rules).vertical or Vertical()

    @property
    def by_cpu(self) -> bool:
        """Return whether the number of tasks follows the use of CPU, so that their limit of CPU has to stay."""
        horizontal = read_rules(self.rules).horizontal
        return self.horizontal == AUTO and horizontal is not None and horizontal.cpu is not None


def limits_recommend(cell_id: int, now: dt.datetime) -> list[Change]:
    """Store new recommendations of all jobs of a cell with vertical scaling. Return the changes that are due, the most
    urgent ones first. Does nothing if the last turn was less than `EVERY_S` ago.
    """
    with transaction.atomic():
        progress = CellAutoscaling.objects.select_for_update(skip_locked=True).filter(pk=cell_id).first()
        if progress is None:
            return []
        until = now - DELAY
        if progress.folded_until is not None and (until - progress.folded_until).total_seconds() < EVERY_S:
            return []
        rows = _read_rows(cell_id, until)
        changes = _recommend(cell_id, rows, until, now) if rows else []
        execute(_UNUSED, [cell_id])
        CellAutoscaling.objects.filter(pk=cell_id).update(folded_until=until)
    return changes


def _read_rows(cell_id: int, until: dt.datetime) -> list[_Row]:
    """Return the jobs of this turn. If there are too many new jobs, or too many whose histograms are late, such as
    after an outage, the others follow in the next turns.
    """
    rows = readable(_Row(*row) for row in query(_ROWS, [cell_id]))
    new = [row for row in rows if row.decayed_at is None]
    late = [row for row in rows if row.decayed_at is not None and row.is_late(until)]
    late.sort(key=lambda row: row.decayed_at or until)
    left_out = {row.job_id for row in (*new[MOST_NEW:], *late[MOST_LATE:])}
    return [row for row in rows if row.job_id not in left_out]


def _recommend(cell_id: int, rows: Sequence[_Row], until: dt.datetime, now: dt.datetime) -> list[Change]:
    cpu = histograms.unpack([row.cpu_weights for row in rows], CPU_BUCKETS)
    ram = histograms.unpack([row.ram_weights for row in rows], RAM_BUCKETS)
    half_life_s = np.array([row.vertical.half_life_s for row in rows])
    passed_s = np.array([_since(row.decayed_at, until) or 0.0 for row in rows])
    histograms.decay(cpu, passed_s, half_life_s)
    histograms.decay(ram, passed_s, half_life_s)
    fresh = _add_windows(rows, cpu, ram, until)
    facts = tasks_read([row.job_id for row in rows])
    _add_kills(rows, ram, facts, fresh, now)
    rules = rules_of([(row.vertical, row.latency_sensitive) for row in rows])
    limits = np.array([(row.cpu, row.ram) for row in rows], dtype=np.int64)
    _limit_to_machines(cell_id, rules, limits)
    wanted = vertical_rules.recommended(cpu, ram, rules)
    enough = np.array([_enough(row, now) for row in rows])
    oom = np.array([_out_of_memory(row) for row in rows])
    wanted[~enough, 0] = 0.0
    wanted[~enough & ~oom, 1] = 0.0
    wanted[np.array([row.by_cpu for row in rows]), 0] = 0.0
    present = present_use(cell_id, [row.job_id for row in rows])
    floor = facts.reserved if present is None else np.maximum(facts.reserved, present.most)
    target = vertical_rules.bounded(wanted, floor, rules, limits)
    # Before there is enough history, a task out of memory is a reason for more RAM, and for nothing else.
    target[~enough, 1] = np.maximum(target[~enough, 1], limits[~enough, 1])
    since_s = np.array([np.inf if (since := _since(row.limits_at, now)) is None else since for row in rows])
    decided = vertical_rules.decide(limits, target, rules, since_s=since_s, oom=oom)
    _store(rows, cpu, ram, fresh, decided, np.where((enough | oom)[:, None], target, 0), until, now)
    more: list[bool] = np.any(decided.limits > limits, axis=1).tolist()
    ids, rejections = [row.job_id for row in rows], [row.rejection for row in rows]
    rejections_end(LIMITS, zip(ids, rejections, more, decided.differs.tolist(), strict=True), now)
    return _changes(rows, decided, oom, now)


def _add_windows(rows: Sequence[_Row], cpu: Weights, ram: Weights, until: dt.datetime) -> Bools:
    """Add the new windows of each job to its histograms: those after the newest one in it, and for a new job all that
    are stored. Return which rows are written because of it.
    """
    late = np.array([row.is_late(until) for row in rows])
    new = np.array([row.decayed_at is None for row in rows])
    fresh: Bools = late.copy()
    for part in (~late, late & ~new, new):
        places = np.flatnonzero(part).tolist()
        read = windows_read(_measured([rows[place] for place in places], until), until=until)
        _add(rows, places, read, cpu, ram, fresh)
    return fresh


def _measured(rows: Sequence[_Row], until: dt.datetime) -> MeasuredJobs:
    return MeasuredJobs(
        [row.job_id for row in rows],
        [row.vertical.half_life_s for row in rows],
        [row.latency_sensitive for row in rows],
        [row.decayed_at or until - dt.timedelta(days=400) for row in rows],
    )


def _add(rows: Sequence[_Row], places: Sequence[int], read: NewUse, cpu: Weights, ram: Weights, fresh: Bools) -> None:
    at = np.array(places, dtype=np.int64)
    cpu[at] += read.cpu
    ram[at] += read.ram
    for place, first in zip(places, read.first_at, strict=True):
        if first is not None:
            fresh[place] = True
            row = rows[place]
            row.first_at = first if row.first_at is None else min(row.first_at, first)


def _limit_to_machines(cell_id: int, rules: LimitRules, limits: Ints) -> None:
    """Lower the upper bounds to the size of the largest machine, but not below the present limits."""
    largest = np.array(query(_LARGEST, [cell_id])[0])
    if largest.all():
        np.minimum(rules.high, np.maximum(largest, limits), out=rules.high)


def _add_kills(rows: Sequence[_Row], ram: Weights, facts: TaskFacts, fresh: Bools, now: dt.datetime) -> None:
    """Count a task that ran out of memory since the last turn as use above its limit. Earlier ends do not count in the
    first turn of a row, and ends under a limit from which the job has been raised do not count at all.
    """
    for place, (row, oom_sum) in enumerate(zip(rows, facts.oom_sum.tolist(), strict=True)):
        further, differs = oom_sum > row.oom_sum, oom_sum != row.oom_sum
        row.oom_sum = oom_sum
        fresh[place] |= differs  # so that a lower sum is stored too
        changed_at = -np.inf if row.limits_at is None else row.limits_at.timestamp()
        used = facts.oom_limit[place] * vertical_rules.OOM_FACTOR
        if not further or row.decayed_at is None or facts.oom_at[place] <= changed_at or used <= row.ram:
            continue
        ram[place, RAM_BUCKETS.of(np.array([used]))[0]] += 1.0
        row.oom_at = now
        fresh[place] = True


def _enough(row: _Row, now: dt.datetime) -> bool:
    since = _since(row.first_at, now)
    return since is not None and since >= row.vertical.history_s


def _out_of_memory(row: _Row) -> bool:
    return row.oom_at is not None and (row.limits_at is None or row.oom_at > row.limits_at)


def _since(at: dt.datetime | None, now: dt.datetime) -> float | None:
    return None if at is None else (now - at).total_seconds()


def _store(
    rows: Sequence[_Row],
    cpu: Weights,
    ram: Weights,
    fresh: Bools,
    decided: LimitChanges,
    target: Ints,
    until: dt.datetime,
    now: dt.datetime,
) -> None:
    """Write what has changed. Histograms without new measurements stay: they decay by their time."""
    new: list[tuple[Any, ...]] = []
    for place, row in enumerate(rows):
        wanted = tuple(int(value) or None for value in target[place])
        since = (row.wanted_since or now) if decided.differs[place] else None
        if not fresh[place] and (*wanted, since) == (row.wanted_cpu, row.wanted_ram, row.wanted_since):
            continue
        weights: tuple[Any, ...] = (None, None, None)
        if fresh[place]:
            weights = (*histograms.pack(cpu[place : place + 1]), *histograms.pack(ram[place : place + 1]), until)
        new.append((row.job_id, row.version, *weights, row.first_at, row.oom_at, row.oom_sum, *wanted, since))
    if new:
        execute(_STORE, [list(column) for column in zip(*new, strict=True)])


def _waiting(row: _Row, now: dt.datetime, *, killed: bool) -> frozenset[str]:
    """Return the resources whose rise waits for the next attempt, because it was rejected. RAM does not wait after a
    task ran out of memory.
    """
    if not row.rejection.delays(now, more=True):
        return frozenset()
    waiting = frozenset((row.limited_of or "cpu,ram").split(","))
    return waiting - {"ram"} if killed else waiting


def _changes(rows: Sequence[_Row], decided: LimitChanges, oom: Bools, now: dt.datetime) -> list[Change]:
    """Return the due changes, at most `MOST_CHANGES`: first of jobs with tasks out of memory, then of those that need
    more, then of those that free most.
    """
    found: list[tuple[tuple[bool, bool, float], int, Change]] = []
    for place in np.flatnonzero(decided.due).tolist():
        row = rows[place]
        cpu, ram = (int(value) for value in decided.limits[place])
        killed = bool(oom[place])
        waiting = _waiting(row, now, killed=killed)
        cpu = min(cpu, row.cpu) if "cpu" in waiting else cpu
        ram = min(ram, row.ram) if "ram" in waiting else ram
        held = not killed and row.limits_held_until is not None and row.limits_held_until > now
        delayed = row.rejection.delays(now, more=False) or (cpu, ram) == (row.cpu, row.ram)
        if row.mode != AUTO or row.updating or held or delayed:
            continue
        freed = row.tasks * max((row.cpu - cpu) / max(row.cpu, 1), (row.ram - ram) / max(row.ram, 1))
        values = ScaledValues(row.tasks, cpu, ram)
        why = ", because a task ran out of memory" if killed else ", by measured use"
        # A rise that was rejected before is tried in each turn, but keeps no other job from changing.
        urgency = (not killed or bool(row.limited_code), cpu <= row.cpu and ram <= row.ram, -freed)
        times = {"limits_at": now}
        change = Change(row.job_id, row.version, values, why, times, LIMITS, waiting, killed and ram > row.ram)
        found.append((urgency, row.tenant_id, change))
    found.sort(key=lambda one: one[0])
    return shared([(tenant, change) for _, tenant, change in found], MOST_CHANGES)
