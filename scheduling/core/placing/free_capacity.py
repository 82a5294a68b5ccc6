"""The total free capacity of all machines."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.kernels.room import sum_capacity
from scheduling.core.vocabulary.layout import Bools, Ints
from scheduling.core.vocabulary.policy import Policy


class FreeCapacity(NamedTuple):
    """The total capacity of all machines that are up, and the free part of this capacity. Each array has one total per
    resource [R]. `machines`: how many machines are up.
    """

    machines: int
    capacity: Ints
    by_limit: Ints  # free for tasks that are placed by limit (§5.5), which may preempt others
    by_reservation: Ints


def free_capacity(state: CellState) -> FreeCapacity:
    machines, sums = state.machines, np.empty((3, state.axis), dtype=np.int64)
    sum_capacity(machines.up, machines.capacity, machines.prod_limit, machines.reserved, sums)
    return FreeCapacity(int(np.count_nonzero(machines.up)), *sums)


def enough(policy: Policy, free: FreeCapacity, by_limit: Bools, limit: Ints, *, share: float = 1.0) -> bool:
    """Return whether the total free capacity, multiplied by `share`, is enough for Q tasks. `limit` [Q, R]: the limits
    of the tasks. `by_limit` [Q]: whether each task is placed by its limit.

    For a task that is placed by limit, capacity that tasks of lower priority use counts as free (§5.5).
    """
    counted = [r for r, weight in enumerate(policy.resource_weights[: limit.shape[1]]) if weight > 0]
    for kind, room in ((True, free.by_limit), (False, free.by_reservation)):
        asked = limit[by_limit | (not kind)][:, counted].sum(axis=0)
        if (by_limit == kind).any() and (asked > share * room[counted]).any():
            return False
    return True
