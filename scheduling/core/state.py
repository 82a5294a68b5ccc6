"""The warm state of a cell: arrays over machines and tasks, advanced by the journal's events.

    CellState(extra).apply(event, revision=…, time=…)  …  schedule_pass(state, …)

A machine and a task keep their slot while they live; slots are used again. Axes: M machine slots, T task
slots, R resources (`quota.resources.AXIS`, then the cell's own). Ports are counted by the machine's range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quota.resources import PORTS, SIZE
from scheduling.core import events
from scheduling.core.attributes import Attributes
from scheduling.core.events import Event
from scheduling.core.requirement import Constraint, Group, Requirement, task_id
from scheduling.core.states import MachineStatus, TaskState

Ints = NDArray[np.int64]
_FIRST_SLOTS = 64


@dataclass(slots=True)
class MachineRecord:
    """What of a machine is no array. `ports`: numbers in use, of running tasks and of those that still stop."""

    machine_id: int
    hostname: str
    slot: int
    port_low: int
    port_high: int
    ports: set[int] = field(default_factory=set)
    next_port: int = 0
    tasks: set[int] = field(default_factory=set)  # task ids running here


@dataclass(slots=True)
class JobRecord:
    job_id: int
    tenant_id: int
    tenant: str
    name: str
    priority: int
    latency_sensitive: bool
    port_names: tuple[str, ...]
    spec_version: int
    tasks: set[int] = field(default_factory=set)
    running: int = 0


@dataclass(slots=True)
class TaskRecord:
    """`machine`: the slot of the machine it runs on, or -1. `last_machine`: id of the one before, 0 for none."""

    task_id: int
    job_id: int
    index: int
    requirement: Requirement
    limit: Ints
    reservation: Ints
    state: str = TaskState.PENDING.value
    machine: int = -1
    incarnation: int = 0
    ports: tuple[int, ...] = ()
    last_machine: int = 0
    crashed: dict[int, float] | None = None  # machine id -> when


class CellState:
    """See the module. `revision` is that of the newest event applied."""

    def __init__(self, extra_resources: Iterable[str] = ()) -> None:
        self.extra_resources = tuple(extra_resources)
        self.resources = SIZE + len(self.extra_resources)
        self.revision = 0
        self.machines: dict[int, MachineRecord] = {}
        self.jobs: dict[int, JobRecord] = {}
        self.tasks: dict[int, TaskRecord] = {}
        self.pending: set[int] = set()
        self.departed: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        self.attributes = Attributes()
        self.capacity = np.zeros((0, self.resources), np.int64)
        # By priority: what running tasks of exactly that priority hold on each machine.
        self.limits: dict[int, Ints] = {}
        self.reservations: dict[int, Ints] = {}
        self.ports_used = np.zeros(0, np.int64)
        self.up = np.zeros(0, np.bool_)
        self.rack = np.zeros(0, np.int64)
        self.domain = np.zeros(0, np.int64)
        self.slot_ids = np.zeros(0, np.int64)  # machine id of each slot, 0 when free
        # What is known of constraints and machines (§3.4), by constraints: (facts_version, allowed, bonus).
        self.statics: dict[tuple[Constraint, ...], tuple[int, NDArray[np.bool_], NDArray[np.float64]]] = {}
        # Raised whenever facts of a machine change that are no quantities: what is cached about it is stale.
        self.facts_version = 0
        self._free: list[int] = []
        self._codes: dict[str, dict[str, int]] = {"rack": {"": 0}, "domain": {"": 0}}
        self._appliers: dict[type, Callable[[Any, float], None]] = {
            events.MachineSet: self._machine_set,
            events.MachineState: self._machine_state,
            events.MachineRemoved: self._machine_removed,
            events.JobSubmitted: self._job_submitted,
            events.JobChanged: self._job_changed,
            events.JobEnded: self._job_ended,
            events.TasksAdded: self._tasks_added,
            events.TaskPlaced: self._task_placed,
            events.TaskEvicted: self._task_evicted,
            events.TaskEnded: self._task_ended,
            events.TaskGone: self._task_gone,
            events.TaskRevived: self._task_revived,
            events.TaskUpdated: self._task_updated,
            events.ReservationsSet: self._reservations_set,
        }

    # The rest of the journal – leases, settings, reports, updates, rejections – does not touch placement.

    def apply(self, event: Event, *, revision: int, time: float) -> None:
        """Advance by one event. `time`: seconds since the epoch. Raises `KeyError` for what is not there."""
        applier = self._appliers.get(type(event))
        if applier is not None:
            applier(event, time)
        self.revision = max(self.revision, revision)

    @property
    def racks(self) -> int:
        """How many codes `rack` uses."""
        return len(self._codes["rack"])

    @property
    def domains(self) -> int:
        return len(self._codes["domain"])

    def codes(self, kind: str) -> dict[str, int]:
        """Codes by name, of `rack` or `domain`."""
        return self._codes[kind]

    def machine_id(self, slot: int) -> int:
        return int(self.slot_ids[slot])

    def free_ports(self, machine: MachineRecord, number: int, taken: set[int]) -> tuple[int, ...]:
        """`number` ports that nobody there has, nor are `taken`; beginning after the last one given: a port rests."""
        span = machine.port_high - machine.port_low + 1
        found: list[int] = []
        for step in range(span):
            if len(found) == number:
                break
            port = machine.port_low + (machine.next_port + step) % span
            if port not in machine.ports and port not in taken:
                found.append(port)
        return tuple(found)

    # Machines

    def _machine_set(self, event: events.MachineSet, time: float) -> None:
        record = self.machines.get(event.machine_id)
        if record is None:
            slot = self._take_slot()
            record = MachineRecord(event.machine_id, event.hostname, slot, event.port_low, event.port_high)
            self.machines[event.machine_id] = record
        record.hostname, record.port_low, record.port_high = event.hostname, event.port_low, event.port_high
        slot = record.slot
        self.slot_ids[slot] = event.machine_id
        self.capacity[slot] = 0
        self.capacity[slot, : len(event.capacity)] = event.capacity
        self.capacity[slot, PORTS] = event.port_high - event.port_low + 1
        self.up[slot] = event.state == MachineStatus.UP
        self.rack[slot] = self._code("rack", event.rack)
        self.domain[slot] = self._code("domain", event.power_domain)
        self.attributes.set(
            slot, {**event.attributes, "platform": event.platform} if event.platform else event.attributes
        )
        self.facts_version += 1

    def _machine_state(self, event: events.MachineState, time: float) -> None:
        self.up[self.machines[event.machine_id].slot] = event.state == MachineStatus.UP
        self.facts_version += 1

    def _machine_removed(self, event: events.MachineRemoved, time: float) -> None:
        record = self.machines.pop(event.machine_id, None)
        if record is None:
            return
        slot = record.slot
        self.up[slot], self.slot_ids[slot], self.ports_used[slot] = False, 0, 0
        self.capacity[slot] = 0
        for held in (*self.limits.values(), *self.reservations.values()):
            held[slot] = 0
        self.attributes.set(slot, {})
        self.departed = {key: value for key, value in self.departed.items() if value[0] != event.machine_id}
        self._free.append(slot)
        self.facts_version += 1

    # Jobs

    def _job_submitted(self, event: events.JobSubmitted, time: float) -> None:
        self.jobs[event.job_id] = JobRecord(
            event.job_id,
            event.tenant_id,
            event.tenant,
            event.name,
            event.priority,
            event.latency_sensitive,
            event.port_names,
            event.spec_version,
        )
        self._add(event.job_id, event.groups)

    def _tasks_added(self, event: events.TasksAdded, time: float) -> None:
        self._add(event.job_id, event.groups)

    def _job_changed(self, event: events.JobChanged, time: float) -> None:
        job = self.jobs[event.job_id]
        running = [task for i in job.tasks if (task := self.tasks[i]).machine >= 0] if job.running else []
        if event.priority != job.priority:
            for task in running:
                self._hold(task, job.priority, -1)
                self._hold(task, event.priority, +1)
        job.priority, job.latency_sensitive = event.priority, event.latency_sensitive
        job.spec_version, job.port_names = event.spec_version, event.port_names

    def _job_ended(self, event: events.JobEnded, time: float) -> None:
        job = self.jobs.pop(event.job_id)
        for identity in job.tasks:
            task = self.tasks.pop(identity)
            if task.machine >= 0:
                self._leave(task, job)
            self.pending.discard(identity)

    def _add(self, job_id: int, groups: tuple[Group, ...]) -> None:
        job = self.jobs[job_id]
        for group in groups:
            limit = self._vector(group.requirement.limit)
            for index in group.indexes():
                identity = task_id(job_id, index)
                self.tasks[identity] = TaskRecord(identity, job_id, index, group.requirement, limit, limit)
                job.tasks.add(identity)
                self.pending.add(identity)

    # Tasks

    def _task_placed(self, event: events.TaskPlaced, time: float) -> None:
        task = self.tasks[task_id(event.job_id, event.index)]
        job = self.jobs[event.job_id]
        machine = self.machines[event.machine_id]
        task.state, task.machine, task.incarnation = TaskState.RUNNING.value, machine.slot, event.incarnation
        task.ports, task.reservation = event.ports, task.limit
        self._hold(task, job.priority, +1)
        machine.tasks.add(task.task_id)
        machine.ports.update(event.ports)
        if event.ports:
            span = machine.port_high - machine.port_low + 1
            machine.next_port = (max(event.ports) - machine.port_low + 1) % span
        self.ports_used[machine.slot] += len(event.ports)
        job.running += 1
        self.pending.discard(task.task_id)

    def _task_evicted(self, event: events.TaskEvicted, time: float) -> None:
        task = self.tasks[task_id(event.job_id, event.index)]
        self._depart(task, event.machine_id, event.incarnation, gone=event.gone)
        if event.avoid:
            task.crashed = {**(task.crashed or {}), event.machine_id: time}
        task.state, task.last_machine = TaskState.PENDING.value, event.machine_id
        self.pending.add(task.task_id)

    def _task_ended(self, event: events.TaskEnded, time: float) -> None:
        task = self.tasks[task_id(event.job_id, event.index)]
        if task.machine >= 0:
            self._depart(task, event.machine_id, event.incarnation, gone=event.gone)
        task.state = TaskState.DEAD.value
        self.pending.discard(task.task_id)

    def _task_gone(self, event: events.TaskGone, time: float) -> None:
        held = self.departed.pop((task_id(event.job_id, event.index), event.incarnation), None)
        if held is not None:
            self._return_ports(*held)

    def _task_revived(self, event: events.TaskRevived, time: float) -> None:
        task = self.tasks[task_id(event.job_id, event.index)]
        task.state = TaskState.PENDING.value
        self.pending.add(task.task_id)

    def _task_updated(self, event: events.TaskUpdated, time: float) -> None:
        task = self.tasks[task_id(event.job_id, event.index)]
        limit = self._vector(event.requirement.limit)
        changed = not np.array_equal(limit, task.limit)
        priority = self.jobs[event.job_id].priority
        if task.machine >= 0 and changed:
            self._hold(task, priority, -1)
        if changed:
            task.limit = task.reservation = limit
            if task.machine >= 0:
                self._hold(task, priority, +1)
        task.requirement = event.requirement

    def _reservations_set(self, event: events.ReservationsSet, time: float) -> None:
        for (job_id, index), reservation in zip(event.tasks, event.reservations, strict=True):
            task = self.tasks.get(task_id(job_id, index))
            if task is None or task.machine < 0:
                continue
            new = self._vector(reservation)
            held = self.reservations[self.jobs[job_id].priority]
            held[task.machine] += new - task.reservation
            task.reservation = new

    # What is held where

    def _hold(self, task: TaskRecord, priority: int, sign: int) -> None:
        if priority not in self.limits:
            self.limits[priority] = np.zeros_like(self.capacity)
            self.reservations[priority] = np.zeros_like(self.capacity)
        self.limits[priority][task.machine] += sign * task.limit
        self.reservations[priority][task.machine] += sign * task.reservation

    def _leave(self, task: TaskRecord, job: JobRecord) -> MachineRecord:
        machine = self.machines[self.machine_id(task.machine)]
        self._hold(task, job.priority, -1)
        machine.tasks.discard(task.task_id)
        job.running -= 1
        task.machine, task.reservation = -1, task.limit
        return machine

    def _depart(self, task: TaskRecord, machine_id: int, incarnation: int, *, gone: bool) -> None:
        ports = task.ports
        self._leave(task, self.jobs[task.job_id])
        task.ports = ()
        if gone:
            self._return_ports(machine_id, ports)
        else:
            self.departed[(task.task_id, incarnation)] = (machine_id, ports)

    def _return_ports(self, machine_id: int, ports: tuple[int, ...]) -> None:
        machine = self.machines.get(machine_id)
        if machine is not None:
            machine.ports.difference_update(ports)
            self.ports_used[machine.slot] -= len(ports)

    # Slots and codes

    def _vector(self, given: tuple[int, ...]) -> Ints:
        vector = np.zeros(self.resources, np.int64)
        vector[: len(given)] = given
        vector[PORTS] = 0  # counted by number, not by sum
        return vector

    def _take_slot(self) -> int:
        if not self._free:
            old = len(self.slot_ids)
            new = max(_FIRST_SLOTS, 2 * old)
            self.capacity = _grown(self.capacity, new)
            self.limits = {p: _grown(a, new) for p, a in self.limits.items()}
            self.reservations = {p: _grown(a, new) for p, a in self.reservations.items()}
            for name in ("ports_used", "up", "rack", "domain", "slot_ids"):
                setattr(self, name, _grown(getattr(self, name), new))
            self.attributes.grow(new)
            self._free = list(range(new - 1, old - 1, -1))
        return self._free.pop()

    def _code(self, kind: str, value: str) -> int:
        codes = self._codes[kind]
        return codes.setdefault(value, len(codes))

    def validate(self) -> list[str]:
        """Broken invariants of the state itself, as sentences; machines that shrank are reported, too."""
        from scheduling.core.soundness import problems

        return problems(self)

    def diff(self, other: CellState) -> list[str]:
        """How the content differs, whatever the slots; empty when equal."""
        from scheduling.core.soundness import differences

        return differences(self, other)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    new = np.zeros((size, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new
