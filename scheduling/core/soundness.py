"""Whether a state is sound, and whether two are the same: for tests, and for an SRE on a live cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from quota.bands import DEFAULT_BANDS, band_of
from quota.resources import NAMES, PORTS
from scheduling.core.states import TaskState

if TYPE_CHECKING:
    from scheduling.core.state import CellState, TaskRecord


def problems(state: CellState) -> list[str]:
    """Broken invariants, as sentences."""
    return [*_sums(state), *_limits(state), *_lists(state)]


def _sums(state: CellState) -> list[str]:
    """What machines hold equals the sum over the tasks that run there."""
    limits = {priority: np.zeros_like(array) for priority, array in state.limits.items()}
    reservations = {priority: np.zeros_like(array) for priority, array in state.reservations.items()}
    ports = np.zeros_like(state.ports_used)
    for task in state.tasks.values():
        if task.machine >= 0:
            priority = state.jobs[task.job_id].priority
            limits[priority][task.machine] += task.limit
            reservations[priority][task.machine] += task.reservation
            ports[task.machine] += len(task.ports)
    for machine_id, held in state.departed.values():
        if machine_id in state.machines:
            ports[state.machines[machine_id].slot] += len(held)
    found = []
    for what, ours, counted in (
        ("limits", state.limits, limits),
        ("reservations", state.reservations, reservations),
    ):
        for priority, array in ours.items():
            for slot in np.flatnonzero((array != counted[priority]).any(axis=1)):
                found.append(f"{what} of priority {priority} on {_machine(state, int(slot))} are miscounted")
    found += [
        f"ports of {_machine(state, int(slot))} are miscounted"
        for slot in np.flatnonzero(ports != state.ports_used)
    ]
    return found


def _limits(state: CellState) -> list[str]:
    """No machine's prod limits exceed its capacity, unless it shrank: which is reported here as well."""
    total = np.zeros_like(state.capacity)
    for priority, array in state.limits.items():
        if band_of(priority, DEFAULT_BANDS).prod:
            total += array
    total[:, PORTS] = state.ports_used
    names = (*NAMES, *state.extra_resources)
    return [
        f"{_machine(state, int(slot))} has {int(state.capacity[slot, r])} of {names[r]}; "
        f"its prod tasks may use {int(total[slot, r])}"
        for slot, r in np.argwhere(total > state.capacity)
    ]


def _lists(state: CellState) -> list[str]:
    found = []
    for task in state.tasks.values():
        where = _task(state, task)
        if (task.task_id in state.pending) != (task.state == TaskState.PENDING):
            found.append(f"{where} is {task.state}; the queue says otherwise")
        if (task.machine >= 0) != (task.state == TaskState.RUNNING):
            found.append(f"{where} is {task.state} with machine slot {task.machine}")
        if task.machine >= 0 and task.task_id not in state.machines[state.machine_id(task.machine)].tasks:
            found.append(f"{where} is not in the list of its machine")
    for job in state.jobs.values():
        running = sum(state.tasks[identity].machine >= 0 for identity in job.tasks)
        if running != job.running:
            found.append(f"job {job.name} counts {job.running} running tasks and has {running}")
    return found


def differences(ours: CellState, other: CellState) -> list[str]:
    """What differs in content: machines, jobs, tasks, departures; never slots, nor what is only a preference."""
    found = []
    pairs: tuple[tuple[str, dict[Any, Any], dict[Any, Any]], ...] = (
        ("machine", _machines(ours), _machines(other)),
        ("job", _jobs(ours), _jobs(other)),
        ("task", _tasks(ours), _tasks(other)),
        ("departure", ours.departed, other.departed),
    )
    for what, left, right in pairs:
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                found.append(f"{what} {key}: {left.get(key)} and {right.get(key)}")
    return found


def _machines(state: CellState) -> dict[int, object]:
    racks, domains = ({code: name for name, code in state.codes(kind).items()} for kind in ("rack", "domain"))
    return {
        machine.machine_id: (
            machine.hostname, tuple(state.capacity[machine.slot].tolist()), bool(state.up[machine.slot]),
            racks[int(state.rack[machine.slot])], domains[int(state.domain[machine.slot])],
            dict(state.attributes.of(machine.slot)), tuple(sorted(machine.ports)), tuple(sorted(machine.tasks)),
        )
        for machine in state.machines.values()
    }  # fmt: skip


def _jobs(state: CellState) -> dict[int, object]:
    return {
        job.job_id: (
            job.tenant, job.name, job.priority, job.latency_sensitive, job.port_names, job.spec_version, job.running,
        )
        for job in state.jobs.values()
    }  # fmt: skip


def _tasks(state: CellState) -> dict[int, object]:
    return {
        task.task_id: (
            task.state, state.machine_id(task.machine) if task.machine >= 0 else 0, task.requirement,
            tuple(task.reservation.tolist()), task.ports, task.incarnation if task.machine >= 0 else 0,
            tuple(sorted(task.crashed or {})),
        )
        for task in state.tasks.values()
    }  # fmt: skip


def _machine(state: CellState, slot: int) -> str:
    record = state.machines.get(state.machine_id(slot))
    return f"machine {record.hostname}" if record else f"free machine slot {slot}"


def _task(state: CellState, task: TaskRecord) -> str:
    return f"task {task.index} of job {task.job_id}"
