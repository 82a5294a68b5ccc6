"""Computes the load of a job from what was measured of its tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduling.autoscaling.rules.horizontal_rules import Load
from scheduling.spec.autoscaling.fields import MEAN, MOST, TaskMetric

# Tasks of a job that are asked for a metric at most. The others are taken to be like these.
MOST_TASKS = 50


def load_by_metric(values: Sequence[float], asked: int, running: int, metric: TaskMetric) -> Load | None:
    """Return the load of a job from the values of its measured tasks, or None without a value or if it is not finite.
    `asked`: how many tasks were asked; those that did not answer are unmeasured. The others are taken to be like those
    that answered. `running`: how many tasks run.
    """
    if not values:
        return None
    if metric.over == MOST:
        return _finite(Load(max(0.0, max(values)) / metric.target))
    mean = max(0.0, sum(values) / len(values))
    unmeasured = round(running * max(0, asked - len(values)) / max(1, asked))
    if metric.over == MEAN:
        return _finite(Load(mean / metric.target * (running - unmeasured), unmeasured))
    return _finite(Load(mean * (running - unmeasured) / metric.target, unmeasured))


def combined(loads: Sequence[Load | None]) -> Load | None:
    """Return the load of a job from all its signals, or None if none is known. The signal that needs most tasks decides
    whether tasks are added, and the one that may need most whether tasks are removed. `loads`: None for an unknown one.
    """
    known = [load for load in loads if load is not None]
    if not known:
        return None
    needed = max(load.needed for load in known)
    most = max(load.needed + load.unmeasured for load in known)
    return Load(needed, math.ceil(most - needed), whole=len(known) == len(loads))


def _finite(load: Load) -> Load | None:
    return load if math.isfinite(load.needed) else None
