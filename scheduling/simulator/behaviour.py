"""Behaviour of tasks that is drawn from a seed: run times, usage, and failures of machines.

No generator keeps a position. Each value is a hash of the seed, the task and the time, so that a simulation can be
copied, rewound and branched, and a task behaves in the same way in every branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.layout import Floats, Ints
from scheduling.simulator.workload import Ending, MachineChange

DAY_S = 86_400.0
WINDOW_S = 300.0
"""Usage changes once per window."""

# The lowest priority of each class of Google's 2019 trace, and the mean of usage / request of its tasks.
_FROM = np.array([0, 100, 116, 120])
_CPU_SHARE = np.array([0.15, 0.34, 0.61, 0.42])
_RAM_SHARE = np.array([0.12, 0.36, 0.48, 0.63])
_DISK_SHARE = 0.5
_PROD_FROM = 120
_TASK, _CPU_WINDOW, _RAM_WINDOW, _LENGTH, _END = range(1, 6)


@dataclass(frozen=True)
class Drawn:
    """Tasks whose usage and run time are drawn from `seed`. The mean usage of each class of priorities is that of
    Google's 2019 trace. Prod tasks run until they are killed. The run time of other tasks is log-normal.

    `spread_task`, `spread_window`: standard deviations of the logarithm of the usage between tasks, and between the
    windows of one task. `median_s`, `spread_s`: the same for run times. `failing`: share of run times that end with a
    failure.
    """

    seed: int = 2011
    spread_task: float = 0.4
    spread_window: float = 0.25
    median_s: float = 1_200.0
    spread_s: float = 1.6
    failing: float = 0.015

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        if priority >= _PROD_FROM:
            return None
        one = np.array([task_id], dtype=np.int64)
        after_s = self.median_s * math.exp(self.spread_s * float(_normal(self.seed, _LENGTH, one, 0)[0]))
        fails = float(_uniform(self.seed, _END, one, incarnation)[0]) < self.failing
        return Ending(max(1.0, after_s), "failed" if fails else "finished")

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        kind = np.searchsorted(_FROM, priority, side="right") - 1
        window = int(now // WINDOW_S)
        own = self.spread_task * _normal(self.seed, _TASK, task_id, 0)
        result = np.zeros((len(task_id), 3), dtype=np.int64)
        for resource, share, salt in ((CPU, _CPU_SHARE, _CPU_WINDOW), (RAM, _RAM_SHARE, _RAM_WINDOW)):
            spread = self.spread_window if resource == CPU else self.spread_window / 3
            noise = own + spread * _normal(self.seed, salt, task_id, window)
            mean = math.exp((self.spread_task**2 + spread**2) / 2)
            used = limit[:, resource] * np.minimum(1.0, share[kind] * np.exp(noise) / mean)
            result[:, resource] = used.astype(np.int64)
        result[:, DISK] = (limit[:, DISK] * _DISK_SHARE).astype(np.int64)
        return result


def outages(
    machines: Sequence[events.MachineSet],
    *,
    seed: int,
    began: float,
    days: float,
    per_day: float = 0.025,
    median_s: float = 998.0,
) -> list[MachineChange]:
    """Return drawn failures and returns of machines over `days` days from the time `began`, sorted by time. The
    defaults are the figures of Google's cell in 2011: each machine leaves 0.025 times per day, and stays away for 998 s
    at the median.
    """
    rng = np.random.default_rng((seed, len(machines)))
    changes: list[MachineChange] = []
    for machine in machines:
        at = began
        while per_day > 0:
            at += float(rng.exponential(DAY_S / per_day))
            if at >= began + days * DAY_S:
                break
            away_s = median_s * math.exp(float(rng.normal()))
            changes.append(MachineChange(at, machine.machine_id, None))
            changes.append(MachineChange(at + away_s, machine.machine_id, machine))
            at += away_s
    return sorted(changes, key=lambda change: (change.at, change.machine_id))


def _uniform(seed: int, salt: int, task_id: Ints, moment: int) -> Floats:
    """Return numbers from 0 to 1 (exclusive), one per task."""
    x = task_id.astype(np.uint64)
    for value in (seed, salt, moment):
        x = _mixed(x ^ np.uint64((value * 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF))
    result: Floats = (x >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return result


def _normal(seed: int, salt: int, task_id: Ints, moment: int) -> Floats:
    """Return normally distributed numbers with mean 0 and variance 1, one per task."""
    radius = np.sqrt(-2.0 * np.log(1.0 - _uniform(seed, salt, task_id, moment)))
    result: Floats = radius * np.cos(2.0 * np.pi * _uniform(seed, salt + 1000, task_id, moment))
    return result


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values after the last steps of splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
