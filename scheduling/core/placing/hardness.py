"""The order of the queue: tasks that are hard to place come first, if the free capacity is enough for all (§3.2).

     in turn:  A1 B1 A2 B2 A3 B3        tasks of B are hard to place
    to place:  B1 B2 B3 A1 A2 A3

If the free capacity is enough for all tasks, a different order harms no tenant. So the tasks that are hardest to place
come first: large tasks, tasks of a job that needs many machines at once, and tasks that can use only few machines. If
the queue needs more than the free capacity, the jobs take turns, and the order does not change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.state import CellState
from scheduling.core.placing.equivalence_classes import numbered
from scheduling.core.placing.total_free_capacity import FreeCapacity, counted_resources, enough
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints, Ints32
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Constraint

Slots = NDArray[np.int64]

# Tasks that are less hard than this stay in the order of their turns: they are small, and fit almost everywhere.
ORDINARY = 1 / 32


def hardest_first(state: CellState, policy: Policy, slots: Slots, free: FreeCapacity) -> Slots:
    """Return the queue `slots`, sorted within each priority: tasks that are hardest to place come first. Equally hard
    tasks keep their order. If `free` is too small for the whole queue, the order does not change.

    The tasks of a gang stay together. Each of them counts as hard as the hardest task of the gang.
    """
    tasks = state.tasks
    if len(slots) < 2 or free.machines == 0:
        return slots
    job = tasks.job[slots]
    shape = tasks.shape[slots]
    if not enough(policy, free, tasks.job_by_limit[job], tasks.shapes.limit[shape]):
        return slots
    counted = counted_resources(policy.resource_weights, state.axis)
    hard = np.maximum(_hardness(state, free, counted, job, shape), ORDINARY)
    ganged = tasks.job_gang[job]
    if tasks.gangs:
        most = np.zeros(len(tasks.job_gang))
        np.maximum.at(most, job[ganged], hard[ganged])
        hard[ganged] = most[job[ganged]]
    if len(slots) > policy.max_assignments:
        # The pass places only the first of them. A gang that begins there ends there.
        hard[policy.max_assignments :][~ganged[policy.max_assignments :]] = 0.0
    result: Slots = slots[np.lexsort((np.arange(len(slots)), -hard, -tasks.job_priority[job].astype(np.int64)))]
    return result


def _hardness(state: CellState, free: FreeCapacity, counted: Ints, job: Ints32, shape: Ints32) -> Floats:
    """Return the hardness [Q] of each task. It is the larger of two shares, divided by the share of machines that
    satisfy the task's hard constraints. The first share is the part of an average machine that the task needs. The
    second is the part of all machines, racks or power domains that its job needs. `counted`: the resources that count.
    `job`, `shape` [Q]: the job and the shape of each task.
    """
    table, machines = state.tasks.shapes, state.machines
    of_task, first = numbered(shape)
    shapes = shape[first]
    limit = table.limit[shapes][:, counted]
    mean = free.capacity[counted] / free.machines
    share = np.divide(limit, mean, out=np.zeros(limit.shape), where=mean > 0).max(axis=1, initial=0.0)
    bounds = table.bounds[shapes]
    needed = np.zeros(len(job))
    if table.any_bounds and bounds.any():
        size = np.bincount(job)[job]
        domains = (free.machines, _distinct(machines.rack[machines.up]), _distinct(machines.power[machines.up]))
        for kind, number in enumerate(domains):
            bound = bounds[of_task, kind]
            needed = np.maximum(needed, np.where(bound > 0, size / np.maximum(bound, 1) / number, 0.0))
    satisfied = np.ones(len(shapes))
    known: dict[tuple[Constraint, ...], float] = {(): 1.0}
    for place, requirement in enumerate(table.requirement[row] for row in shapes.tolist()):
        if requirement.constraints:
            demand = tuple(one for one in requirement.constraints if one.hard)
            if demand not in known:
                mask = machines.up.copy()
                for constraint in demand:
                    mask &= machines.attributes.mask(constraint)
                known[demand] = max(1, int(np.count_nonzero(mask))) / free.machines
            satisfied[place] = known[demand]
    result: Floats = np.maximum(share[of_task], needed) / satisfied[of_task]
    return result


def _distinct(numbers: Ints32) -> int:
    """Return how many different values `numbers` contains. All values are at least -1."""
    return int(np.count_nonzero(np.bincount(numbers + 1)))
