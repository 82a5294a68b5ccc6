"""Adds all tasks of a cell to an empty state at once, from columns. This is much faster than one event per task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import FREE, PENDING, RUNNING, TaskTable
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints, Ints32
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, Requirement

_LEAST_SLOTS = 256


class TaskColumns(NamedTuple):
    """The tasks of a cell, one element or row per task, sorted by id. `shape`: the number of the requirement in the
    list that `add_tasks` gets. `machine`, `last`: ids of the machine and the previous machine, 0 for none. `alloc`: the
    id of the alloc that contains the task, or 0. `since`, `up`: as in `TaskTable`. `devices`: bit mask of accelerators.
    `ports`: by task id, only tasks that hold ports.
    """

    id: Ints
    state: NDArray[np.int8]
    shape: Ints32
    machine: Ints
    last: Ints
    incarnation: Ints32
    since: Floats
    up: NDArray[np.bool_]
    reservation: Ints  # [T, R]
    alloc: Ints
    devices: Ints
    ports: dict[int, tuple[int, ...]]


def prepare(state: CellState, tasks: int) -> None:
    """Replace the tables of an empty state by tables that are large enough for `tasks` tasks."""
    state.tasks = TaskTable(state.axis, slots=max(_LEAST_SLOTS, 1 << max(0, tasks - 1).bit_length()))


def add_tasks(state: CellState, columns: TaskColumns, requirements: Sequence[Requirement]) -> None:
    """Add the tasks to a state that has their jobs and machines, and no tasks yet. Call `prepare` before the jobs are
    added. Raises `LookupError` if a job is missing.
    """
    tasks, number = state.tasks, len(columns.id)
    slots = np.arange(number, dtype=np.int32)
    shapes = np.array([tasks.shapes.of(one) for one in requirements], dtype=np.int32)
    tasks._free = list(range(len(tasks.id) - 1, number - 1, -1))
    tasks.id[:number] = columns.id
    tasks.state[:number] = columns.state
    tasks.shape[:number] = shapes[columns.shape] if number else 0
    tasks.last[:number] = columns.last
    tasks.incarnation[:number] = columns.incarnation
    tasks.since[:number] = columns.since
    tasks.up[:number] = columns.up
    tasks.devices[:number] = columns.devices
    tasks.machine[:number] = _machine_slots(state, columns.machine)
    within = columns.alloc > 0
    tasks.alloc[:number] = np.where(within, np.searchsorted(columns.id, columns.alloc), -1)
    _join_jobs(state, columns.id >> INDEX_BITS, slots)
    tasks.pending = int((columns.state == PENDING).sum())
    tasks.running = int((columns.state == RUNNING).sum())
    _settle(state, number)
    _set_reservations(state, columns.reservation)
    _hold_ports(state, columns.id, columns.ports)


def _machine_slots(state: CellState, ids: Ints) -> Ints32:
    known = np.fromiter(state.machines.slot, dtype=np.int64, count=len(state.machines.slot))
    at = np.fromiter(state.machines.slot.values(), dtype=np.int32, count=len(known))
    order = np.argsort(known)
    known, at = np.append(known[order], 0), np.append(at[order], -1).astype(np.int32)
    place = np.searchsorted(known[:-1], ids)
    return np.where(known[place] == ids, at[place], -1).astype(np.int32)


def _join_jobs(state: CellState, job_ids: Ints, slots: Ints32) -> None:
    tasks = state.tasks
    found, first, size = np.unique(job_ids, return_index=True, return_counts=True)
    for job_id, begin, count in zip(found.tolist(), first.tolist(), size.tolist(), strict=True):
        if job_id not in tasks.jobs:
            raise LookupError(f"job {job_id} has tasks, but the cell does not contain the job; report this as a bug")
        job, own = tasks.jobs[job_id], slots[begin : begin + count]
        index = tasks.id[own] & (MAX_TASKS - 1)
        job.tasks = np.full(int(index[-1]) + 1, -1, dtype=np.int32)
        job.tasks[index] = own
        tasks.job[own] = job.slot
    for state_code, numbers in ((PENDING, tasks.job_pending), (RUNNING, tasks.job_running)):
        own = tasks.job[slots][tasks.state[slots] == state_code]
        numbers += np.bincount(own, minlength=len(numbers)).astype(np.int32)
    tasks.job[tasks.state == FREE] = -1


def _settle(state: CellState, number: int) -> None:
    """Add the resources of the first `number` tasks to the sums of their machines, if they are running. Tasks inside
    allocs are left out, because the resources of the alloc are counted.
    """
    tasks = state.tasks
    running = (tasks.state[:number] == RUNNING) & (tasks.machine[:number] >= 0) & (tasks.alloc[:number] < 0)
    state._move_all(np.flatnonzero(running), 1)


def _set_reservations(state: CellState, reservation: Ints) -> None:
    tasks, machines = state.tasks, state.machines
    held = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0) & (tasks.alloc < 0))
    np.add.at(machines.reserved, tasks.machine[held], reservation[held] - tasks.reservation[held])
    tasks.reservation[: len(reservation)] = reservation


def _hold_ports(state: CellState, ids: Ints, ports: dict[int, tuple[int, ...]]) -> None:
    tasks, machines = state.tasks, state.machines
    slots = np.searchsorted(ids, np.fromiter(ports, np.int64, len(ports)))  # the slot of a task is its place in `ids`
    columns = (slots.tolist(), tasks.machine[slots].tolist(), tasks.incarnation[slots].tolist())
    for (identity, held), slot, machine, incarnation in zip(ports.items(), *columns, strict=True):
        tasks.ports[slot] = held
        if machine >= 0:
            machines.ports[machine].hold((identity, incarnation), held)
    for slot, port_map in machines.ports.items():
        machines.ports_free[slot] = port_map.free
