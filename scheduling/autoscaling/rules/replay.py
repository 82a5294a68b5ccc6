"""Replays recorded usage: what the limits and the numbers of tasks would have been. Pure.

The same functions decide as in a cell, once per window of five minutes. What a task used is known only up to the limit
that it had then: a task that was throttled, or that ran out of memory, might have used more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import numpy as np

from scheduling.autoscaling.rules import histograms, horizontal_rules, vertical_rules
from scheduling.autoscaling.rules.histograms import CPU_BUCKETS, RAM_BUCKETS, Floats, Ints
from scheduling.autoscaling.rules.horizontal_rules import Load, ScaleState
from scheduling.autoscaling.rules.vertical_rules import Bools, LimitRules
from scheduling.spec.autoscaling.fields import Horizontal

STEP_S = 300.0
DAY_STEPS = 288
# Reclamation remembers a peak for half an hour to an hour, so limits do not fall below it.
FLOOR_STEPS = 6


class RecordedUse(NamedTuple):
    """Usage of J jobs with T tasks in S windows; NaN where there is none. `cpu` [J, T, S]: mean milli-cores.
    `cpu_counted` [J, T, S]: what the histogram counts of a window. `ram` [J, T, S]: the largest number of bytes.
    """

    cpu: Floats
    cpu_counted: Floats
    ram: Floats


@dataclass(slots=True)
class LimitReplay:
    """The result of `replay_limits`. Sums are over all tasks and windows, and [J, 2]: of CPU and of RAM.

    `limit`, `use`: the sums of the limits and of the use, which counts at most as much as the limit. `windows` [J]: how
    many windows of tasks there were. `task_days`, `oom_days` [J]: days of tasks, and those on which a task ran out of
    memory. `throttled` [J]: windows in which a task used more CPU on average than its limit. `last` [J, 2]: the limits
    at the end. `changes`: for each job the step and the limits of each change.
    """

    jobs: InitVar[int]
    last: Ints
    limit: Floats = field(init=False)
    use: Floats = field(init=False)
    windows: Ints = field(init=False)
    task_days: Ints = field(init=False)
    oom_days: Ints = field(init=False)
    throttled: Ints = field(init=False)
    changes: list[list[tuple[int, int, int]]] = field(init=False)

    def __post_init__(self, jobs: int) -> None:
        self.limit, self.use = np.zeros((jobs, 2)), np.zeros((jobs, 2))
        self.windows, self.task_days, self.oom_days, self.throttled = np.zeros((4, jobs), dtype=np.int64)
        self.changes = [[] for _ in range(jobs)]

    @property
    def slack(self) -> Floats:
        """Return the part of all limits that was not used, by resource."""
        result: Floats = 1 - self.use.sum(axis=0) / np.maximum(self.limit.sum(axis=0), 1e-9)
        return result


def replay_limits(
    recorded: RecordedUse,
    limits: Ints,
    rules: LimitRules,
    half_life_s: Floats,
    history_s: Floats,
    *,
    fixed: bool = False,
    from_step: int = 0,
) -> LimitReplay:
    """Return what vertical scaling would have done to jobs with the limits `limits` [J, 2] at the start. `fixed`: the
    limits stay, for a comparison. `from_step`: the sums leave out what is before.
    """
    jobs, tasks, steps = recorded.ram.shape
    cpu, ram = histograms.empty(jobs, CPU_BUCKETS), histograms.empty(jobs, RAM_BUCKETS)
    counted, present = CPU_BUCKETS.of(np.nan_to_num(recorded.cpu_counted)), ~np.isnan(recorded.ram)
    used_lately = np.zeros((FLOOR_STEPS, jobs, 2))  # the largest use of a task, in the last windows
    limits = limits.copy()
    changed_at, oom_at = np.full(jobs, -np.inf), np.full(jobs, -np.inf)
    first_at = np.where(present.any(axis=(1, 2)), np.argmax(present.any(axis=1), axis=1) * STEP_S, np.inf)
    oom_days = np.zeros((jobs, tasks, steps // DAY_STEPS + 1), dtype=np.bool_)
    days = np.zeros_like(oom_days)
    found = LimitReplay(jobs, limits)
    for step in range(steps):
        now, there = (step + 1) * STEP_S, present[:, :, step]
        killed = there & (np.nan_to_num(recorded.ram[:, :, step]) > limits[:, 1, None])
        if step >= from_step:
            _count(found, recorded, limits, there, step)
            days[:, :, step // DAY_STEPS] |= there
            oom_days[:, :, step // DAY_STEPS] |= killed
        if fixed:
            continue
        seen = np.where(killed, limits[:, 1, None] * vertical_rules.OOM_FACTOR, np.nan_to_num(recorded.ram[:, :, step]))
        passed_s = np.full(jobs, STEP_S)
        for weights, buckets in ((cpu, counted[:, :, step]), (ram, RAM_BUCKETS.of(seen))):
            histograms.decay(weights, passed_s, half_life_s)
            job, _ = np.nonzero(there)
            np.add.at(weights, (job, buckets[there]), 1.0)
        oom_at[killed.any(axis=1)] = now
        # What a task would have used beyond its limit is not known: a cell sees at most the limit.
        used_lately[step % FLOOR_STEPS] = np.minimum(
            np.stack(
                [np.nan_to_num(values[:, :, step]).max(axis=1) for values in (recorded.cpu, recorded.ram)], axis=1
            ),
            limits,
        )
        oom = oom_at > changed_at
        wanted = vertical_rules.recommended(cpu, ram, rules)
        enough = now - first_at >= history_s
        wanted[~enough, 0] = 0.0
        wanted[~enough & ~oom, 1] = 0.0
        target = vertical_rules.bounded(wanted, used_lately.max(axis=0), rules, limits)
        target[~enough, 1] = np.maximum(target[~enough, 1], limits[~enough, 1])
        decided = vertical_rules.decide(limits, target, rules, since_s=now - changed_at, oom=oom)
        for place in np.flatnonzero(decided.due).tolist():
            found.changes[place].append((step, *decided.limits[place].tolist()))
        limits[decided.due] = decided.limits[decided.due]
        changed_at[decided.due] = now
    found.task_days = days.sum(axis=(1, 2))
    found.oom_days = oom_days.sum(axis=(1, 2))
    return found


def _count(found: LimitReplay, recorded: RecordedUse, limits: Ints, there: Bools, step: int) -> None:
    number = there.sum(axis=1)
    cpu, ram = (np.nan_to_num(values[:, :, step]) for values in (recorded.cpu, recorded.ram))
    found.limit += limits * number[:, None]
    found.use[:, 0] += np.where(there, np.minimum(cpu, limits[:, 0, None]), 0).sum(axis=1)
    found.use[:, 1] += np.where(there, np.minimum(ram, limits[:, 1, None]), 0).sum(axis=1)
    found.windows += number
    found.throttled += (there & (cpu > limits[:, 0, None])).sum(axis=1)


@dataclass(frozen=True, slots=True)
class TaskReplay:
    """The result of `replay_tasks`. `tasks` [S]: the number of tasks in each window. `beyond`: the share of the windows
    in which the load needed more tasks than there were, beyond the tolerance.
    """

    tasks: Ints
    beyond: float


def replay_tasks(
    needed: Floats, scheduled: Sequence[int | None], tasks: int, rules: Horizontal, *, begins_at: float
) -> TaskReplay:
    """Return what horizontal scaling would have done to a job with `tasks` tasks at the start. `needed` [S]: how many
    tasks the load of a window needed; NaN where it is unknown. `scheduled`: the number by schedule in each window.
    `begins_at`: the start of the first window, in seconds since the epoch.
    """
    state = ScaleState()
    result = np.zeros(len(needed), dtype=np.int64)
    beyond = 0
    for step, load in enumerate(needed.tolist()):
        result[step] = tasks
        known = load == load  # not NaN
        beyond += known and load > tasks * (1 + rules.tolerance)
        now = begins_at + (step + 1) * STEP_S
        decision = horizontal_rules.decide(state, tasks, Load(load) if known else None, scheduled[step], rules, now=now)
        state, tasks = decision.state, decision.tasks
    return TaskReplay(result, beyond / max(1, int(np.count_nonzero(~np.isnan(needed)))))
