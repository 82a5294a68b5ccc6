"""Finds the largest limits with which a machine can hold a task at all. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.autoscaling.rules.histograms import Ints
from scheduling.autoscaling.rules.vertical_rules import UNITS
from scheduling.core.vocabulary.requirement import padded


def largest_limits(
    wanted: tuple[int, int], now: tuple[int, int], limit: Sequence[int], capacity: Ints
) -> tuple[int, int]:
    """Return the limits of CPU and RAM nearest to `wanted` with which an empty machine can hold a task. RAM counts
    first, because a task with too little RAM ends. Without such a machine, no limit rises.

    `now`: the present limits of CPU and RAM. `limit`: all present limits of a task. `capacity` [N, R]: the machines on
    which the task may run.
    """
    low = np.minimum(wanted, now)
    least = np.array(padded(limit, capacity.shape[1]), dtype=np.int64)
    least[[CPU, RAM]] = low
    able = capacity[(capacity >= least).all(axis=1)][:, [CPU, RAM]]
    if not len(able):
        return int(low[0]), int(low[1])
    units = np.array(UNITS)
    # A wanted limit that fits stays as it is; others become whole units.
    held = np.where(able >= np.array(wanted), np.array(wanted), np.maximum(able // units * units, low))
    cpu, ram = held[np.lexsort((held[:, 0], held[:, 1]))[-1]].tolist()
    return cpu, ram
