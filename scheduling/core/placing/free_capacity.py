"""The free capacity of all machines together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.kernels.room import sum_capacity
from scheduling.core.vocabulary.layout import Ints


class FreeCapacity(NamedTuple):
    """The capacity of all machines that are up, and the part of it that is free. The arrays contain a total per
    resource [R].
    """

    machines: int
    capacity: Ints
    by_limit: Ints  # free for tasks that are placed by limit (§5.5), which may preempt others
    by_reservation: Ints


def free_capacity(state: CellState) -> FreeCapacity:
    machines, sums = state.machines, np.empty((3, state.axis), dtype=np.int64)
    sum_capacity(machines.up, machines.capacity, machines.prod_limit, machines.reserved, sums)
    return FreeCapacity(int(np.count_nonzero(machines.up)), *sums)
