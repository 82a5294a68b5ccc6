"""Builders for pure tests of the scheduler: a cell's journal, its state, and the rows that a database would hold.

world = World().machine("m1", cpu=4000).job("web", tasks=3, cpu=1000, priority=200)
plan = world.schedule()                      # decides and commits
world.evict("web", 0).gone("web", 0, 1)
assert world.state.validate() == []
assert world.from_rows().diff(world.state) == []
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from quota.vocabulary.resources import NAMES, PORTS
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Constraint, Group, Relation, Requirement
from scheduling.core.vocabulary.states import EvictionCause

GIB = 2**30


def vector(*, cpu: int = 0, ram: int = 0, disk: int = 0, accelerators: int = 0, ports: int = 0) -> tuple[int, ...]:
    amounts = {"cpu": cpu, "ram": ram, "disk": disk, "accelerators": accelerators, "ports": ports}
    return tuple(amounts.get(name, 0) for name in NAMES)


def needs(
    *,
    cpu: int = 1000,
    ram: int = GIB,
    accelerators: int = 0,
    ports: int = 0,
    constraints: tuple[Constraint, ...] = (),
    **others: Any,
) -> Requirement:
    """Return what a task requests: `cpu` in milli-cores, `ram` in bytes, `accelerators` in milli-units.

    `others`: further fields of `Requirement`: max_per_machine, max_per_rack, max_per_power_domain, packages.
    """
    limit = vector(cpu=cpu, ram=ram, accelerators=accelerators, ports=ports)
    return Requirement(limit, constraints=constraints, **others)


def must(attribute: str, relation: str, value: str = "") -> Constraint:
    return Constraint(attribute, Relation(relation), value)


def wish(attribute: str, relation: str, value: str = "", weight: float = 1.0) -> Constraint:
    return Constraint(attribute, Relation(relation), value, hard=False, weight=weight)


@dataclass
class TaskRow:
    requirement: Requirement
    state: str = "pending"
    machine_id: int | None = None
    incarnation: int = 0
    ports: tuple[int, ...] = ()
    devices: tuple[int, ...] = ()
    reservation: tuple[int, ...] = ()
    since: float = 0.0
    up: bool = False


@dataclass
class JobRow:
    job_id: int
    submitted: events.JobSubmitted
    tasks: dict[int, TaskRow] = field(default_factory=dict)
    ended: bool = False


class World:
    """A cell for tests: its journal, the state that is computed from the journal, and its rows.

    Methods take the names of machines and jobs. Ids count from 1. Methods that change the cell return this object, so
    that calls can be chained.
    """

    def __init__(self) -> None:
        self.journal: list[tuple[events.Event, float]] = []
        self.state = CellState()
        self.time = 1000.0
        self.machines: dict[str, events.MachineSet] = {}
        self.jobs: dict[str, JobRow] = {}
        self.installed: dict[int, set[str]] = {}  # machine id -> digests
        self.departures: dict[tuple[str, int, int], tuple[int, tuple[int, ...]]] = {}
        self.crashes: dict[tuple[str, int, int], float] = {}
        self._ids = iter(range(1, 1 << 40))

    def send(self, event: events.Event) -> World:
        self.time += 1.0
        self.journal.append((event, self.time))
        self.state.apply(event, revision=len(self.journal), time=self.time)
        return self

    # --- machines

    def machine(
        self,
        name: str,
        *,
        cpu: int = 8000,
        ram: int = 32 * GIB,
        accelerators: int = 0,
        rack: str = "",
        power: str = "",
        ports: int = 100,
        state: str = "up",
        machine_id: int | None = None,
        **attributes: str,
    ) -> World:
        """Add a machine, or change the facts of the machine that has this name already."""
        known = self.machines.get(name)
        if machine_id is None:
            machine_id = known.machine_id if known else next(self._ids)
        self.machines[name] = events.MachineSet(
            machine_id=machine_id,
            hostname=name,
            address="127.0.0.1",
            capacity=vector(cpu=cpu, ram=ram, accelerators=accelerators, ports=ports),
            attributes=attributes,
            rack=rack,
            power_domain=power,
            port_low=20_000,
            port_high=20_000 + ports - 1,
            state=state,
        )
        return self.send(self.machines[name])

    def machine_state(self, name: str, state: str) -> World:
        machine = self.machines[name]
        fields = {field: getattr(machine, field) for field in machine.__struct_fields__}
        self.machines[name] = events.MachineSet(**{**fields, "state": state})
        return self.send(events.MachineState(machine_id=machine.machine_id, state=state))

    def has(self, name: str, *digests: str) -> World:
        """Set the packages that are installed on a machine to exactly these digests."""
        machine_id = self.id_of(name)
        before, now = self.installed.get(machine_id, set()), set(digests)
        self.installed[machine_id] = now
        return self.send(
            events.PackagesHeld(
                came=dict.fromkeys(sorted(now - before), (machine_id,)),
                went=dict.fromkeys(sorted(before - now), (machine_id,)),
            )
        )

    def id_of(self, machine: str) -> int:
        return self.machines[machine].machine_id

    def remove(self, name: str) -> World:
        gone = self.machines.pop(name).machine_id
        self.installed.pop(gone, None)
        self.departures = {key: held for key, held in self.departures.items() if held[0] != gone}
        self.crashes = {key: when for key, when in self.crashes.items() if key[2] != gone}
        return self.send(events.MachineRemoved(machine_id=gone))

    def free_devices(self, name: str) -> list[int]:
        """Return the free capacity of each accelerator of a machine, in milli-units, as the state counts it."""
        free: list[int] = self.state.machines.devices[self.state.machines.slot[self.id_of(name)]].tolist()
        return free

    # --- jobs

    def job(
        self,
        name: str,
        requirement: Requirement | None = None,
        *,
        tasks: int = 1,
        priority: int = 200,
        tenant: int = 1,
        latency_sensitive: bool = True,
        gang: bool = False,
        disruption_budget: int = 0,
        max_running: int = 0,
        start_after: float = 0.0,
        waiting: bool = False,
        max_run_s: float = 0.0,
        ends_within_s: float | None = None,
        **asks: Any,
    ) -> World:
        wanted = requirement or needs(**asks)
        submitted = events.JobSubmitted(
            job_id=next(self._ids),
            uid=f"{len(self.jobs):032x}",
            tenant_id=tenant,
            tenant=f"t{tenant:02d}",
            name=name,
            job_kind="job",
            priority=priority,
            latency_sensitive=latency_sensitive,
            spec_version=1,
            groups=(Group(wanted, ((0, tasks - 1),)),),
            port_names=tuple(f"p{number}" for number in range(wanted.limit[PORTS])),
            gang=gang,
            disruption_budget=disruption_budget,
            max_running=max_running,
            start_after=start_after,
            waiting=waiting,
            max_run_s=max_run_s,
            ends_within_s=max_run_s if ends_within_s is None else ends_within_s,
        )
        self.jobs[name] = JobRow(submitted.job_id, submitted, {i: TaskRow(wanted) for i in range(tasks)})
        return self.send(submitted)

    def change_priority(self, name: str, priority: int) -> World:
        return self.change(name, priority=priority)

    def change(self, name: str, **facts: Any) -> World:
        """Change fields of a job that are not about single tasks: for example gang or start_after."""
        row = self.jobs[name]
        if "max_run_s" in facts:
            facts.setdefault("ends_within_s", facts["max_run_s"])
        fields = {field: getattr(row.submitted, field) for field in row.submitted.__struct_fields__}
        row.submitted = events.JobSubmitted(**{**fields, **facts})
        return self.send(
            events.JobChanged(
                job_id=row.job_id,
                priority=row.submitted.priority,
                latency_sensitive=row.submitted.latency_sensitive,
                spec_version=2,
                port_names=row.submitted.port_names,
                gang=row.submitted.gang,
                disruption_budget=row.submitted.disruption_budget,
                max_running=row.submitted.max_running,
                start_after=row.submitted.start_after,
                max_run_s=row.submitted.max_run_s,
                ends_within_s=row.submitted.ends_within_s,
            )
        )

    def release(self, name: str) -> World:
        """Let a job no longer wait for other jobs."""
        row = self.jobs[name]
        row.submitted = msgspec.structs.replace(row.submitted, waiting=False)
        return self.send(events.JobReleased(job_id=row.job_id))

    # --- tasks

    def task(self, job: str, index: int) -> TaskRow:
        return self.jobs[job].tasks[index]

    def in_state(self, state: str) -> list[tuple[str, int]]:
        return [
            (name, index)
            for name, row in self.jobs.items()
            if not row.ended
            for index, task in row.tasks.items()
            if task.state == state
        ]

    def place(
        self, job: str, index: int, *, on: str, ports: tuple[int, ...] = (), devices: tuple[int, ...] = ()
    ) -> World:
        return self._place(job, index, self.id_of(on), ports, devices)

    def _place(self, job: str, index: int, machine_id: int, ports: tuple[int, ...], devices: tuple[int, ...]) -> World:
        task = self.task(job, index)
        task.state, task.machine_id, task.ports, task.devices = "running", machine_id, ports, devices
        task.incarnation += 1
        task.reservation = task.requirement.limit
        task.since, task.up = self.time + 1.0, False
        return self.send(self._placed(job, index, machine_id, task.incarnation, ports, devices))

    def _placed(
        self,
        job: str,
        index: int,
        machine_id: int,
        incarnation: int,
        ports: tuple[int, ...] = (),
        devices: tuple[int, ...] = (),
    ) -> events.TaskPlaced:
        return events.TaskPlaced(
            job_id=self.jobs[job].job_id,
            index=index,
            machine_id=machine_id,
            incarnation=incarnation,
            ports=ports,
            devices=devices,
        )

    def report(self, job: str, index: int, phase: str, *, restarts: int = 0) -> World:
        """Report the phase of a running task, as its Borglet does."""
        task, up = self.task(job, index), phase == "up"
        if task.up != up and phase != "stopping":
            task.since = self.time + 1.0
        task.up = up
        return self.send(self._report(job, index, phase, restarts))

    def _report(self, job: str, index: int, phase: str, restarts: int = 0) -> events.TaskReported:
        task = self.task(job, index)
        return events.TaskReported(
            job_id=self.jobs[job].job_id,
            index=index,
            machine_id=task.machine_id or 0,
            incarnation=task.incarnation,
            phase=phase,
            health="",
            up=phase == "up",
            restarts=restarts,
        )

    def evict(self, job: str, index: int, *, gone: bool = False, crashed: bool = False) -> World:
        task = self.task(job, index)
        machine_id = self._leaves(job, index, gone=gone)
        task.state = "pending"
        if crashed:
            self.crashes[job, index, machine_id] = self.time + 1.0
        cause = EvictionCause.FAILURE if crashed else EvictionCause.OTHER
        return self.send(
            events.TaskEvicted(
                job_id=self.jobs[job].job_id,
                index=index,
                machine_id=machine_id,
                incarnation=task.incarnation,
                cause=cause.value,
                gone=gone,
                avoid=crashed,
            )
        )

    def end(self, job: str, index: int, how: str = "killed", *, gone: bool = False) -> World:
        """End a pending or running task. If it was the last living task of the job, end the job too."""
        row, task = self.jobs[job], self.task(job, index)
        machine_id = self._leaves(job, index, gone=gone) if task.state == "running" else 0
        task.state = "dead"
        self.send(
            events.TaskEnded(
                job_id=row.job_id,
                index=index,
                machine_id=machine_id,
                incarnation=task.incarnation,
                how=how,
                gone=gone or not machine_id,
            )
        )
        if all(other.state == "dead" for other in row.tasks.values()):
            row.ended = True
            self.crashes = {key: when for key, when in self.crashes.items() if key[0] != job}
            self.send(events.JobEnded(job_id=row.job_id, how=how))
        return self

    def _leaves(self, job: str, index: int, *, gone: bool) -> int:
        task = self.task(job, index)
        machine_id = task.machine_id
        assert machine_id is not None
        if not gone:
            self.departures[job, index, task.incarnation] = (machine_id, task.ports)
        task.machine_id, task.ports, task.devices = None, (), ()
        return machine_id

    def gone(self, job: str, index: int, incarnation: int) -> World:
        machine_id, _ = self.departures.pop((job, index, incarnation))
        told = events.TaskGone(
            job_id=self.jobs[job].job_id, index=index, machine_id=machine_id, incarnation=incarnation
        )
        return self.send(told)

    def revive(self, job: str, index: int) -> World:
        self.task(job, index).state = "pending"
        return self.send(events.TaskRevived(job_id=self.jobs[job].job_id, index=index, spec_version=1))

    def update(self, job: str, index: int, requirement: Requirement) -> World:
        task = self.task(job, index)
        if task.requirement.limit != requirement.limit:
            task.reservation = requirement.limit
        task.requirement = requirement
        return self.send(
            events.TaskUpdated(job_id=self.jobs[job].job_id, index=index, spec_version=2, requirement=requirement)
        )

    def reserve(self, job: str, index: int, *, cpu: int, ram: int) -> World:
        """Set the reservation of a task, which is the estimate of its future usage (§5.5): milli-cores and bytes."""
        task = self.task(job, index)
        task.reservation = (cpu, ram, *task.requirement.limit[2:])
        pair = (self.jobs[job].job_id, index)
        return self.send(events.ReservationsSet(tasks=(pair,), reservations=(task.reservation,)))

    # --- passes

    def plan(
        self,
        policy: Policy | None = None,
        *,
        seed: int = 0,
        now: float | None = None,
        explainer: Explainer | None = None,
        memory: PassCache | None = None,
    ) -> Plan:
        rng = np.random.default_rng(seed)
        when = self.time if now is None else now
        return schedule_pass(self.state, policy or Policy(), now=when, rng=rng, memory=memory, explainer=explainer)

    def schedule(self, policy: Policy | None = None, *, seed: int = 0, memory: PassCache | None = None) -> Plan:
        """Run a scheduling pass, commit its plan, and return the plan."""
        plan = self.plan(policy, seed=seed, memory=memory)
        self.commit(plan.assignments)
        return plan

    def commit(self, assignments: Iterable[Assignment]) -> None:
        """Apply assignments in order. For each, evict the victims first and place the task after that."""
        for assignment in assignments:
            for job_id, index in assignment.victims:
                self.evict(self.name_of(job_id), index)
            job = self.name_of(assignment.job_id)
            self._place(job, assignment.index, assignment.machine_id, assignment.ports, assignment.devices)

    def name_of(self, job_id: int) -> str:
        return next(name for name, row in self.jobs.items() if row.job_id == job_id)

    def where(self, plan: Plan, job: str) -> dict[int, str]:
        """Return the machine's name by task index, for each task of the job that the plan places."""
        names = {machine.machine_id: name for name, machine in self.machines.items()}
        return {a.index: names[a.machine_id] for a in self.assignments(plan, job)}

    def assignments(self, plan: Plan, job: str) -> list[Assignment]:
        return [a for a in plan.assignments if a.job_id == self.jobs[job].job_id]

    # --- the same from rows

    def from_rows(self) -> CellState:
        state = CellState()
        state.load(self.rows(), revision=len(self.journal))
        return state

    def rows(self) -> Iterator[tuple[events.Event, float]]:
        """Yield the events from which `CellState.load` rebuilds the present state, each with its time."""
        for machine in self.machines.values():
            yield machine, 0.0
        digests = sorted({digest for own in self.installed.values() for digest in own})
        came = {digest: tuple(m for m, own in self.installed.items() if digest in own) for digest in digests}
        yield events.PackagesHeld(came=came), 0.0
        for name, row in self.jobs.items():
            if not row.ended or any(key[0] == name for key in self.departures):
                yield from self._job_rows(name, row)

    def _job_rows(self, name: str, row: JobRow) -> Iterator[tuple[events.Event, float]]:
        fields = {field: getattr(row.submitted, field) for field in row.submitted.__struct_fields__}
        groups = tuple(Group(task.requirement, ((i, i),)) for i, task in row.tasks.items())
        yield events.JobSubmitted(**{**fields, "groups": groups}), 0.0
        for index, task in row.tasks.items():
            for (job, i, machine_id), when in self.crashes.items():
                if (job, i) == (name, index):
                    yield self._placed(name, index, machine_id, 0), when
                    yield self._left(row, index, machine_id, 0, gone=True, avoid=True), when
            for (job, i, incarnation), (machine_id, ports) in self.departures.items():
                if (job, i) == (name, index):
                    yield self._placed(name, index, machine_id, incarnation, ports), 0.0
                    yield self._left(row, index, machine_id, incarnation, gone=False, avoid=False), 0.0
            if task.state == "running":
                placed = self._placed(name, index, task.machine_id or 0, task.incarnation, task.ports, task.devices)
                yield placed, task.since
                if task.up:
                    yield self._report(name, index, "up"), task.since
                if task.reservation != task.requirement.limit:
                    pair = (row.job_id, index)
                    yield events.ReservationsSet(tasks=(pair,), reservations=(task.reservation,)), 0.0
            elif task.state == "dead":
                yield (events.TaskEnded(job_id=row.job_id, index=index, machine_id=0, incarnation=0, how=""), 0.0)
        if row.ended:
            yield events.JobEnded(job_id=row.job_id, how="killed"), 0.0

    def _left(
        self, row: JobRow, index: int, machine_id: int, incarnation: int, *, gone: bool, avoid: bool
    ) -> events.TaskEvicted:
        return events.TaskEvicted(
            job_id=row.job_id,
            index=index,
            machine_id=machine_id,
            incarnation=incarnation,
            cause=EvictionCause.OTHER.value,
            gone=gone,
            avoid=avoid,
        )
