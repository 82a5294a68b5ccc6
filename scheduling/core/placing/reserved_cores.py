"""Counts of the whole CPU cores that tasks have reserved on machines (§6.2). `kernels/cores.py` uses these counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.vocabulary.kernel_arrays import Ints, Ints32
from scheduling.core.vocabulary.requirement import split_task_id


class Held(NamedTuple):
    """The use of CPU cores, by slot of the machine. `owned`: how many whole cores tasks have reserved. `sharing`: how
    many latency-sensitive tasks share the other cores.
    """

    owned: Ints32
    sharing: Ints32


def cores_held(state: CellState, pending: Ints, *, asked: bool = False) -> Held | None:
    """Return how many whole cores are reserved on each machine, and how many tasks share the other cores of the
    machine. `pending`: slots of pending tasks. `asked`: other tasks request whole cores as well. Return None if no task
    has or requests whole cores.

    An evicted task still counts until its processes have ended.
    """
    tasks = state.tasks
    if not tasks.shapes.any_cores and not asked:
        return None
    there = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0))
    there = there[tasks.job_sensitive[tasks.job[there]]]
    leaving = [
        (int(job.tasks[index]), state.machines.slot[machine])
        for (identity, _), (machine, _) in state.departed.items()
        for job_id, index in [split_task_id(identity)]
        if (job := tasks.jobs[job_id]).latency_sensitive and machine in state.machines.slot
    ]
    slots = np.append(there, [slot for slot, _ in leaving]).astype(np.int64)
    machines = np.append(tasks.machine[there], [machine for _, machine in leaving]).astype(np.int64)
    cores = tasks.shapes.cores[tasks.shape[slots]]
    wanted = tasks.shapes.cores[tasks.shape[pending]][tasks.job_sensitive[tasks.job[pending]]]
    if not asked and not cores.any() and not wanted.any():
        return None
    number = len(state.machines.id)
    return Held(
        np.bincount(machines, weights=cores, minlength=number).astype(np.int32),
        np.bincount(machines[cores == 0], minlength=number).astype(np.int32),
    )
