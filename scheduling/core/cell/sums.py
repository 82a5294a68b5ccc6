"""The tables of a cell's state, and the sums of the resources that tasks use on each machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.machines import MachineTable
from scheduling.core.cell.tasks import LiveJob, TaskTable
from scheduling.core.kernels.usage_sums import COLUMNS, Accounts, settle


class MachineSums:
    """The machines and the tasks of a cell, and the sums of what the tasks use on each machine.

    Changes of the sums are first recorded, and later applied together, because this is faster. `axis`: the number of
    resources.
    """

    def __init__(self, axis: int) -> None:
        self.machines = MachineTable(axis)
        self.tasks = TaskTable(axis)
        self._moves: list[int] = []  # changes that are not applied yet: rows of `kernels.usage_sums`

    def _move(self, job: LiveJob, task: int, machine: int, sign: int) -> None:
        """Record that a task starts on a machine (`sign` = 1) or leaves it (`sign` = -1). `_settle` later updates the
        sums of the machine. Tasks inside allocs are not recorded, because they use the resources of their alloc.
        """
        tasks = self.tasks
        if tasks.alloc.item(task) < 0:
            self._moves += (task, machine, sign, tasks.shape.item(task), job.by_limit, tasks.devices.item(task))

    def _settle(self) -> None:
        """Add to the sums of the machines the changes that `_move` recorded. Call this method before you use the
        sums.
        """
        if not self._moves:
            return
        moves = np.array(self._moves, dtype=np.int64).reshape(-1, COLUMNS)
        self._moves = []
        self._carry_out(moves)

    def _carry_out(self, moves: NDArray[np.int64]) -> None:
        tasks, machines = self.tasks, self.machines
        machines.tick += 1
        accounts = Accounts(
            tasks.next,
            tasks.prev,
            tasks.reservation,
            tasks.shapes.limit,
            machines.head,
            machines.tasks,
            machines.limits,
            machines.reserved,
            machines.prod_limit,
            machines.devices,
            machines.changed,
        )
        settle(accounts, moves, machines.tick)

    def _move_all(self, slots: NDArray[np.int64], sign: int) -> None:
        """Add what tasks use to the sums of their machines (`sign` = 1), or subtract it (`sign` = -1)."""
        tasks = self.tasks
        moves = np.empty((len(slots), COLUMNS), dtype=np.int64)
        by_limit = tasks.job_by_limit[tasks.job[slots]]
        columns: list[Any] = [slots, tasks.machine[slots], sign, tasks.shape[slots], by_limit, tasks.devices[slots]]
        for column, values in enumerate(columns):
            moves[:, column] = values
        self._carry_out(moves)
