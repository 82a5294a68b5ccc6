"""Decides the limits of tasks from their usage (Autopilot, EuroSys'20). Pure; all arrays have one element per job.

histograms ─► recommended ─► floor of reclamation ─► bounds of the job ─► at most half or double ─► next limits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.autoscaling.rules.histograms import CPU_BUCKETS, RAM_BUCKETS, Floats, Ints, Weights, peaks, percentiles
from scheduling.spec.autoscaling.checks import bound_of
from scheduling.spec.autoscaling.fields import Vertical

Bools = NDArray[np.bool_]

# After a task ran out of memory, its use counts as this factor of its limit.
OOM_FACTOR = 1.2
# Limits rise if the recommended ones are above this factor of them, and fall if they are below the other one.
RISE_AT, FALL_AT = 1.1, 0.85
# One change at most doubles a limit, or halves it.
LARGEST_STEP = 2.0
# Limits may rise again after this many seconds: more use is urgent, and less use is not.
RISE_EVERY_S = 300.0
UNITS = (10, 2**20)  # limits are whole multiples of these: milli-cores and bytes
_LARGEST = 2.0**53


class UsagePolicy(NamedTuple):
    """How limits follow from usage. `cpu_share`: the percentile of the use of CPU, 0 to 1. `ram_half_lives`: for how
    many half-lives the highest use of RAM counts. `cpu_margin`, `ram_margin`: what is added, as a share.
    """

    cpu_share: float
    ram_half_lives: float
    cpu_margin: float
    ram_margin: float


# Use beyond the limit slows a task down for CPU, and ends it for RAM. Latency-sensitive tasks have more to lose.
LATENCY_SENSITIVE = UsagePolicy(cpu_share=0.95, ram_half_lives=2.0, cpu_margin=0.10, ram_margin=0.12)
BATCH = UsagePolicy(cpu_share=0.90, ram_half_lives=2.0, cpu_margin=0.05, ram_margin=0.15)


def policy_of(*, latency_sensitive: bool, margin: float | None = None) -> UsagePolicy:
    """Return the policy of a job. `margin`: the margin that its spec sets for both resources."""
    policy = LATENCY_SENSITIVE if latency_sensitive else BATCH
    return policy if margin is None else policy._replace(cpu_margin=margin, ram_margin=margin)


@dataclass(frozen=True, slots=True, eq=False)
class LimitRules:
    """Settings of J jobs. `low`, `high` [J, 2]: the bounds of CPU and RAM. `every_s` [J]: the shortest time between
    changes. `policies`: one per job.
    """

    policies: tuple[UsagePolicy, ...]
    low: Floats
    high: Floats
    every_s: Floats

    def column(self, name: str) -> Floats:
        return np.array([getattr(policy, name) for policy in self.policies], dtype=np.float64)


def rules_of(jobs: Sequence[tuple[Vertical, bool]]) -> LimitRules:
    """Return the rules of jobs as arrays. `jobs`: the settings of each job, and whether it is latency-sensitive."""
    bounds = [
        [[bound_of(vertical, which, name) for name in ("cpu", "ram")] for which in ("min", "max")]
        for vertical, _ in jobs
    ]
    low = np.array([[value or 0 for value in lows] for lows, _ in bounds], dtype=np.float64).reshape(-1, 2)
    high = np.array(
        [[np.inf if value is None else value for value in highs] for _, highs in bounds], dtype=np.float64
    ).reshape(-1, 2)
    policies = tuple(policy_of(latency_sensitive=sensitive, margin=vertical.margin) for vertical, sensitive in jobs)
    return LimitRules(policies, low, high, np.array([vertical.every_s for vertical, _ in jobs]))


def recommended(cpu: Weights, ram: Weights, rules: LimitRules) -> Floats:
    """Return the recommended limits [J, 2], without bounds: milli-cores and bytes; 0 where nothing was measured."""
    of_cpu = percentiles(cpu, rules.column("cpu_share"), CPU_BUCKETS) * (1 + rules.column("cpu_margin"))
    least = np.exp2(-rules.column("ram_half_lives"))
    of_ram = peaks(ram, least, RAM_BUCKETS) * (1 + rules.column("ram_margin"))
    return np.stack([of_cpu, of_ram], axis=1)


def bounded(wanted: Floats, floor: Floats, rules: LimitRules, limits: Ints) -> Ints:
    """Return recommended limits within the bounds of the jobs, in whole units. All arrays are [J, 2].

    `floor`: what tasks are known to use. Limits never fall below it, but it raises none of them: one short burst of a
    task does not show that all need more. `limits`: the present limits, which stay where nothing was measured.
    """
    measured = wanted > 0
    kept = np.maximum(wanted, np.minimum(floor, limits))
    result = np.minimum(np.maximum(kept, rules.low), np.minimum(rules.high, _LARGEST))
    units = np.array(UNITS, dtype=np.float64)
    whole = (np.ceil(result / units) * units).astype(np.int64)
    return np.where(measured, np.maximum(whole, np.array(UNITS)), limits)


@dataclass(frozen=True, slots=True, eq=False)
class LimitChanges:
    """The decision about J jobs. `due` [J]: whether the limits change now. `limits` [J, 2]: the limits afterwards.
    `differs` [J]: whether the recommended limits differ enough from the present ones to be worth a change.
    """

    due: Bools
    limits: Ints
    differs: Bools


def decide(limits: Ints, target: Ints, rules: LimitRules, *, since_s: Floats, oom: Bools) -> LimitChanges:
    """Return which limits change now. `limits`, `target` [J, 2]: the present limits, and the result of `bounded`.

    `since_s` [J]: the time since the last change. `oom` [J]: whether a task ran out of memory since then. Its limit of
    RAM rises at once.
    """
    rises = target > limits * RISE_AT
    rises[:, 1] |= oom & (target[:, 1] > limits[:, 1])
    falls = target < limits * FALL_AT
    step = np.where(rises, np.minimum(target, limits * LARGEST_STEP), np.maximum(target, limits / LARGEST_STEP))
    units = np.array(UNITS)
    stepped = (np.ceil(step / units) * units).astype(np.int64)
    after = np.where(rises | falls, stepped, limits)
    risen = rises.any(axis=1) & ((since_s >= np.minimum(RISE_EVERY_S, rules.every_s)) | (oom & rises[:, 1]))
    fallen = falls.any(axis=1) & (since_s >= rules.every_s)
    # What rises early does not take with it what may not fall yet.
    after = np.where(falls & ~fallen[:, None], limits, after)
    due = (risen | fallen) & (after != limits).any(axis=1)
    return LimitChanges(due, after, np.any(rises | falls, axis=1))
