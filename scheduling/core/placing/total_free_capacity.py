"""The total free capacity of all machines."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.kernels.free_on_machines import sum_capacity
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints
from scheduling.core.vocabulary.policy import Policy


class FreeCapacity(NamedTuple):
    """The total capacity of all machines that are up, and the free part of this capacity. Each array has one total per
    resource [R]. `machines`: how many machines are up. `by_limit`: the part that is free for tasks that are placed by
    their limit, which may preempt others. `by_reservation`: the part that no reservation uses (§5.5).
    """

    machines: int
    capacity: Ints
    by_limit: Ints  # free for tasks that are placed by limit (§5.5), which may preempt others
    by_reservation: Ints


class CapacitySums:
    """Computes the total and the free capacity of a cell. Each update reads only the machines that have changed since
    the last one.
    """

    def __init__(self) -> None:
        self._state: CellState | None = None
        self._layout = self._tick = -1

    def follow(self, state: CellState) -> FreeCapacity:
        """Return the totals of `state` as it is now."""
        machines = state.machines
        if self._state is not state or self._layout != machines.layout:
            self._state, self._layout, self._tick = state, machines.layout, -1
            self._parts: Ints = np.zeros((len(machines.id), 3, state.axis), dtype=np.int64)
            self._sums: Ints = np.zeros((3, state.axis), dtype=np.int64)
        changed = (machines.changed > self._tick).nonzero()[0]
        self._tick = machines.tick
        up = machines.up
        sum_capacity(up, machines.capacity, machines.prod_limit, machines.reserved, changed, self._parts, self._sums)
        return FreeCapacity(int(np.count_nonzero(up)), *self._sums.copy())


def free_capacity(state: CellState) -> FreeCapacity:
    """Return the total capacity of all machines that are up, and the free part of it."""
    return CapacitySums().follow(state)


def enough(policy: Policy, free: FreeCapacity, by_limit: Bools, limit: Ints, *, share: float = 1.0) -> bool:
    """Return whether the total free capacity, multiplied by `share`, is enough for Q tasks. `limit` [Q, R]: the limits
    of the tasks. `by_limit` [Q]: whether each task is placed by its limit.

    For a task that is placed by limit, capacity that tasks of lower priority use counts as free (§5.5).
    """
    counted = counted_resources(policy.resource_weights, limit.shape[1])
    limit = limit[:, counted]
    prod = limit[by_limit]
    if (prod.sum(axis=0) > share * free.by_limit[counted]).any():
        return False
    return len(prod) == len(limit) or not (limit.sum(axis=0) > share * free.by_reservation[counted]).any()


@lru_cache
def counted_resources(weights: tuple[float, ...], axis: int) -> Ints:
    """Return the numbers of the resources that count for packing. `weights`: of all resources. `axis`: how many
    resources the cell has. Callers must not write to the array.
    """
    return np.flatnonzero(np.array(weights[:axis]) > 0)
