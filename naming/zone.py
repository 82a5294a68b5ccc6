"""A cell's zone as other name servers carry it: all its records at a serial, and what changed between serials. Pure.

    NameTable.touched ─► publishing ─► owners rendered anew ─► removed, added ─► changes ─► IXFR
                                                └─► content ─► AXFR

What a secondary is given is what `naming.records` answers, without limits of size (`naming.rendering`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import dns.name
from dns.rdtypes.ANY.SOA import SOA

from naming.directory import Directory
from naming.jobs import Job, Service
from naming.names import SERVICE, is_service
from naming.records import find
from naming.rendering import Data, Owner, Renderer
from naming.table import NameTable, Touched

# What is remembered of changes: as many records removed or added; who is further behind takes the whole zone.
MOST_REMEMBERED = 200_000
STEP = 200  # records: about half a millisecond
_AT_ONCE = 20  # owners that are rendered in one step, so that a serial has an end
_ROUNDS = 20


class Record(NamedTuple):
    """`data`: as in `naming.wire`, behind the owner. Another TTL makes another record."""

    owner: Owner
    data: bytes

    @property
    def rdtype(self) -> int:
        return int.from_bytes(self.data[:2])


@dataclass(frozen=True, slots=True)
class Change:
    """From one serial to the next; the SOA records are not among the others."""

    before: SOA
    after: SOA
    removed: tuple[Record, ...]
    added: tuple[Record, ...]

    @property
    def size(self) -> int:
        return len(self.removed) + len(self.added) + 2


class Zone:
    """The zone of one ready table, which it makes collect what is touched. Empty until `fill` has ended."""

    def __init__(
        self, directory: Directory, table: NameTable, *, most_remembered: int = MOST_REMEMBERED
    ) -> None:
        assert table.ready
        self.filled = False
        self.directory = directory
        self.table = table
        self.apex = dns.name.Name((table.cell.encode(), *directory.labels, b""))
        self.changes: deque[Change] = deque()
        self._remembered, self._most_remembered = 0, most_remembered
        self._content: dict[Owner, Data] = {}
        self._below: dict[Owner, set[Owner]] = {}  # name of a job or service -> itself and all below it
        self._dirty: set[Owner] = set()  # touched, and not in the content yet
        self._renderer = Renderer(directory, table)
        table.touched = set()
        self.soa = self._soa()

    def fill(self) -> Iterator[None]:
        """Read it all; between two steps the table may move on."""
        done = 0
        for owner in list(self._all_owners()):
            data = self._renderer.render(owner)
            self._put(owner, data)
            done += 1 + len(data)
            if done >= STEP:
                done = 0
                yield
        for owner in self._touched():
            self._put(owner, self._renderer.render(owner))
        self._dirty.clear()
        self.soa = self._soa()
        self.filled = True

    @property
    def serial(self) -> int:
        return int(self.soa.serial)

    def __len__(self) -> int:
        return sum(map(len, self._content.values()))

    def sets(self) -> tuple[list[Owner], list[Data]]:
        """All but the SOA as they are now: owners, and what each holds."""
        return list(self._content), list(self._content.values())

    def records(self) -> Iterator[Record]:
        """All but the SOA."""
        for owner, data in self._content.items():
            for each in data:
                yield Record(owner, each)

    def publish(self) -> bool:
        """Take in what was touched since, in one go; whether the serial moved."""
        before = self.serial
        for _ in self.publishing():
            pass
        return self.serial != before

    def publishing(self) -> Iterator[None]:
        """Take in what was touched since, in steps between which the table may move on.

        What moves meanwhile is rendered in another round, until so little is left that it is done at once: what a
        serial says is of one instant. Not to be run twice at the same time; where it is left off, the next goes on.
        """
        if self.table.serial == self.serial:
            return
        rendered: dict[Owner, Data] = {}
        for left in range(_ROUNDS, 0, -1):
            owners = self._touched() if left < _ROUNDS else self._touched() | self._dirty
            if len(owners) <= _AT_ONCE or left == 1:
                break
            done = 0
            for owner in owners:
                rendered[owner] = data = self._renderer.render(owner)
                # Should its job leave before the end, this one has to be found again.
                self._below.setdefault(_named(owner), set()).add(owner)
                done += 1 + len(data)
                if done >= STEP:
                    done = 0
                    yield
        for owner in owners:
            rendered[owner] = self._renderer.render(owner)
        soa, later = self._soa(), self._dirty
        self._dirty = set()  # of what is touched from here on
        yield from self._commit(rendered, soa, later)

    def _commit(self, rendered: dict[Owner, Data], soa: SOA, owners: set[Owner]) -> Iterator[None]:
        """All that was rendered, at once at the end."""
        committed = False
        try:
            removed: list[Record] = []
            added: list[Record] = []
            done = 0
            for owner, data in rendered.items():
                old, new = set(self._content.get(owner, ())), set(data)
                removed.extend(Record(owner, each) for each in old - new)
                added.extend(Record(owner, each) for each in new - old)
                done += len(data)
                if done >= 4 * STEP:
                    done = 0
                    yield
            for owner, data in rendered.items():
                self._put(owner, data)
            committed = True
        finally:
            if not committed:
                self._dirty |= owners
        change = Change(self.soa, soa, tuple(removed), tuple(added))
        self.soa = soa
        self.changes.append(change)
        self._remembered += change.size
        while self._remembered > self._most_remembered:
            self._remembered -= self.changes.popleft().size

    def _touched(self) -> set[Owner]:
        """Owners to be rendered since this was asked last; they are dirty until they are in the content."""
        touched, self.table.touched = self.table.touched or set(), set()
        owners = {(), *(owner for item in touched for owner in self._owners_of(item))}
        self._dirty |= owners
        return owners

    def since(self, serial: int) -> list[Change] | None:
        """The changes from `serial` to now, none when it is the present one; None when that is not remembered."""
        if serial == self.serial:
            return []
        found: list[Change] = []
        for change in reversed(self.changes):
            found.append(change)
            if change.before.serial == serial:
                return found[::-1]
        return None

    def _soa(self) -> SOA:
        soa = find(self.directory, self.apex.labels).zone.soa()
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
            self._below.pop(named, None)

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
        """Those that are or were there."""
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
        if whole and isinstance(named, Job):
            yield from _owners_of_job(named)
        else:
            yield from _with_ports(named, owner if index is None else (str(index), *owner))


def _named(owner: Owner) -> Owner:
    """The name of the job or service that it is, or that it lies below; of a machine, or of the apex, its own."""
    if owner[-2:-1] == (SERVICE,) and len(owner) > 2 and is_service(owner[-3]):
        return owner[-3:]
    return owner if owner[-1:] == ("machine",) else owner[-2:]


def _owners_of_job(job: Job) -> Iterator[Owner]:
    yield from _with_ports(job, (job.name, job.tenant))
    for index in job.indexes:
        yield from _with_ports(job, (str(index), job.name, job.tenant))


def _with_ports(named: Job | Service, owner: Owner) -> Iterator[Owner]:
    yield owner
    for port in sorted(named.all_port_names()):
        yield (f"_{port}", "_tcp", *owner)
