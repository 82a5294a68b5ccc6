"""Random behaviour of tasks and machines, which depends on a seed: run times, usage, and failures of machines.

There is no random generator whose state would have to be copied: each value is a hash of the seed, the task and the
time. So a simulation can be copied, rewound and branched, and a task behaves in the same way in every branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints
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
_TASK, _WINDOW, _LENGTH, _END = range(1, 5)


@dataclass(frozen=True)
class Drawn:
    """The behaviour of tasks whose usage and run time are random (from `seed`). The mean usage of each class of
    priorities is that of Google's 2019 trace. Prod tasks run until they are killed. The run time of other tasks is
    log-normal.

    `spread_task`, `spread_window`: standard deviations of the logarithm of the usage between tasks, and between the
    windows of one task. `median_s`, `spread_s`: the same for run times. `failing`: share of run times that end with a
    failure.
    """

    seed: int = 2011
    spread_task: float = 0.4
    spread_window: float = 0.1
    median_s: float = 1_200.0
    spread_s: float = 1.6
    failing: float = 0.015

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        if priority >= _PROD_FROM:
            return None
        one = np.array([task_id], dtype=np.int64)
        after_s = self.median_s * math.exp(self.spread_s * float(_normals(self.seed, _LENGTH, one, 0)[0][0]))
        fails = int(_hashes(self.seed, _END, one, incarnation)[0]) < self.failing * 2**64
        return Ending(max(1.0, after_s), "failed" if fails else "finished")

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        kind = np.searchsorted(_FROM, priority, side="right") - 1
        own, _ = _normals(self.seed, _TASK, task_id, 0)
        noises = _normals(self.seed, _WINDOW, task_id, int(now // WINDOW_S))
        result = np.empty((len(task_id), 3), dtype=np.int64)
        for resource, share, noise in zip((CPU, RAM), (_CPU_SHARE, _RAM_SHARE), noises, strict=True):
            spread = self.spread_window if resource == CPU else self.spread_window / 3
            mean = math.exp((self.spread_task**2 + spread**2) / 2)
            factor = np.exp(self.spread_task * own + spread * noise) * (share[kind] / mean)
            result[:, resource] = limit[:, resource] * np.minimum(1.0, factor)
        result[:, DISK] = limit[:, DISK] * _DISK_SHARE
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
    """Return random failures and returns of machines over `days` days from the time `began`, sorted by time. The
    defaults are the figures of Google's cell in 2011: each machine fails 0.025 times per day, and returns after 998 s
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


def _normals(seed: int, salt: int, task_id: Ints, moment: int) -> tuple[Floats, Floats]:
    """Return two arrays of numbers with mean 0, variance 1 and a shape close to the normal distribution, one number per
    task in each array. Equal arguments give equal numbers. `salt`: differs for each use of a seed. `moment`: the time.
    """
    bits = _hashes(seed, salt, task_id, moment)
    pieces = [((bits >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.float64) for shift in (0, 16, 32, 48)]
    # The sum of two uniform numbers from 0 to 1 has mean 1 and variance 1/6.
    scale = math.sqrt(6.0)
    first: Floats = ((pieces[0] + pieces[1]) / 65_535.0 - 1.0) * scale
    second: Floats = ((pieces[2] + pieces[3]) / 65_535.0 - 1.0) * scale
    return first, second


def _hashes(seed: int, salt: int, task_id: Ints, moment: int) -> NDArray[np.uint64]:
    key = (seed * 0x9E3779B97F4A7C15 + salt * 0xC2B2AE3D27D4EB4F + moment * 0x165667B19E3779F9) & (2**64 - 1)
    return _mixed(_mixed(task_id.astype(np.uint64)) ^ np.uint64(key))


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return well mixed hashes of `x`, by the last steps of the random generator splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
