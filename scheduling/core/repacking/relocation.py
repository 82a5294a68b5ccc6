"""Finds machines for running tasks that have to leave their machines, with the kernels of the scheduling pass.

    running tasks ─► queue and groups, as of pending tasks ─► kernels/placement.py, without preemption ─► machines

So constraints, spreading, ports, devices, whole cores and the rules of the bands (§5.5) hold as in a pass. The state of
the cell does not change. A task does not count at the place that it leaves.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.kernels.placement import place
from scheduling.core.placing.equivalence_classes import sort_into_groups
from scheduling.core.placing.kernel_input import tables_of
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.queue import Slots, pending_in_order
from scheduling.core.placing.reserved_cores import cores_held
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import MAX_TASKS

_SEED = 4
_EVERYTHING = 2**40


class Relocation:
    """Finds places for the running tasks of one state. It may be used again after the state has changed."""

    def __init__(self, state: CellState, policy: Policy, *, now: float) -> None:
        self.state = state
        self.policy = _for_moves(policy)
        self.now = now
        self.memory = PassCache()

    def is_for(self, state: CellState, policy: Policy) -> bool:
        """Return whether it finds places in this state object by the rules of this policy."""
        return self.state is state and self.policy == _for_moves(policy)

    def places(self, leaving: Slots, closed: Slots) -> Slots:
        """Return an array [N]: the slot of the machine on which each of the N running tasks `leaving` (slots) can be
        placed, or -1 if there is none. All of them leave their machines and are placed together.

        `closed`: slots of machines that receive no task. They must contain the machines that the tasks leave.
        """
        if len(leaving) == 0 or not len(self.state.machines):
            return np.full(len(leaving), -1, dtype=np.int64)
        state, tasks = self.state, self.state.tasks
        state.count_by_limit(self.policy)
        queue = pending_in_order(tasks, leaving)
        held = cores_held(state, queue)
        sorting = sort_into_groups(state, self.policy, queue, now=self.now, cores=held is not None)
        sorting.ceiling[:] = 0  # a task that moves preempts no other
        free = self.memory.sums.follow(state)
        rng = np.random.default_rng(_SEED)
        tables = tables_of(state, self.policy, sorting, free, self.memory, rng, held, moving=True)
        tables.queue.left[:] = MAX_TASKS  # what runs elsewhere runs once more only if it leaves
        tables.machines.up[self.memory.position[closed]] = False
        place(tables, 0)
        found = tables.placed.machine
        used = np.concatenate((found[found >= 0], self.memory.position[closed].astype(np.int64)))
        self.memory.invalidate(used)
        slot = np.where(found >= 0, tables.machines.slot[found], -1)
        result = np.full(len(tasks.id), -1, dtype=np.int64)
        result[queue] = slot
        return result[leaving]


def _for_moves(policy: Policy) -> Policy:
    return replace(policy, max_assignments=_EVERYTHING, workload="")
