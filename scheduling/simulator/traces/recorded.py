"""The behaviour of tasks that was recorded in a real cell: usage, run times and ends. Tasks without recorded usage have
random usage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.simulator.behaviour import WINDOW_S, Drawn
from scheduling.simulator.workload import Ending

_GOLDEN = 0.6180337887498949
_SWINGS_PER_WINDOW = 0.37  # so that usage comes close to its maximum about every quarter of an hour


class RecordedEnd(NamedTuple):
    """The recorded end of a task. `incarnation`: the incarnation that ended. `run_s`: how many seconds it ran.
    `left_s`: how many of these seconds belong to the simulation: all, or those after its beginning if the task ran
    before. `how`: finished, failed or killed.
    """

    incarnation: int
    left_s: float
    run_s: float
    how: str


@dataclass(frozen=True, eq=False)
class RecordedUsage:
    """The recorded usage of tasks. `task_id` [N]: sorted. `mean`, `most` [N, 3]: mean and maximum of CPU (milli-cores),
    RAM and disk (bytes).
    """

    task_id: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    mean: Ints = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))
    most: Ints = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Recorded:
    """The behaviour of tasks with recorded usage and ends. `ends`: the ends by task id; None if they were not recorded;
    they are then random. `drawn`: the random behaviour. Only the mean and the maximum of usage are known, so the
    simulated usage goes up and down around the mean, up to the maximum.
    """

    usage: RecordedUsage
    ends: Mapping[int, RecordedEnd] | None
    drawn: Drawn

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        if self.ends is None:
            return self.drawn.ending(task_id, incarnation, priority)
        known = self.ends.get(task_id)
        if known is None:
            return None
        return Ending(known.left_s if incarnation == known.incarnation else known.run_s, known.how)

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        result = self.drawn.demand(task_id, limit, priority, now)
        usage = self.usage
        if not len(usage.task_id):
            return result
        place = np.minimum(np.searchsorted(usage.task_id, task_id), len(usage.task_id) - 1)
        known = np.flatnonzero(usage.task_id[place] == task_id)
        place = place[known]
        phase = _SWINGS_PER_WINDOW * (now // WINDOW_S) + _GOLDEN * task_id[known]
        swing = np.sin(2 * math.pi * (phase % 1.0))[:, None]
        used = usage.mean[place] + swing * (usage.most[place] - usage.mean[place])
        result[known] = np.clip(used, 0, None).astype(np.int64)
        return result
