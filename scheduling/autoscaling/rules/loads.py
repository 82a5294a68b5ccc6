"""Computes the load of a job from what was measured of its tasks. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduling.autoscaling.rules.horizontal_rules import Load
from scheduling.spec.autoscaling.fields import MEAN, MOST, TaskMetric

# Tasks of a job that are asked for a metric at most. The others are taken to be like these.
MOST_TASKS = 50


def load_by_metric(values: Sequence[float], running: int, metric: TaskMetric) -> Load | None:
    """Return the load of a job from the values of its measured tasks, or None without a value or if it is not finite.
    `running`: how many tasks run.
    """
    if not values:
        return None
    if metric.over == MOST:
        return _finite(Load(max(0.0, max(values)) / metric.target))
    mean = max(0.0, sum(values) / len(values))
    asked = min(running, MOST_TASKS)
    unmeasured = round(running * max(0, asked - len(values)) / max(1, asked))
    if metric.over == MEAN:
        return _finite(Load(mean / metric.target * (running - unmeasured), unmeasured))
    return _finite(Load(mean * (running - unmeasured) / metric.target, unmeasured))


def _finite(load: Load) -> Load | None:
    return load if math.isfinite(load.needed) else None
