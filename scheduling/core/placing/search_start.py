"""Decides where the search for a machine begins, and how many machines are compared for each task (§3.4, relaxed
randomisation). For all tasks of one group, the search begins at the same machine.
"""

from __future__ import annotations

import numpy as np

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.cell.state import CellState
from scheduling.core.placing.total_free_capacity import FreeCapacity, counted_resources, enough
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32
from scheduling.core.vocabulary.policy import Policy

# Share of the free capacity for a kind of work. A class that asks for more of a resource than this packs from one end.
_MOST = 0.75
# How many more machines a task of such a class compares, beyond the candidates that its class has.
_FURTHER = 4
# And a task that asks for devices, after the first of its class, which compares all machines.
_FURTHER_FOR_DEVICES = 64


def walks(
    state: CellState,
    policy: Policy,
    limit: Ints,
    by_limit: Bools,
    of_task: Ints32,
    free: FreeCapacity,
    rng: np.random.Generator,
) -> tuple[Ints32, Ints32]:
    """Return two arrays [G] with one number per group. The first one contains the position of the machine at which the
    search for a place begins. The second one contains how many machines are compared for each task of the group, in
    addition to the candidates (the best machines found for the group so far).

    `limit` [G, R]: the request of each group. `by_limit` [G]: whether the group is placed by its limit; otherwise it is
    placed by its reservation (§5.5). `of_task`: the group of each queued task.

    * Usually each group begins at a random position, so that machines get tasks of different groups.
    * If the groups placed by limit together ask for most of the free capacity, all these groups begin at one position.
      The same rule applies to the groups placed by reservation. So the first machines fill up, and the last machines
      stay empty for large tasks. If the free capacity is enough for all tasks, these groups also compare more machines.
    * With the E-PVM scorer, the positions are always random.
    """
    number = len(limit)
    further = np.zeros(number, dtype=np.int32)
    if not policy.search.randomise or len(state.machines) == 0:
        return np.zeros(number, dtype=np.int32), further
    start: Ints32 = rng.integers(len(state.machines), size=number, dtype=np.int32)
    if policy.scorer == "e-pvm":
        return start, further
    counted = counted_resources(policy.resource_weights, state.axis)
    asked = limit[:, counted] * np.bincount(of_task, minlength=number)[:, None].astype(np.float64)
    least = np.minimum(free.by_limit, free.by_reservation)[counted]
    if (asked.sum(axis=0) > _MOST * least).any():
        for kind, room in ((by_limit, free.by_limit), (~by_limit, free.by_reservation)):
            if (asked[kind].sum(axis=0) > _MOST * room[counted]).any():
                start[kind] = start[0]
                further[kind] = _FURTHER
        if not enough(policy, free, by_limit[of_task], limit[of_task]):
            further[:] = 0
    further[limit[:, ACCELERATORS] > 0] = _FURTHER_FOR_DEVICES
    return start, further
