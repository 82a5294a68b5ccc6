"""The reservations that tasks have after they have run for a while. The estimator of production (§5.5) computes them
from simulated usage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.reclamation.usage_history import KINDS, Samples, UsageHistory
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.reclamation_presets import Preset
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.workload import Behaviour

SETTLING_S = 5_400.0
"""The simulated time after which the reservations are read, in seconds."""

LOOK_S, WINDOW_S = 30.0, 300.0


@dataclass(frozen=True, eq=False)
class TaskReservations:
    """The reservation of each task. `task_id` [N]: in ascending order. `vector` [N, R]: amounts, by resource."""

    task_id: Ints
    vector: Ints

    def of(self, task_id: Ints) -> Ints:
        """Return the reservations [K, R] of the tasks with the given ids [K]. Raises `LookupError` if the reservation
        of a task is unknown.
        """
        at = np.searchsorted(self.task_id, task_id)
        known = at < len(self.task_id)
        known[known] = self.task_id[at[known]] == task_id[known]
        if not known.all():
            raise LookupError(
                "a task has no reservation; create the tasks and the reservations from the same list of jobs"
            )
        return self.vector[at]

    def event(self, task_id: Ints) -> events.ReservationsSet:
        """Return the event that gives tasks their reservations. `task_id` [K]: their ids."""
        return events.ReservationsSet(
            tasks=tuple(split_task_id(identity) for identity in task_id.tolist()),
            reservations=tuple(map(tuple, self.of(task_id).tolist())),
        )


def settled_reservations(
    work: CellWork, preset: Preset, behaviour: Behaviour, *, settling_s: float = SETTLING_S
) -> TaskReservations:
    """Return the reservations of all tasks after each has run for `settling_s` seconds. `behaviour` gives their usage,
    `preset` the safety margin. All tasks run at once, and the capacity of machines limits none of them.
    """
    state = _running(work)
    tasks, history = state.tasks, UsageHistory()
    slots = np.flatnonzero(tasks.state == RUNNING)
    limit = tasks.shapes.limit[tasks.shape[slots]]
    priority = tasks.job_priority[tasks.job[slots]].astype(np.int64)
    vector = limit.copy()
    for window in range(max(1, round(settling_s / WINDOW_S))):
        demand = behaviour.demand(tasks.id[slots], limit, priority, window * WINDOW_S)
        samples = Samples(tasks.id[slots], tasks.incarnation[slots], demand)
        for _ in range(round(WINDOW_S / LOOK_S)):
            found = history.look(tasks, samples, preset, passed_s=LOOK_S)
        vector[:, : len(KINDS)] = found.wanted
    order = np.argsort(tasks.id[slots])
    return TaskReservations(tasks.id[slots][order], vector[order])


def _running(work: CellWork) -> CellState:
    """Return a state in which every task runs on some machine, even if the machine is then too full."""
    state = work.load()
    tasks = [(job.job_id, index) for job in work.jobs for group in job.groups for index in group.indexes()]
    machines = [machine.machine_id for machine in work.machines]
    state.apply_all(
        (
            events.TaskPlaced(job_id=job_id, index=index, machine_id=machines[number % len(machines)], incarnation=1),
            1,
            0.0,
        )
        for number, (job_id, index) in enumerate(tasks)
    )
    return state
