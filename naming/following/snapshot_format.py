"""Writes the names of a cell to snapshot files, and reads such files. A resolver can start from a snapshot file without
PostgreSQL. Pure.

    line of JSON    the head: format, zone, cell, history, revisions, time
    blocks          each block: its length (4 octets), then MessagePack of machines, weights, a job, or some tasks
    end             the length 0, then the BLAKE2b checksum of all octets before it (16 octets)

A `Capture` describes the name table at one instant, although the table continues to change. The capture writes one job
after the other. If a job changes before it is written, the method `before` copies the job just before the change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from naming.table.answering_tasks import MachineAddress, PlacedTask
from naming.table.jobs import NamedJob, Weights
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement

FORMAT: Final = 1
SLICE = 400  # tasks: about half a millisecond
LARGEST_BLOCK = 2**24  # octets; valid blocks are far smaller
_DIGEST_SIZE = 16
_NO_REQUIREMENT = Requirement(limit=())  # names do not depend on the resources of a task


class Unusable(ValueError):
    """The error for a file that is not a usable snapshot. The message contains the reason."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a snapshot file. `written_at`: when the file was written, in seconds since the epoch. `history_id`:
    an id that changes when the cell's database is restored from a backup.
    """

    format: int = FORMAT
    zone: str
    cell: str
    cell_id: int
    history_id: str
    history_ordinal: int
    revision: int
    names_revision: int
    written_at: float
    start: int = 0  # the first serial of the zone


class SnapshotMachines(msgspec.Struct, frozen=True, array_like=True, tag="machines"):
    """The record of machines in a snapshot file. `machines`: id, host name and address of each. `gone`: the ids of
    removed machines that still have tasks.
    """

    machines: list[tuple[int, str, str]]
    gone: list[int]


class SnapshotWeights(msgspec.Struct, frozen=True, array_like=True, tag="weights"):
    """The record of the weights of services in a snapshot file: tenant, service, and the weight of each track."""

    services: list[tuple[str, str, dict[str, int]]]


class JobKept(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    """The record of a job in a snapshot file. The records of the job's tasks follow this record. `versions`: each spec
    version with its port names; the current version is the last one.
    """

    job_id: int
    tenant: str
    name: str
    labels: dict[str, str]
    versions: list[tuple[int, tuple[str, ...]]]
    ranges: list[tuple[int, int]]
    revision: int
    kind: str = "job"
    ttl_s: int = 0
    weights: Weights = ()


# index, incarnation, machine, version, ports, phase, health, serves, own address, revision
TaskKept = tuple[int, int, int, int, tuple[int, ...], str, str, bool, str, int]


class SnapshotTasks(msgspec.Struct, frozen=True, array_like=True, tag="tasks"):
    """The record of several tasks of one job in a snapshot file."""

    job_id: int
    tasks: list[TaskKept]


_encoder = msgspec.msgpack.Encoder()
_Record = SnapshotMachines | SnapshotWeights | JobKept | SnapshotTasks
_decoder = msgspec.msgpack.Decoder(_Record)
_head_decoder = msgspec.json.Decoder(Head)


@dataclass(slots=True)
class _Held:
    """A copy of one job, which `Capture` makes while it writes a snapshot. `early`: the earlier states of tasks that
    have changed since the copy was made, by task index.
    """

    job: NamedJob
    facts: JobKept
    tasks: list[PlacedTask]
    versions: dict[tuple[str, ...], int]
    early: dict[int, TaskKept] = field(default_factory=dict)


class Capture:
    """The names of a loaded name table, as they were when this object was created.

    The caller must add the method `before` to the list `table.before`, and remove it after the last block is read. The
    capture can then copy each job before it changes.
    """

    def __init__(self, table: NameTable, *, zone: str, cell_id: int, history_id: str, written_at: float) -> None:
        assert table.ready
        self.table = table
        self.head = Head(
            zone=zone,
            cell=table.cell,
            cell_id=cell_id,
            history_id=history_id,
            history_ordinal=table.history_ordinal,
            revision=table.revision,
            names_revision=table.names_revision,
            written_at=written_at,
            start=table.start,
        )
        self._machines = {one.machine_id: _facts(one) for one in table.machines.values()}
        self._gone: list[tuple[int, str, str]] = []
        self._weights = [(tenant, name, dict(weights)) for (tenant, name), weights in table.weights.items()]
        self._pending = dict(table.jobs)
        self._held: dict[int, _Held] = {}

    def before(self, event: Event) -> None:
        """Copy the names that `event` will change. The name table calls this method before it applies the event."""
        if isinstance(event, events.MachineSet):
            self._before_machine(event)
            return
        job_id = getattr(event, "job_id", None)
        if job_id is None:
            return
        job = self._pending.pop(job_id, None)
        if job is not None:
            self._held[job_id] = self._hold(job)
        held = self._held.get(job_id)
        index = getattr(event, "index", None)
        if held is None or index is None or index in held.early:
            return
        task = held.job.placed.get(index)
        if task is not None:
            held.early[index] = self._kept(held, task)

    def _before_machine(self, event: events.MachineSet) -> None:
        """If the event changes the machine's address, copy the jobs that have tasks on the machine."""
        machine = self.table.machines.get(event.machine_id)
        if machine is None or (machine.hostname, machine.address) == (event.hostname.lower(), event.address):
            return
        for job in [job for job in self._pending.values() if job.placed.any_on(machine)]:
            self._held[job.job_id] = self._hold(self._pending.pop(job.job_id))

    def blocks(self) -> Iterator[bytes]:
        """Yield the whole snapshot file in parts. If the name table changes between two parts, the content of the file
        stays the same.
        """
        digest = hashlib.blake2b(digest_size=_DIGEST_SIZE)
        for part in self._parts():
            digest.update(part)
            yield part
        yield digest.digest()

    def _parts(self) -> Iterator[bytes]:
        yield msgspec.json.encode(self.head) + b"\n"
        machines = list(self._machines.values())
        for start in range(0, len(machines), 5 * SLICE):
            yield _block(SnapshotMachines(machines[start : start + 5 * SLICE], []))
        for start in range(0, len(self._weights), SLICE):
            yield _block(SnapshotWeights(self._weights[start : start + SLICE]))
        batch: list[bytes] = []
        weight = 0
        while self._pending or self._held:
            if self._held:
                job_id = next(iter(self._held))
            else:
                job_id, job = next(iter(self._pending.items()))
                del self._pending[job_id]
                self._held[job_id] = self._hold(job)
            held = self._held[job_id]
            batch.append(_block(held.facts))
            for start in range(0, len(held.tasks) or 1, SLICE):
                tasks = held.tasks[start : start + SLICE]
                kept = [held.early.get(task.index) or self._kept(held, task) for task in tasks]
                if self._gone:
                    batch.append(_block(SnapshotMachines(self._gone, [machine_id for machine_id, *_ in self._gone])))
                    self._gone = []
                batch.append(_block(SnapshotTasks(job_id, kept)))
                weight += len(tasks) + 10
                if weight >= SLICE:
                    yield b"".join(batch)
                    batch, weight = [], 0
            del self._held[job_id]
        yield b"".join(batch) + bytes(4)

    def _hold(self, job: NamedJob) -> _Held:
        known = list(job.versions.items())
        # The version in force comes last. A job may use the ports of an older version again.
        known.sort(key=lambda item: item[1] == job.port_names)
        facts = JobKept(
            job.job_id,
            job.tenant,
            job.name,
            job.labels,
            known,
            job.indexes.ranges(),
            job.revision,
            job.kind,
            job.ttl_s,
            job.weights,
        )
        return _Held(job, facts, list(job.placed), {names: version for version, names in known})

    def _kept(self, held: _Held, task: PlacedTask) -> TaskKept:
        machine = task.machine
        if machine.machine_id not in self._machines:
            self._machines[machine.machine_id] = _facts(machine)
            self._gone.append(_facts(machine))
        return (
            task.index,
            task.incarnation,
            machine.machine_id,
            held.versions.get(task.port_names, 0),
            task.ports,
            task.phase,
            task.health,
            task.serves,
            task.own_address,
            task.revision,
        )


def _facts(machine: MachineAddress) -> tuple[int, str, str]:
    return machine.machine_id, machine.hostname, machine.address


def read_head(data: bytes) -> Head:
    """Return the head of a snapshot file. Raises `Unusable` if the file is damaged or its format is unknown."""
    if len(data) <= _DIGEST_SIZE:
        raise Unusable("the snapshot is empty or incomplete; the next snapshot replaces it")
    content, digest = data[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
    line, newline, _ = content.partition(b"\n")
    try:
        known = msgspec.json.decode(line)
        found = known["format"]
    except (msgspec.DecodeError, KeyError, TypeError):
        raise Unusable("the file is not a snapshot of DNS names; the next snapshot replaces it") from None
    if found != FORMAT:
        raise Unusable(
            f"the snapshot has format {found}, but this version reads only format {FORMAT}; the next snapshot "
            "replaces it"
        )
    if not newline or hashlib.blake2b(content, digest_size=_DIGEST_SIZE).digest() != digest:
        raise Unusable("the checksum of the snapshot is wrong, so the file is damaged; the next snapshot replaces it")
    try:
        return _head_decoder.decode(line)
    except msgspec.DecodeError as error:
        raise Unusable(f"the header of the snapshot cannot be read: {error}; the next snapshot replaces it") from None


def restore(data: bytes, head: Head, table: NameTable) -> Iterator[None]:
    """Fill an empty name table in steps, one step per iteration. After the last step, the table is ready. Raises
    `Unusable` if the file is invalid.
    """
    gone: list[int] = []
    try:
        for block in _blocks(memoryview(data)[:-_DIGEST_SIZE], data.index(b"\n") + 1):
            if isinstance(block, SnapshotMachines):
                gone += block.gone
            _apply(table, block)
            yield
    except (msgspec.DecodeError, LookupError) as error:
        raise Unusable(f"the content of the snapshot cannot be read: {error}; the next snapshot replaces it") from None
    for machine_id in gone:
        table.apply(events.MachineRemoved(machine_id=machine_id), 0)
    for machine in table.machines.values():  # a removed machine may have had the same host name
        table.hosts.setdefault(machine.hostname, machine)
    table.history_ordinal, table.start = head.history_ordinal, head.start
    table.revision, table.names_revision = head.revision, head.names_revision
    table.ready = True


def _blocks(content: memoryview, at: int) -> Iterator[_Record]:
    while size := int.from_bytes(content[at : at + 4]):
        if size > LARGEST_BLOCK or at + 4 + size > len(content):
            raise Unusable("the snapshot has a block that is longer than the file; the next snapshot replaces it")
        yield _decoder.decode(content[at + 4 : at + 4 + size])
        at += 4 + size


def _apply(table: NameTable, block: _Record) -> None:
    match block:
        case SnapshotMachines():
            for machine_id, host, address in block.machines:
                made = events.MachineSet(machine_id=machine_id, hostname=host, address=address, capacity=())
                table.apply(made, 0)
        case SnapshotWeights():
            for tenant, service, weights in block.services:
                table.apply(events.ServiceWeighed(service=service, tenant=tenant, change="", weights=weights), 0)
        case JobKept():
            for event in job_events(block):
                table.apply(event, block.revision)
        case SnapshotTasks():
            job = table.jobs[block.job_id]
            revision = job.revision  # of the last change, which may be a change of a task that is no longer placed
            for task in block.tasks:
                for event in task_events(block.job_id, *task[:-1]):
                    table.apply(event, task[-1])
            job.revision = revision


def task_events(
    job_id: int,
    index: int,
    incarnation: int,
    machine_id: int,
    version: int,
    ports: Iterable[int],
    phase: str,
    health: str,
    up: bool,
    address: str,
) -> Iterator[Event]:
    """Yield the events that place a task and report its state."""
    ids: dict[str, Any] = {"job_id": job_id, "index": index, "machine_id": machine_id, "incarnation": incarnation}
    yield events.TaskPlaced(**ids, ports=tuple(ports), spec_version=version)
    if (phase, health or "unknown", up, address) != ("assigned", "unknown", False, ""):
        yield events.TaskReported(**ids, phase=phase, health=health or "unknown", up=up, restarts=0, address=address)


def job_events(job: JobKept) -> Iterator[Event]:
    """Yield the event that submits a job, and one event for each later spec version, with the port names of the
    version.
    """
    first_version, first_names = job.versions[0]
    facts: dict[str, Any] = {
        "job_id": job.job_id,
        "priority": 0,
        "latency_sensitive": False,
        "labels": job.labels,
        "published": Published(ttl_s=job.ttl_s, weights=job.weights),
    }
    yield events.JobSubmitted(
        **facts,
        uid="",
        tenant_id=0,
        tenant=job.tenant,
        name=job.name,
        job_kind=job.kind,
        spec_version=first_version,
        groups=(Group(_NO_REQUIREMENT, tuple(job.ranges)),),
        port_names=first_names,
    )
    for version, names in job.versions[1:]:
        yield events.JobChanged(**facts, spec_version=version, port_names=names)


def _block(content: _Record) -> bytes:
    data = _encoder.encode(content)
    return len(data).to_bytes(4) + data
