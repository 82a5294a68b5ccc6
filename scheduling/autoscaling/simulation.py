"""Simulates the autoscaler on the recorded usage of a job, before it is switched on. Changes nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from quota.vocabulary.errors import Conflict
from scheduling.autoscaling.recorded_use import Recorded, recorded_use
from scheduling.autoscaling.rules import horizontal_rules
from scheduling.autoscaling.rules.replay import STEP_S, replay_limits, replay_tasks
from scheduling.autoscaling.rules.vertical_rules import rules_of
from scheduling.autoscaling.savings import ListPrice
from scheduling.jobs.updates import spec_of
from scheduling.models import Job
from scheduling.spec import job_spec as spec
from scheduling.spec import parser
from scheduling.spec.autoscaling.fields import Autoscale, Horizontal, Vertical

# Changes that the answer lists at most, the newest ones.
MOST_CHANGES = 100
# At most this part of the record is used as history before the first change.
_HISTORY = 0.25
_RESOURCES = ("cpu", "ram")


def simulate(job: Job, rules: Mapping[str, Any] | None, *, now: dt.datetime) -> dict[str, Any]:
    """Return what the autoscaler would have done to a job: its limits and number of tasks, what would have been unused,
    when memory would have been short, and what it would have cost. Makes a fixed number of queries.

    `rules`: the content of `autoscale`, by default the job's own; without them, default limits. Raises `Rejected` if
    they are wrong, and `Conflict` if there is no recorded usage.
    """
    job_spec = _with_rules(job, rules)
    read = job_spec.autoscale or Autoscale(vertical=Vertical())
    recorded = recorded_use(job, now=now)
    if recorded is None:
        detail = f"no usage of job {job.name} is recorded; its tasks have to run for some minutes first"
        raise Conflict("no-usage", detail)
    price = ListPrice(job)
    at = dt.datetime.fromtimestamp(recorded.begins_at, dt.UTC)
    steps = recorded.windows.ram.shape[2]
    return {
        "begins_at": at,
        "ends_at": at + dt.timedelta(seconds=steps * STEP_S),
        "vertical": None if read.vertical is None else _vertical(job, job_spec, read.vertical, recorded, price),
        "horizontal": None if read.horizontal is None else _horizontal(job_spec, read.horizontal, recorded, price),
    }


def _with_rules(job: Job, rules: Mapping[str, Any] | None) -> spec.JobSpecification:
    current = spec_of(job)
    if rules is None:
        return current
    limits = parser.CellLimits(bands=None, extra=tuple(job.cell.extra_resources))
    return parser.parse(current.to_json() | {"autoscale": rules}, limits=limits)


def _vertical(
    job: Job, job_spec: spec.JobSpecification, vertical: Vertical, recorded: Recorded, price: ListPrice
) -> dict[str, Any]:
    limits = np.array([job_spec.base.limit[:2]], dtype=np.int64)
    rules = rules_of([(vertical, job.latency_sensitive)])
    half_life_s = np.array([vertical.half_life_s])
    steps = recorded.windows.ram.shape[2]
    history_s = min(vertical.history_s, _HISTORY * steps * STEP_S)
    begin = int(history_s // STEP_S)
    arguments = (recorded.windows, limits, rules, half_life_s, np.array([history_s]))
    before, after = (replay_limits(*arguments, fixed=fixed, from_step=begin) for fixed in (True, False))
    mean = after.limit[0] / max(1, int(after.windows[0]))
    changes = after.changes[0]
    saved = job_spec.tasks * (limits[0] - mean)
    return {
        "history_s": history_s,
        "limits": dict(zip(_RESOURCES, limits[0].tolist(), strict=True)),
        "limits_at_end": dict(zip(_RESOURCES, after.last[0].tolist(), strict=True)),
        "slack": dict(zip(_RESOURCES, before.slack.round(4).tolist(), strict=True)),
        "slack_after": dict(zip(_RESOURCES, after.slack.round(4).tolist(), strict=True)),
        "task_days": int(after.task_days[0]),
        "oom_task_days": int(after.oom_days[0]),
        "throttled": round(int(after.throttled[0]) / max(1, int(after.windows[0])), 4),
        "changes_total": len(changes),
        "changes": [
            {"at": _time(recorded, step), "cpu": cpu, "ram": ram} for step, cpu, ram in changes[-MOST_CHANGES:]
        ],
        "saves_per_month": price.per_month(float(saved[0]), float(saved[1])),
    }


def _horizontal(
    job_spec: spec.JobSpecification, rules: Horizontal, recorded: Recorded, price: ListPrice
) -> dict[str, Any]:
    cpu, ram = job_spec.base.limit[:2]
    share = rules.cpu if rules.cpu is not None and cpu else None
    needed = recorded.cpu_total / (cpu * share) if share else np.full(len(recorded.cpu_total), np.nan)
    # Metrics are not recorded, so only CPU and the schedule decide here.
    replayed = msgspec.structs.replace(rules, metric=None, cpu=share)
    scheduled = _scheduled(rules, recorded, len(needed))
    start = min(max(job_spec.tasks, rules.min), rules.max)
    result = replay_tasks(needed, scheduled, start, replayed, begins_at=recorded.begins_at)
    places = [place for place in range(1, len(result.tasks)) if result.tasks[place] != result.tasks[place - 1]]
    ran = recorded.tasks[recorded.tasks > 0]
    before, after = float(ran.mean()) if len(ran) else 0.0, float(result.tasks.mean())
    return {
        "tasks": round(before, 2),
        "tasks_after": round(after, 2),
        "least": int(result.tasks.min()),
        "most": int(result.tasks.max()),
        "beyond": round(result.beyond, 4),
        "metric_left_out": rules.metric is not None,
        "changes_total": len(places),
        "changes": [
            {"at": _time(recorded, place - 1), "tasks": int(result.tasks[place])} for place in places[-MOST_CHANGES:]
        ],
        "saves_per_month": price.per_month((before - after) * cpu, (before - after) * ram),
    }


def _scheduled(rules: Horizontal, recorded: Recorded, steps: int) -> list[int | None]:
    """Return the number of tasks by schedule at the end of each window. Each time of the schedule is computed once."""
    result: list[int | None] = []
    tasks, following = (None, None) if not rules.schedule else _first(rules, recorded)
    for step in range(steps):
        now = _time(recorded, step)
        if following is not None and now >= following:
            found, following = horizontal_rules.scheduled_tasks(rules.schedule, now)
            tasks = tasks if found is None else found
        result.append(tasks)
    return result


def _first(rules: Horizontal, recorded: Recorded) -> tuple[int | None, dt.datetime | None]:
    return horizontal_rules.scheduled_tasks(rules.schedule, dt.datetime.fromtimestamp(recorded.begins_at, dt.UTC))


def _time(recorded: Recorded, step: int) -> dt.datetime:
    """Return the end of a window."""
    return dt.datetime.fromtimestamp(recorded.begins_at + (step + 1) * STEP_S, dt.UTC)
