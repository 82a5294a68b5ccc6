"""A cell's zone as other name servers carry it: all its records at a serial, and what changed between serials. Pure.

    NameTable.touched ─► publish ─► owners rendered anew ─► removed, added ─► changes ─► IXFR
                                              └─► content ─► AXFR

What a secondary is given is what `naming.records` answers, rendered by the same code, without limits of size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import dns.name
import dns.rdata
from dns.rdatatype import AAAA, CAA, NS, SRV, TXT, A, RdataType
from dns.rdtypes.ANY.SOA import SOA

from naming.directory import Directory
from naming.jobs import Job, Service
from naming.names import SERVICE, is_service
from naming.nodes import Limits
from naming.records import find
from naming.table import NameTable, Touched

WITHOUT_LIMITS = Limits(addresses=2**31, services=2**31, pointers=0, whole=True)
# What is remembered of changes: as many records removed or added; who is further behind takes the whole zone.
MOST_REMEMBERED = 200_000
_STEP = 10  # owners
_RDTYPES = (A, AAAA, SRV, TXT)
_RNG = Random(0)  # order means nothing in a zone

Owner = tuple[str, ...]  # labels below the apex, the apex itself ()


class Record(NamedTuple):
    """`rdata` as dnspython has it; comparable and hashable. Another TTL makes another record."""

    owner: Owner
    rdtype: RdataType
    ttl_s: int
    rdata: dns.rdata.Rdata


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
        self._content: dict[Owner, frozenset[Record]] = {}
        self._below: dict[Owner, set[Owner]] = {}  # name of a job or service -> itself and all below it
        table.touched = set()
        self.soa = self._soa()

    def fill(self) -> Iterator[None]:
        """Read it all; between two steps, of about a millisecond, the table may move on."""
        for number, owner in enumerate(list(self._all_owners())):
            self._put(owner, self._render(owner))
            if number % _STEP == 0:
                yield
        self._take_in()
        self.soa = self._soa()
        self.filled = True

    @property
    def serial(self) -> int:
        return int(self.soa.serial)

    def __len__(self) -> int:
        return sum(len(records) for records in self._content.values())

    def records(self) -> Iterator[Record]:
        """All but the SOA."""
        for records in self._content.values():
            yield from records

    def publish(self) -> bool:
        """Take in what was touched since; whether the serial moved."""
        if self.table.serial == self.serial:
            return False
        removed, added = self._take_in()
        change = Change(self.soa, self._soa(), tuple(removed), tuple(added))
        self.soa = change.after
        self.changes.append(change)
        self._remembered += change.size
        while self._remembered > self._most_remembered:
            self._remembered -= self.changes.popleft().size
        return True

    def _take_in(self) -> tuple[list[Record], list[Record]]:
        touched, self.table.touched = self.table.touched or set(), set()
        removed: list[Record] = []
        added: list[Record] = []
        for owner in {(), *(owner for item in touched for owner in self._owners_of(item))}:
            old, new = self._content.get(owner, frozenset()), self._render(owner)
            removed.extend(old - new)
            added.extend(new - old)
            self._put(owner, new)
        return removed, added

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

    def _put(self, owner: Owner, records: frozenset[Record]) -> None:
        named = _named(owner)
        below = self._below.setdefault(named, set())
        if records:
            self._content[owner] = records
            below.add(owner)
            return
        self._content.pop(owner, None)
        below.discard(owner)
        if not below:
            del self._below[named]

    def _render(self, owner: Owner) -> frozenset[Record]:
        labels = tuple(label.encode() for label in owner) + self.apex.labels
        node = find(self.directory, labels)
        rdtypes = _RDTYPES if owner else (NS, CAA, TXT)
        read = ((rdtype, node.read(rdtype, WITHOUT_LIMITS, _RNG)) for rdtype in rdtypes)
        return frozenset(
            Record(owner, rdtype, records.ttl_s, rdata)
            for rdtype, records in read
            for rdata in records.rdatas
        )

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
