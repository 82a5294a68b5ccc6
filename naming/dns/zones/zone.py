"""The complete zone of a cell for secondaries: all records at the present serial, and the changes from each serial to
the next. Pure.

    NameTable.touched ─► publishing ─► changed names are rendered ─► removed and added records ─► changes ─► IXFR
                                                └─► content ─► AXFR

A secondary gets the same records that `naming.dns.zones.records` returns, but without limits on the number of records
per name (`naming.dns.zones.rendering`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import dns.name
from dns.rdtypes.ANY.SOA import SOA

from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.records import cell_zone
from naming.dns.zones.rendering import Data, Owner, Renderer
from naming.table.jobs import NamedJob, NamedService
from naming.table.names import SERVICE, is_service
from naming.table.table import NameTable, Touched
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event

# Changes are stored until they contain this many records. A secondary that needs older ones gets the whole zone.
MOST_REMEMBERED = 200_000
STEP = 200  # records: about half a millisecond


class ZoneRecord(NamedTuple):
    """A record of a zone. `owner`: its name. `data`: its bytes after the name, from the type on
    (`naming.dns.protocol.wire`).
    """

    owner: Owner
    data: bytes


@dataclass(frozen=True, slots=True)
class ZoneChange:
    """The changes from one serial to the next. `removed`, `added`: the removed and added records, without SOA
    records.
    """

    before: SOA
    after: SOA
    removed: tuple[ZoneRecord, ...]
    added: tuple[ZoneRecord, ...]

    @property
    def size(self) -> int:
        return len(self.removed) + len(self.added) + 2


class Zone:
    """The zone of one loaded table. It sets `table.touched`, so that the table collects the names that change.

    The zone is empty until `fill` has ended. `taken_by`: addresses of the secondaries that received this zone. Other
    secondaries may have a copy from another process, which may differ, so they get the whole zone instead of changes.
    """

    def __init__(self, directory: ZoneDirectory, table: NameTable, *, most_remembered: int = MOST_REMEMBERED) -> None:
        assert table.ready
        self.taken_by: set[str] = set()
        self.directory = directory
        self.table = table
        self.apex = dns.name.Name((table.cell.encode(), *directory.labels, b""))
        self.changes: deque[ZoneChange] = deque()
        self._remembered, self._most_remembered = 0, most_remembered
        self._content: dict[Owner, Data] = {}
        self._below: dict[Owner, set[Owner]] = {}  # name of a job or service -> itself and all below it
        self._interrupted: set[Owner] = set()  # owners of a publication that was interrupted
        self.renderer = Renderer(directory, table)
        table.touched = set()
        self.soa = self._soa()

    def fill(self) -> Iterator[None]:
        """Render the records of all names in the table, in steps. The table may change between two steps."""
        done = 0
        for owner in list(self._all_owners()):
            data = self.renderer.render(owner)
            self._put(owner, data)
            done += 1 + len(data)
            if done >= STEP:
                done = 0
                yield
        for owner in self._touched():
            self._put(owner, self.renderer.render(owner))
        self.soa = self._soa()

    @property
    def serial(self) -> int:
        return int(self.soa.serial)

    def __len__(self) -> int:
        return sum(map(len, self._content.values()))

    def content(self, owner: Owner) -> Data:
        return self._content.get(owner, ())

    def sets(self) -> tuple[list[Owner], list[Data]]:
        """Return the names (owners) of the zone, and, in the same order, the records of each name. The SOA record is
        omitted.
        """
        return list(self._content), list(self._content.values())

    def publishing(self) -> Iterator[None]:
        """Publish all changes of the table until now under one new serial, in steps. The table may change between two
        steps; the next call publishes these later changes.

        Do not run two calls at the same time. If the caller stops before the last step, the next call also publishes
        the changes of this call.
        """
        if self.table.serial == self.serial:
            return
        work = _Work(self, self._touched() | self._interrupted)
        self.table.before.append(work.before)
        try:
            yield from work.render()
            yield from work.compare()
            work.ended = True
        finally:
            self.table.before.remove(work.before)
            if not work.ended:
                self._interrupted |= work.owners
        for owner, data in work.rendered.items():
            self._put(owner, data)
        change = ZoneChange(self.soa, work.soa, tuple(work.removed), tuple(work.added))
        self.soa = work.soa
        self.changes.append(change)
        self._remembered += change.size
        while self._remembered > self._most_remembered:
            self._remembered -= self.changes.popleft().size

    def _touched(self) -> set[Owner]:
        """Return the names (owners) whose records may have changed since the last call, and the apex."""
        touched, self.table.touched = self.table.touched or set(), set()
        return {(), *(owner for item in touched for owner in self._owners_of(item))}

    def since(self, serial: int) -> list[ZoneChange] | None:
        """Return the changes from the serial `serial` to the present one, or None if they are not stored any more."""
        if serial == self.serial:
            return []
        found: list[ZoneChange] = []
        for change in reversed(self.changes):
            found.append(change)
            if change.before.serial == serial:
                return found[::-1]
        return None

    def _soa(self) -> SOA:
        soa = cell_zone(self.directory, self.table).soa()
        assert isinstance(soa, SOA)
        return soa

    def _put(self, owner: Owner, data: Data) -> None:
        named = _named(owner)
        below = self._below.setdefault(named, set())
        if data:
            self._content[owner] = data
            below.add(owner)
            return
        self._content.pop(owner, None)
        below.discard(owner)
        if not below:
            del self._below[named]

    def _all_owners(self) -> Iterator[Owner]:
        yield ()
        for host in self.table.hosts:
            yield (host, "machine")
        for job in self.table.jobs.values():
            yield from _owners_of_job(job)
        for services in self.table.services.values():
            for service in services.values():
                yield from _with_ports(service, (service.name, SERVICE, service.tenant))

    def _owners_of(self, touched: Touched) -> Iterator[Owner]:
        """Yield all names whose records may have changed, also names that do not exist any more. `touched`: a change
        that the table recorded.
        """
        tenant, name, index, whole, of_service = touched
        if tenant == "machine":
            yield (name, "machine")
            return
        owner = (name, SERVICE, tenant) if of_service else (name, tenant)
        if whole or of_service:
            yield from list(self._below.get(owner, ()))
        named = self.table.service(tenant, name) if of_service else self.table.job(tenant, name)
        if named is None:
            return
        if whole and isinstance(named, NamedJob):
            yield from _owners_of_job(named)
        else:
            yield from _with_ports(named, owner if index is None else (str(index), *owner))


class _Work:
    """The work of one call of `Zone.publishing`: it renders the changed names one by one. If an event will change a
    name that is not rendered yet, the name is rendered just before this event.
    """

    def __init__(self, zone: Zone, owners: set[Owner]) -> None:
        self.owners = owners
        self.soa = zone._soa()
        self.rendered: dict[Owner, Data] = {}
        self.removed: list[ZoneRecord] = []
        self.added: list[ZoneRecord] = []
        self.ended = False
        self._zone = zone
        self._table = zone.table
        self._left: dict[Owner, set[Owner]] = {}  # name of a job or service -> owners that are not rendered yet
        for owner in owners:
            self._left.setdefault(_named(owner), set()).add(owner)
        self._take([()])  # the apex contains the revision, which every event changes

    def render(self) -> Iterator[None]:
        done = 0
        while self._left:
            named, owners = next(iter(self._left.items()))
            while owners:
                done += self._take([next(iter(owners))])
                if done >= STEP:
                    done = 0
                    yield
            self._left.pop(named, None)

    def compare(self) -> Iterator[None]:
        done = 0
        for owner, data in self.rendered.items():
            old, new = set(self._zone.content(owner)), set(data)
            self.removed.extend(ZoneRecord(owner, each) for each in old - new)
            self.added.extend(ZoneRecord(owner, each) for each in new - old)
            done += len(data)
            if done >= 4 * STEP:
                done = 0
                yield

    def before(self, event: Event) -> None:
        """Render the names that `event` will change, with their present records. The table calls this method before it
        applies the event.
        """
        if not self._left:
            return
        if isinstance(event, events.MachineSet | events.MachineRemoved):
            self._before_machine(event)
            return
        if isinstance(event, events.ServiceWeighed):
            self._take(list(self._left.get((event.service, SERVICE, event.tenant), ())))
            return
        job = self._table.jobs.get(getattr(event, "job_id", 0))
        index = getattr(event, "index", None)
        if index is None:
            names = {(job.name, job.tenant)} if job else set()
            if isinstance(event, events.JobSubmitted):
                names.add((event.name, event.tenant))
            self._before_job(names)
        elif job is not None:
            self._take(_with_ports(job, (str(index), job.name, job.tenant)))
            self._take(_with_ports(job, (job.name, job.tenant)))
            if job.service is not None:
                self._take(list(self._left.get((job.service.name, SERVICE, job.tenant), ())))

    def _before_job(self, names: set[tuple[str, str]]) -> None:
        """Render all names of the jobs in `names` (pairs of job and tenant), and of all services of these tenants,
        because a job may join or leave a service.
        """
        tenants = {tenant for _, tenant in names}
        for named in list(self._left):
            if named in names or (named[1:2] == (SERVICE,) and named[-1] in tenants):
                self._take(list(self._left[named]))

    def _before_machine(self, event: events.MachineSet | events.MachineRemoved) -> None:
        """Render the names of a machine. If the event changes the machine's host name or address, which is rare, render
        all names of the cell.
        """
        machine = self._table.machines.get(event.machine_id)
        hosts = {machine.hostname} if machine else set()
        if isinstance(event, events.MachineSet):
            hosts.add(event.hostname.lower())
            if machine and (machine.hostname, machine.address) != (event.hostname.lower(), event.address):
                self._take([owner for owners in self._left.values() for owner in owners])
                return
        self._take((host, "machine") for host in hosts)

    def _take(self, owners: Iterable[Owner]) -> int:
        """Render the names in `owners` that are not rendered yet. Return the number of rendered names plus the number
        of their records.
        """
        done = 0
        for owner in owners:
            left = self._left.get(_named(owner))
            if left and owner in left:
                left.discard(owner)
                data = self.rendered[owner] = self._zone.renderer.render(owner)
                done += 1 + len(data)
        return done


def _named(owner: Owner) -> Owner:
    """Return the name of the job or service to which the name `owner` of a task or port belongs. Return `owner` itself
    if it is the name of a job, a service, a machine or the apex. A name is a tuple of the labels below the apex.
    """
    if owner[-2:-1] == (SERVICE,) and len(owner) > 2 and is_service(owner[-3]):
        return owner[-3:]
    return owner if owner[-1:] == ("machine",) else owner[-2:]


def _owners_of_job(job: NamedJob) -> Iterator[Owner]:
    yield from _with_ports(job, (job.name, job.tenant))
    for index in job.indexes:
        yield from _with_ports(job, (str(index), job.name, job.tenant))


def _with_ports(named: NamedJob | NamedService, owner: Owner) -> Iterator[Owner]:
    yield owner
    for port in sorted(named.all_port_names()):
        yield (f"_{port}", "_tcp", *owner)
