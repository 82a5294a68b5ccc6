"""Decides how many tasks a job has, from its load or by schedule. Pure.

load of all tasks ÷ target per task = tasks needed ─► smoothed ─► tolerance, schedule, bounds ─► up at once
                                                                                          └─► down when it lasts
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from zoneinfo import ZoneInfo

from scheduling.spec.autoscaling.fields import Horizontal, ScheduledTasks
from scheduling.spec.schedules import cron_lines

# One change adds at most as many tasks as there are, or this many if that is more.
LEAST_STEP = 4
# A load counts as at most this many times `max`, so that the average of an absurd measurement fades soon.
MOST_NEEDED = 10
# How far back the last time of a schedule is looked for.
LOOK_BACK = dt.timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Load:
    """The measured load of a job. `needed`: how many tasks it needs, so that each has the target load. `unmeasured`:
    how many running tasks are not measured yet; they count as idle for more tasks, and as busy for fewer tasks.
    `whole`: whether all signals of the job are known. Otherwise no task is removed because of the load.
    """

    needed: float
    unmeasured: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class ScaleState:
    """What is stored between two decisions: see the columns of `scheduling.models.JobAutoscaling`. Times are seconds
    since the epoch.
    """

    needed: float | None = None
    needed_at: float = 0.0
    low_since: float | None = None
    low_most: int = 0
    tasks_at: float = -math.inf


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """`wanted`: how many tasks the job should have by its load and schedule. `tasks`: how many it has from now on,
    which is the present number if nothing changes. `state`: what to store.
    """

    wanted: int
    tasks: int
    state: ScaleState


def decide(
    state: ScaleState, tasks: int, load: Load | None, scheduled: int | None, rules: Horizontal, *, now: float
) -> ScaleDecision:
    """Return the decision about a job with `tasks` tasks. `load`: None if it is not known, or if the job does not scale
    by load. Then tasks are neither added nor removed because of load. `scheduled`: the number by schedule, or None.
    """
    by_load: int | None = None
    unmeasured = 0
    if load is not None:
        needed = smoothed(state, min(load.needed, MOST_NEEDED * rules.max), rules.window_s, now)
        unmeasured = load.unmeasured
        if not load.whole and state.needed is not None:
            needed = max(needed, state.needed)
        state = replace(state, needed=needed, needed_at=now)
        by_load = _by_load(tasks, needed, unmeasured, rules.tolerance)
        if not load.whole:
            by_load = max(by_load, tasks)
    elif rules.cpu is not None or rules.metric is not None:
        by_load = tasks  # the load is unknown for now
    # Without a load and before the first time of a schedule, nothing asks for another number.
    wanted = max((number for number in (by_load, scheduled) if number is not None), default=tasks)
    wanted = min(max(wanted, rules.min), rules.max)
    if wanted >= tasks:
        state = replace(state, low_since=None, low_most=0)
        if wanted == tasks or now - state.tasks_at < rules.up_s:
            return ScaleDecision(wanted, tasks, state)
        return _changed(wanted, min(wanted, tasks + max(tasks, LEAST_STEP)), state, now)
    since = now if state.low_since is None else state.low_since
    state = replace(state, low_since=since, low_most=max(state.low_most, wanted))
    if now - since < rules.down_s:
        return ScaleDecision(wanted, tasks, state)
    return _changed(wanted, state.low_most, state, now)


def smoothed(state: ScaleState, needed: float, window_s: float, now: float) -> float:
    """Return the moving average of the needed tasks, in which older values fade with the time constant `window_s`."""
    if state.needed is None:
        return needed
    share = 1 - math.exp(-max(0.0, now - state.needed_at) / window_s)
    return state.needed + share * (needed - state.needed)


def _by_load(tasks: int, needed: float, unmeasured: int, tolerance: float) -> int:
    if needed > tasks * (1 + tolerance):
        return math.ceil(needed - 1e-6)
    if needed + unmeasured < tasks * (1 - tolerance):
        return max(1, math.ceil(needed + unmeasured - 1e-6))
    return tasks


def _changed(wanted: int, tasks: int, state: ScaleState, now: float) -> ScaleDecision:
    return ScaleDecision(wanted, tasks, replace(state, low_since=None, low_most=0, tasks_at=now))


def scheduled_tasks(
    schedule: Sequence[ScheduledTasks], now: dt.datetime, since: dt.datetime | None = None
) -> tuple[int | None, dt.datetime | None]:
    """Return the number of tasks by the newest time of the schedule that has come, and the next time of the schedule.
    The number is None if no time has come after `since`, by default `LOOK_BACK` ago. Of lines with the same time, the
    largest number counts.
    """
    newest: list[tuple[dt.datetime, int]] = []
    following: list[dt.datetime] = []
    for line in schedule:
        cron, zone = cron_lines.parse(line.at), ZoneInfo(line.time_zone)
        if (past := cron.newest_between(since or now - LOOK_BACK, now, zone)) is not None:
            newest.append((past, line.tasks))
        if (coming := cron.next_after(now, zone)) is not None:
            following.append(coming)
    return max(newest)[1] if newest else None, min(following, default=None)
