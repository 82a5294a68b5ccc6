"""Finds the largest limits with which machines can hold the tasks of a job at all. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.autoscaling.rules.histograms import Ints
from scheduling.autoscaling.rules.vertical_rules import UNITS
from scheduling.core.vocabulary.requirement import Requirement, padded


def largest_limits(
    wanted: tuple[int, int], now: tuple[int, int], requirement: Requirement, tasks: int, capacity: Ints
) -> tuple[int, int]:
    """Return the limits of CPU and RAM nearest to `wanted` with which empty machines can hold all tasks. RAM counts
    first, because a task with too little RAM ends. If the machines cannot hold all tasks even now, they must hold no
    fewer than now.

    `now`: the present limits of CPU and RAM. `requirement`: that of a task at present. `tasks`: how many tasks run at
    once. `capacity` [N, R]: the machines on which the tasks may run.
    """
    cpu, ram = min(wanted[0], now[0]), min(wanted[1], now[1])
    needed = min(tasks, _places(cpu, ram, requirement, capacity))
    if not needed:
        return cpu, ram
    ram = _largest(ram, wanted[1], UNITS[1], lambda more: _places(cpu, more, requirement, capacity) >= needed)
    return _largest(cpu, wanted[0], UNITS[0], lambda more: _places(more, ram, requirement, capacity) >= needed), ram


def _places(cpu: int, ram: int, requirement: Requirement, capacity: Ints) -> int:
    """Return how many tasks with these limits empty machines can hold."""
    limit = np.array(padded(requirement.limit, capacity.shape[1]), dtype=np.int64)
    limit[[CPU, RAM]] = cpu, ram
    asked = np.flatnonzero(limit > 0)
    per_machine = (capacity[:, asked] // limit[asked]).min(axis=1)
    return int(np.minimum(per_machine, requirement.max_per_machine or 2**31).sum())


def _largest(low: int, high: int, unit: int, fits: Callable[[int], bool]) -> int:
    """Return the largest value from `low`, which fits, to `high`: `high` itself, or `low` plus whole units."""
    if high <= low or fits(high):
        return max(low, high)
    least, most = 0, (high - low) // unit + 1  # units; the most does not fit, or is too much
    while most - least > 1:
        middle = (least + most) // 2
        if low + middle * unit < high and fits(low + middle * unit):
            least = middle
        else:
            most = middle
    return low + least * unit
