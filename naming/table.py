"""Who is where in one cell: a table in memory, advanced by the cell's journal (§2.6).

`apply` takes every event of the journal in order and costs O(1) for what happens to a task, so a name is right
one event after the news. Nothing here knows DNS, a clock or a database.

A task *serves* when its Borglet's report says that it is up: phase `up`, and healthy where a check is declared.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from scheduling.core import events
from scheduling.core.requirement import Group

SERIAL_MODULUS = 1 << 32
# A restored cell continues this far above what it may have published before: more revisions than a restore
# can lose (a week at 100 a second), and far less than the half circle that RFC 1982 allows for one step.
HISTORY_STEP = 1 << 26


GONE = -1  # the revision of a job that has ended: what is kept of its names is no answer any more


def serial_of(revision: int, history_ordinal: int = 1) -> int:
    """The zone's serial for a revision: 32 bits, never 0, which some secondaries take for "unknown"."""
    return (revision + (history_ordinal - 1) * HISTORY_STEP) % SERIAL_MODULUS or 1


def serial_newer(a: int, b: int) -> bool:
    """Whether serial `a` comes after `b` in the arithmetic of RFC 1982 §3.2."""
    return a != b and (a - b) % SERIAL_MODULUS < SERIAL_MODULUS // 2


@dataclass(slots=True)
class Machine:
    machine_id: int
    hostname: str
    address: str  # IPv4 or IPv6 in text
    family: int  # 4, 6, or 0 for an address that is none: its tasks have no address record


@dataclass(slots=True)
class Task:
    """A placed incarnation. `ports` are numbers in the order of `port_names`."""

    index: int
    incarnation: int
    machine: Machine
    port_names: tuple[str, ...]
    ports: tuple[int, ...]
    phase: str = "assigned"
    health: str = "unknown"
    serves: bool = False
    revision: int = 0  # of its last change
    own_address: str = ""  # of a network of its own

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.own_address or self.machine.address

    @property
    def family(self) -> int:
        """Of the address, as a machine's."""
        return _family(self.own_address) if self.own_address else self.machine.family

    def named_ports(self) -> list[tuple[str, int]]:
        return list(zip(self.port_names, self.ports, strict=False))


class Pool:
    """Tasks of one job with O(1) change and O(k) random choice, however large the job."""

    __slots__ = ("_at", "_tasks")

    def __init__(self) -> None:
        self._tasks: list[Task] = []
        self._at: dict[int, int] = {}  # index of the task -> its place in the list

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, index: int) -> bool:
        return index in self._at

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def get(self, index: int) -> Task | None:
        at = self._at.get(index)
        return None if at is None else self._tasks[at]

    def put(self, task: Task) -> None:
        at = self._at.get(task.index)
        if at is None:
            self._at[task.index] = len(self._tasks)
            self._tasks.append(task)
        else:
            self._tasks[at] = task

    def discard(self, index: int) -> Task | None:
        at = self._at.pop(index, None)
        if at is None:
            return None
        task, last = self._tasks[at], self._tasks.pop()
        if last is not task:
            self._tasks[at] = last
            self._at[last.index] = at
        return task

    def any_on(self, machine: Machine) -> bool:
        return any(task.machine is machine for task in self._tasks)

    def sample(self, most: int, rng: Random) -> list[Task]:
        """At most `most` tasks, in random order, each as likely as any other."""
        return rng.sample(self._tasks, min(most, len(self._tasks)))

    def in_order(self) -> list[Task]:
        return [self._tasks[at] for _, at in sorted(self._at.items())]


class Indexes:
    """The indexes a job has, as merged ranges with bounds included."""

    __slots__ = ("_firsts", "_lasts", "size")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.size = 0

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._firsts, index) - 1
        return at >= 0 and index <= self._lasts[at]

    def __iter__(self) -> Iterator[int]:
        for first, last in zip(self._firsts, self._lasts, strict=True):
            yield from range(first, last + 1)

    def ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._firsts, self._lasts, strict=True))

    def add(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for first, last in sorted([*zip(self._firsts, self._lasts, strict=True), *ranges]):
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        self._firsts = [first for first, _ in merged]
        self._lasts = [last for _, last in merged]
        self.size = sum(last - first + 1 for first, last in merged)


@dataclass(slots=True)
class Job:
    job_id: int
    tenant: str
    name: str
    port_names: tuple[str, ...]
    labels: dict[str, str]
    indexes: Indexes = field(default_factory=Indexes)
    placed: Pool = field(default_factory=Pool)
    serving: Pool = field(default_factory=Pool)
    revision: int = 0  # of the last change of its names, or `GONE`
    versions: dict[int, tuple[str, ...]] = field(default_factory=dict)  # spec version -> names of its ports

    @property
    def fails_open(self) -> bool:
        """No placed task is healthy, so its name answers with all of them: better a try than none."""
        return not self.serving and bool(self.placed)

    @property
    def answering(self) -> Pool:
        return self.serving or self.placed

    def all_port_names(self) -> set[str]:
        """Those of every version that a placed task may still run."""
        return set(self.port_names).union(*self.versions.values())


class Touched(NamedTuple):
    """Names that may have changed: a machine's, a job's own (`task` None), a task's, or all below a job (`whole`)."""

    tenant: str
    name: str  # of the job or, where `tenant` is `machine`, the host
    task: int | None = None  # its index
    whole: bool = False


class NameTable:
    """One cell's names. `ready` turns true when the table has caught up with its cell for the first time.

    `revision` is the last one applied, `names_revision` the last that changed a name; the serial is made of
    the latter, so it moves only when names do, and every resolver of the cell counts alike.
    `history_ordinal` is raised by every restore of the cell to an older revision; the serial rises with it.
    `touched` collects what changed for whoever sets it to a set and empties it (`naming.zone`).
    """

    def __init__(self, cell: str, *, history_ordinal: int = 1) -> None:
        self.cell = cell
        self.history_ordinal = history_ordinal
        self.revision = 0
        self.names_revision = 0
        self.ready = False
        self.machines: dict[int, Machine] = {}
        self.hosts: dict[str, Machine] = {}
        self.families: set[int] = set()  # of addresses that its machines have or have had
        self.jobs: dict[int, Job] = {}
        self.tenants: dict[str, dict[str, Job]] = {}
        self.touched: set[Touched] | None = None

    @property
    def serial(self) -> int:
        return serial_of(self.names_revision, self.history_ordinal)

    def job(self, tenant: str, name: str) -> Job | None:
        return self.tenants.get(tenant, {}).get(name)

    def counts(self) -> tuple[int, int, int]:
        """Jobs, placed tasks, serving tasks."""
        jobs = self.jobs.values()
        return len(jobs), sum(len(job.placed) for job in jobs), sum(len(job.serving) for job in jobs)

    def apply(self, event: events.Event, revision: int) -> bool:
        """Advances by one event; whether a name changed. Late news of departed jobs and tasks changes none."""
        self.revision = max(self.revision, revision)
        handler = _HANDLERS.get(type(event))
        if handler is None or not handler(self, event, revision):
            return False
        self.names_revision = max(self.names_revision, revision)
        return True

    def _machine_set(self, event: events.MachineSet, revision: int) -> bool:
        """Tasks hold their machine, so a new address reaches all of them at once."""
        machine = self.machines.get(event.machine_id)
        host, family = event.hostname.lower(), _family(event.address)
        if machine is None:
            machine = Machine(event.machine_id, host, event.address, family)
        elif (machine.hostname, machine.address) == (host, event.address):
            return False
        else:
            before = machine.hostname
            self.hosts.pop(before, None)
            machine.hostname, machine.address, machine.family = host, event.address, family
            for job in self.jobs.values():  # rare, and names of all its tasks change
                if job.placed.any_on(machine):
                    self._touch(job, revision, whole=True)
            self._note(Touched("machine", before))
        self.machines[event.machine_id] = self.hosts[host] = machine
        self.families.add(family)
        self._note(Touched("machine", host))
        return True

    def _machine_removed(self, event: events.MachineRemoved, revision: int) -> bool:
        machine = self.machines.pop(event.machine_id, None)
        if machine is None:
            return False
        if self.hosts.get(machine.hostname) is machine:
            del self.hosts[machine.hostname]
        self._note(Touched("machine", machine.hostname))
        return True

    def _job_submitted(self, event: events.JobSubmitted, revision: int) -> bool:
        job = Job(event.job_id, event.tenant, event.name, event.port_names, event.labels, revision=revision)
        job.versions[event.spec_version] = event.port_names
        job.indexes.add(_ranges(event.groups))
        self.jobs[event.job_id] = job
        names = self.tenants.setdefault(event.tenant, {})
        if (before := names.get(event.name)) is not None:
            before.revision = GONE
        names[event.name] = job
        return self._touch(job, revision, whole=True)

    def _job_changed(self, event: events.JobChanged, revision: int) -> bool:
        job = self.jobs.get(event.job_id)
        if job is None:
            return False
        changed = (job.port_names, job.labels) != (event.port_names, event.labels)
        job.port_names, job.labels = event.port_names, event.labels
        job.versions[event.spec_version] = event.port_names
        return changed and self._touch(job, revision, whole=True)

    def _job_ended(self, event: events.JobEnded, revision: int) -> bool:
        job = self.jobs.pop(event.job_id, None)
        if job is None:
            return False
        self._touch(job, GONE, whole=True)
        names = self.tenants[job.tenant]
        if names.get(job.name) is job:
            del names[job.name]
        if not names:
            del self.tenants[job.tenant]
        return True

    def _tasks_added(self, event: events.TasksAdded, revision: int) -> bool:
        job = self.jobs.get(event.job_id)
        if job is None:
            return False
        job.indexes.add(_ranges(event.groups))
        return self._touch(job, revision, whole=True)

    def _task_placed(self, event: events.TaskPlaced, revision: int) -> bool:
        job, machine = self.jobs.get(event.job_id), self.machines.get(event.machine_id)
        if job is None or machine is None:
            return False
        names = job.versions.get(event.spec_version, job.port_names)
        job.serving.discard(event.index)
        job.placed.put(Task(event.index, event.incarnation, machine, names, event.ports, revision=revision))
        return self._touch(job, revision, event.index)

    def _task_left(self, event: events.TaskEvicted | events.TaskEnded, revision: int) -> bool:
        """It leaves the answers with the decision, before its processes hear of it."""
        job = self.jobs.get(event.job_id)
        task = None if job is None else job.placed.get(event.index)
        if job is None or task is None or task.incarnation != event.incarnation:
            return False
        job.placed.discard(event.index)
        job.serving.discard(event.index)
        return self._touch(job, revision, event.index)

    def _task_reported(self, event: events.TaskReported, revision: int) -> bool:
        job = self.jobs.get(event.job_id)
        task = None if job is None else job.placed.get(event.index)
        if job is None or task is None or task.incarnation != event.incarnation:
            return False
        told = (event.phase, event.health, event.up, event.address)
        if (task.phase, task.health, task.serves, task.own_address) == told:
            return False
        if event.address != task.own_address:
            task.own_address = event.address
            self.families.add(task.family)
        task.phase, task.health, task.serves, task.revision = event.phase, event.health, event.up, revision
        if task.serves:
            job.serving.put(task)
        else:
            job.serving.discard(task.index)
        return self._touch(job, revision, event.index)

    def _touch(self, job: Job, revision: int, index: int | None = None, *, whole: bool = False) -> bool:
        """Its own name changed, besides that of a task, or of all of them."""
        job.revision = revision
        if self.touched is not None:
            self._note(Touched(job.tenant, job.name, None, whole))
            if index is not None:
                self._note(Touched(job.tenant, job.name, index))
        return True

    def _note(self, touched: Touched) -> None:
        if self.touched is not None:
            self.touched.add(touched)


def _family(address: str) -> int:
    try:
        return ipaddress.ip_address(address).version
    except ValueError:
        return 0


def _ranges(groups: Iterable[Group]) -> list[tuple[int, int]]:
    return [bounds for group in groups for bounds in group.ranges]


# One line for every event that can change a name; all others only advance the revision.
_HANDLERS: dict[Any, Callable[[NameTable, Any, int], bool]] = {
    events.MachineSet: NameTable._machine_set,
    events.MachineRemoved: NameTable._machine_removed,
    events.JobSubmitted: NameTable._job_submitted,
    events.JobChanged: NameTable._job_changed,
    events.JobEnded: NameTable._job_ended,
    events.TasksAdded: NameTable._tasks_added,
    events.TaskPlaced: NameTable._task_placed,
    events.TaskEvicted: NameTable._task_left,
    events.TaskEnded: NameTable._task_left,
    events.TaskReported: NameTable._task_reported,
}
# Their tags in the journal: the newest of these is the revision that names stand at.
NAMING_KINDS = tuple(sorted(str(event.__struct_config__.tag) for event in _HANDLERS))
