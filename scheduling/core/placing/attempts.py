"""Further attempts to place the queued tasks, if some stay pending although the free capacity is enough for all (§3.2).

    first attempt:   A B C D E    a task of job D stays pending
    second attempt:  D A B C E    jobs that were not placed completely come first

The total free capacity does not show which job is hard to place, but an attempt does. In every attempt, tasks with a
higher priority come first. The pass uses the best attempt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.tasks import TaskTable
from scheduling.core.kernels.placement import HELD_BACK
from scheduling.core.placing.total_free_capacity import FreeCapacity, enough
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.policy import Policy

Slots = NDArray[np.int64]

# How often a pass tries at most to place a queue completely.
ATTEMPTS = 8
# A queue that asks for a smaller share of the free capacity is placed in one attempt.
TIGHT = 0.75


def worth_retrying(tasks: TaskTable, policy: Policy, slots: Slots, machine: Ints, free: FreeCapacity) -> bool:
    """Return whether another order of the queue `slots` may place more tasks. `machine` [Q]: the machine that the first
    attempt chose for each task, or a negative number if it did not place the task. `free`: the free capacity before the
    first attempt.

    The result is true only if the queue needs most of the free capacity, but not more than is free, and if the first
    attempt placed at least half of the tasks.
    """
    placed = int(np.count_nonzero(machine >= 0))
    if placed == len(slots):
        return False
    slots = slots[machine != HELD_BACK]
    if placed == len(slots) or 2 * placed < len(slots) or len(slots) > policy.max_assignments:
        return False
    by_limit = tasks.job_by_limit[tasks.job[slots]]
    limit = tasks.shapes.limit[tasks.shape[slots]]
    return enough(policy, free, by_limit, limit) and not enough(policy, free, by_limit, limit, share=TIGHT)


def unplaced_first(tasks: TaskTable, slots: Slots, machine: Ints) -> Slots:
    """Return the queue for the next attempt. Within each priority, jobs that still have pending tasks come first.
    Otherwise the order does not change. `slots` [Q]: the queue of the last attempt. `machine` [Q]: the machine that
    this attempt chose for each task, or a negative number.
    """
    job = tasks.job[slots]
    incomplete = np.zeros(len(tasks.job_priority), dtype=np.bool_)
    incomplete[job[machine < 0]] = True
    result: Slots = slots[np.lexsort((~incomplete[job], -tasks.job_priority[job].astype(np.int64)))]
    return result


def placed_by_priority(tasks: TaskTable, slots: Slots, machine: Ints) -> tuple[int, ...]:
    """Return how many tasks of each priority in the queue were placed, the highest priority first. The larger of two
    such tuples is the better result. `slots` [Q]: the tasks of the queue. `machine` [Q]: the machine that was chosen
    for each task, or a negative number.
    """
    _, priority = np.unique(-tasks.job_priority[tasks.job[slots]].astype(np.int64), return_inverse=True)
    return tuple(np.bincount(priority, weights=machine >= 0).astype(int).tolist())
