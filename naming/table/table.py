"""The names of one cell: a table in memory that is updated with each event of the cell's journal (§2.6). Pure.

A task *serves* if its Borglet reports that the task is up: it is in phase `up`, and it is healthy if its job has a
health check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from naming.table.answering_tasks import MachineAddress, PlacedTask, family_of
from naming.table.endpoints import weight_of
from naming.table.jobs import NamedJob, NamedService
from naming.table.names import is_service
from naming.table.reverse import AddressIndex
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group

SERIAL_MODULUS = 1 << 32
# A restore of a cell raises the serial by this step. It is more than the revisions that a restore can lose (a week at
# 100 per second), and far less than the largest step that RFC 1982 allows.
HISTORY_STEP = 1 << 26
# The first serial of a cell rises by this number per second of its creation time. So a cell that is created again under
# its name starts above the serials of the first cell, if that cell lived for less than eight years, had fewer revisions
# per second, and was not restored in its last 97 days.
STARTS_A_SECOND = 8

GONE = -1  # the revision of a job or service that has ended, whose prepared answers are no longer valid


def serial_start(made_at: float) -> int:
    """Return the first serial number of a cell's DNS zone. `made_at`: when the cell was created, in seconds since the
    epoch.
    """
    return int(made_at * STARTS_A_SECOND) % SERIAL_MODULUS


def serial_of(revision: int, history_ordinal: int = 1, start: int = 0) -> int:
    """Return the serial number of a cell's DNS zone at a journal revision. `start`: the result of `serial_start`.
    `history_ordinal`: a number that rises by 1 each time the cell is restored, from a backup or in place.

    The number has 32 bits and differs for every revision. It is never 0, because some DNS servers treat 0 as unknown.
    """
    return 1 + (start + revision - 1 + (history_ordinal - 1) * HISTORY_STEP) % (SERIAL_MODULUS - 1)


def serial_newer(a: int, b: int) -> bool:
    """Return whether the serial number `a` is newer than `b`. RFC 1982 §3.2 defines this comparison."""
    return a != b and (a - b) % SERIAL_MODULUS < SERIAL_MODULUS // 2


class Touched(NamedTuple):
    """Names that may have changed: the names of a machine, a job, a task or a service.

    `tenant`: the tenant's name, or `machine` for a machine. `name`: the name of the machine, job or service. `task`:
    the index of a changed task. `whole`: whether the names of all tasks of the job changed. `service`: whether `name`
    is a service.
    """

    tenant: str
    name: str
    task: int | None = None
    whole: bool = False
    service: bool = False


class NameTable:
    """The names of a cell. `ready`: whether the table has been loaded completely for the first time.

    `revision`: the last applied revision of the journal. `names_revision`: the last revision that changed a name; the
    serial number of the zone depends on it. `history_ordinal`: a number that rises each time the cell is restored from
    a backup or in place. `start`: the serial number before the first change of a name. `touched`: None, or a set to
    which the table adds each changed name; the reader of the set empties it. `before`: functions that the table calls
    with each event before it applies the event.
    """

    def __init__(self, cell: str, *, history_ordinal: int = 1, start: int = 0) -> None:
        self.cell = cell
        self.history_ordinal = history_ordinal
        self.start = start
        self.revision = 0
        self.names_revision = 0
        self.ready = False
        self.machines: dict[int, MachineAddress] = {}
        self.hosts: dict[str, MachineAddress] = {}
        self.families: set[int] = set()  # families of all present and former addresses of machines and tasks
        self.jobs: dict[int, NamedJob] = {}
        self.tenants: dict[str, dict[str, NamedJob]] = {}
        self.services: dict[str, dict[str, NamedService]] = {}  # by tenant
        self.weights: dict[tuple[str, str], Mapping[str, int]] = {}  # of tracks, by tenant and service
        self.reverse = AddressIndex()  # addresses of machines, and of tasks that have their own
        self.touched: set[Touched] | None = None
        self.before: list[Callable[[events.Event], None]] = []

    @property
    def serial(self) -> int:
        return serial_of(self.names_revision, self.history_ordinal, self.start)

    def job(self, tenant: str, name: str) -> NamedJob | None:
        return self.tenants.get(tenant, {}).get(name)

    def service(self, tenant: str, name: str) -> NamedService | None:
        return self.services.get(tenant, {}).get(name)

    def counts(self) -> tuple[int, int, int]:
        """Return three numbers: how many jobs, placed tasks and serving tasks the table contains."""
        jobs = self.jobs.values()
        return len(jobs), sum(len(job.placed) for job in jobs), sum(len(job.serving) for job in jobs)

    def apply(self, event: events.Event, revision: int) -> bool:
        """Apply one event of the journal. Return whether a name changed. Late events of jobs and tasks that have ended
        change no name.
        """
        for prepare in self.before:
            prepare(event)
        self.revision = max(self.revision, revision)
        handler = _HANDLERS.get(type(event))
        if handler is None or not handler(self, event, revision):
            return False
        self.names_revision = max(self.names_revision, revision)
        return True

    def _machine_set(self, event: events.MachineSet, revision: int) -> bool:
        """Add a machine, or change the name or address of a machine. Return whether this changed a name."""
        machine = self.machines.get(event.machine_id)
        host, family = event.hostname.lower(), family_of(event.address)
        if machine is None:
            machine = MachineAddress(event.machine_id, host, event.address, family)
        elif (machine.hostname, machine.address) == (host, event.address):
            return False
        else:
            before = machine.hostname
            self.hosts.pop(before, None)
            self.reverse.discard(machine.address, (before, "machine"))
            machine.hostname, machine.address, machine.family = host, event.address, family
            for job in self.jobs.values():  # a new address is rare
                if job.placed.any_on(machine):
                    self._touch(job, revision, whole=True)
            self._note(Touched("machine", before))
        self.machines[event.machine_id] = self.hosts[host] = machine
        self.reverse.add(machine.address, (host, "machine"))
        self.families.add(family)
        self._note(Touched("machine", host))
        return True

    def _machine_removed(self, event: events.MachineRemoved, revision: int) -> bool:
        machine = self.machines.pop(event.machine_id, None)
        if machine is None:
            return False
        if self.hosts.get(machine.hostname) is machine:
            del self.hosts[machine.hostname]
        self.reverse.discard(machine.address, (machine.hostname, "machine"))
        self._note(Touched("machine", machine.hostname))
        return True

    def _job_submitted(self, event: events.JobSubmitted, revision: int) -> bool:
        job = NamedJob(
            event.job_id,
            event.tenant,
            event.name,
            event.job_kind,
            event.port_names,
            event.labels,
            ttl_s=event.published.ttl_s,
            weights=event.published.weights,
            revision=revision,
        )
        job.follow(event.spec_version, event.port_names)
        job.indexes.add(_ranges(event.groups))
        if (known := self.jobs.get(event.job_id)) is not None:
            self._forget_addresses(known)
        self.jobs[event.job_id] = job
        names = self.tenants.setdefault(event.tenant, {})
        if (before := names.get(event.name)) is not None:
            self._leave_service(before, revision)
            before.revision = GONE
        names[event.name] = job
        self._serve_under_its_label(job, revision)
        return self._touch(job, revision, whole=True)

    def _job_changed(self, event: events.JobChanged, revision: int) -> bool:
        job = self.jobs.get(event.job_id)
        if job is None:
            return False
        published = event.published
        before = job.port_names, job.labels, job.ttl_s, job.weights
        changed = before != (event.port_names, event.labels, published.ttl_s, published.weights)
        job.labels, job.ttl_s = event.labels, published.ttl_s
        job.follow(event.spec_version, event.port_names)
        if published.weights != job.weights:
            job.weigh(published.weights)
        self._serve_under_its_label(job, revision)
        return changed and self._touch(job, revision, whole=True)

    def _job_ended(self, event: events.JobEnded, revision: int) -> bool:
        job = self.jobs.pop(event.job_id, None)
        if job is None:
            return False
        self._leave_service(job, revision)
        self._touch(job, GONE, whole=True)
        self._forget_addresses(job)
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
        task = PlacedTask(job, event.index, event.incarnation, machine, names, event.ports, revision=revision)
        if job.weights:
            task.weight = weight_of(event.index, job.weights)
        if (before := job.placed.put(task)) is not None:
            self._forget_address(job, before)
        return self._touch(job, revision, event.index)

    def _placed(self, event: events.TaskEvicted | events.TaskEnded | events.TaskReported) -> PlacedTask | None:
        """Return the placed task to which the event belongs. Return None if the event's incarnation is not placed."""
        job = self.jobs.get(event.job_id)
        task = None if job is None else job.placed.get(event.index)
        return task if task is not None and task.incarnation == event.incarnation else None

    def _task_left(self, event: events.TaskEvicted | events.TaskEnded, revision: int) -> bool:
        """Remove a task that is evicted or has ended. Return whether this changed a name. Clients do not get the task
        any more, although its processes may still run.
        """
        if (task := self._placed(event)) is None:
            return False
        job = self.jobs[event.job_id]
        job.placed.discard(event.index)
        job.serving.discard(event.index)
        self._forget_address(job, task)
        return self._touch(job, revision, event.index)

    def _task_reported(self, event: events.TaskReported, revision: int) -> bool:
        if (task := self._placed(event)) is None:
            return False
        job = self.jobs[event.job_id]
        detail = (event.phase, event.health, event.up, event.address)
        if (task.phase, task.health, task.serves, task.own_address) == detail:
            return False
        if event.address != task.own_address:
            self._forget_address(job, task)
            task.own_address = event.address
            self.families.add(task.family)
            if event.address:
                self.reverse.add(event.address, _labels(job, task))
        task.phase, task.health, task.serves, task.revision = event.phase, event.health, event.up, revision
        if task.serves:
            job.serving.put(task)
        else:
            job.serving.discard(task.index)
        return self._touch(job, revision, event.index)

    def _forget_address(self, job: NamedJob, task: PlacedTask) -> None:
        if task.own_address:
            self.reverse.discard(task.own_address, _labels(job, task))

    def _forget_addresses(self, job: NamedJob) -> None:
        for task in job.placed:
            self._forget_address(job, task)

    def _serve_under_its_label(self, job: NamedJob, revision: int) -> None:
        """Add a job to the service that its label `service` names. Remove the job from its previous service."""
        name = job.labels.get("service", "") if job.kind == "job" else ""
        if not is_service(name):
            name = ""
        if name == (job.service.name if job.service is not None else ""):
            return
        self._leave_service(job, revision)
        if name:
            services = self.services.setdefault(job.tenant, {})
            weights = self.weights.get((job.tenant, name), {})
            job.service = services.setdefault(name, NamedService(job.tenant, name, weights=weights))
            job.service.jobs[job.job_id] = job
            job.service.changed(revision)

    def _leave_service(self, job: NamedJob, revision: int) -> None:
        """Remove a job from its service. A service without jobs is removed too."""
        service, job.service = job.service, None
        if service is None:
            return
        del service.jobs[job.job_id]
        service.changed(revision)
        self._note(Touched(job.tenant, service.name, service=True))
        if not service.jobs:
            service.changed(GONE)
            services = self.services[job.tenant]
            del services[service.name]
            if not services:
                del self.services[job.tenant]

    def _service_weighed(self, event: events.ServiceWeighed, revision: int) -> bool:
        """Set the weights of the tracks of a service. The service may have no live job."""
        key = event.tenant, event.service
        if event.weights == self.weights.get(key, {}):
            return False
        if event.weights:
            self.weights[key] = event.weights
        else:
            del self.weights[key]
        if (service := self.service(*key)) is None:
            return False
        service.weights = event.weights
        service.changed(revision)
        self._note(Touched(event.tenant, event.service, service=True))
        return True

    def _touch(self, job: NamedJob, revision: int, index: int | None = None, *, whole: bool = False) -> bool:
        """Mark the names of a job and of its service as changed. `index`: mark also the name of this task. `whole`:
        mark also the names of all tasks. Return True, which means that a name changed.
        """
        job.revision = revision
        if job.service is not None:
            job.service.changed(revision)
        if self.touched is not None:
            self._note(Touched(job.tenant, job.name, None, whole))
            if job.service is not None:
                self._note(Touched(job.tenant, job.service.name, service=True))
            if index is not None:
                self._note(Touched(job.tenant, job.name, index))
        return True

    def _note(self, touched: Touched) -> None:
        if self.touched is not None:
            self.touched.add(touched)


def _labels(job: NamedJob, task: PlacedTask) -> tuple[str, ...]:
    return (str(task.index), job.name, job.tenant)


def _ranges(groups: Iterable[Group]) -> list[tuple[int, int]]:
    return [bounds for group in groups for bounds in group.ranges]


# The events that can change a name. All other events only advance the revision.
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
    events.ServiceWeighed: NameTable._service_weighed,
}
# The kinds of these events in the journal. The newest event of these kinds has the last revision of a name.
NAMING_KINDS = tuple(sorted(str(event.__struct_config__.tag) for event in _HANDLERS))
