"""The limits of typical tasks that use devices (accelerators). A free part of a device is useful only if such a task
could use that part.
"""

from __future__ import annotations

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import PENDING, RUNNING
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints

# The classes with most tasks count, up to this number.
MOST_CLASSES = 32


def typical_tasks(state: CellState) -> tuple[Ints, Floats]:
    """Return the limits [C, R] of the C most common kinds of tasks that use devices, and the share [C] of each kind.
    The share is relative to all tasks that use devices. Tasks of one kind have equal limits, except for the number of
    ports.

    Running and pending tasks are counted. The arrays are empty if the cell has no devices or no such tasks.
    """
    tasks, axis = state.tasks, state.axis
    nothing = np.zeros((0, axis), dtype=np.int64), np.zeros(0, dtype=np.float64)
    if not state.machines.devices.shape[1] or not state.machines.capacity[:, ACCELERATORS].any():
        return nothing
    live = (tasks.state == PENDING) | (tasks.state == RUNNING)
    number = np.bincount(tasks.shape[live], minlength=len(tasks.shapes.requirement))
    asking = np.flatnonzero((number > 0) & (tasks.shapes.limit[: len(number), ACCELERATORS] > 0))
    if len(asking) == 0:
        return nothing
    wanted = tasks.shapes.limit[asking].copy()
    wanted[:, PORTS] = 0
    limits, which = np.unique(wanted, axis=0, return_inverse=True)
    sums = np.bincount(which.reshape(-1), weights=number[asking])
    most = np.argsort(-sums, kind="stable")[:MOST_CLASSES]
    return np.ascontiguousarray(limits[most]), sums[most] / sums.sum()
