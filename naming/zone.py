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
from dns.rdatatype import AAAA, NS, SRV, TXT, A, RdataType
from dns.rdtypes.ANY.SOA import SOA

from naming.directory import Directory
from naming.records import Limits, find
from naming.table import Job, NameTable, Touched

WITHOUT_LIMITS = Limits(addresses=2**31, services=2**31)
# What is remembered of changes: as many records removed or added; who is further behind takes the whole zone.
MOST_REMEMBERED = 200_000
_STEP = 10  # owners
_RDTYPES = (A, AAAA, SRV, TXT)
_RNG = Random(0)  # order means nothing in a zone

Owner = tuple[str, ...]  # labels below the apex, the apex itself ()


class Record(NamedTuple):
    """`rdata` as dnspython has it; comparable and hashable."""

    owner: Owner
    rdtype: RdataType
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
        self._below: dict[tuple[str, str], set[Owner]] = {}  # (tenant, job) -> its owners
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
        below = self._below.setdefault((owner[-1], owner[-2]), set()) if len(owner) > 1 else set()
        if records:
            self._content[owner] = records
            below.add(owner)
            return
        self._content.pop(owner, None)
        below.discard(owner)
        if len(owner) > 1 and not below:
            del self._below[owner[-1], owner[-2]]

    def _render(self, owner: Owner) -> frozenset[Record]:
        labels = tuple(label.encode() for label in owner) + self.apex.labels
        node = find(self.directory, labels)
        rdtypes = _RDTYPES if owner else (NS, TXT)
        return frozenset(
            Record(owner, rdtype, rdata)
            for rdtype in rdtypes
            for rdata in node.read(rdtype, WITHOUT_LIMITS, _RNG).rdatas
        )

    def _all_owners(self) -> Iterator[Owner]:
        yield ()
        for host in self.table.hosts:
            yield (host, "machine")
        for job in self.table.jobs.values():
            yield from _owners_of_job(job)

    def _owners_of(self, touched: Touched) -> Iterator[Owner]:
        """Those that are or were there."""
        tenant, name, index, whole = touched
        if tenant == "machine":
            yield (name, "machine")
            return
        job = self.table.job(tenant, name)
        if whole:
            yield from list(self._below.get((tenant, name), ()))
        if job is None:
            return
        if whole:
            yield from _owners_of_job(job)
        else:
            yield from _with_ports(job, (name, tenant) if index is None else (str(index), name, tenant))


def _owners_of_job(job: Job) -> Iterator[Owner]:
    yield from _with_ports(job, (job.name, job.tenant))
    for index in job.indexes:
        yield from _with_ports(job, (str(index), job.name, job.tenant))


def _with_ports(job: Job, owner: Owner) -> Iterator[Owner]:
    yield owner
    for port in sorted(job.all_port_names()):
        yield (f"_{port}", "_tcp", *owner)
