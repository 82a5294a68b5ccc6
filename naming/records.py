"""From a name to its records: which node of which zone a name is, and what it holds of each type.

    <zone>                                     SOA NS TXT        the cells
    ns.<zone>                                  A | AAAA
    health.<zone>                              TXT               of the resolver itself
    <cell>.<zone>                              SOA NS TXT        one zone a cell
    <host>.machine.<cell>.<zone>               A | AAAA
    <job>.<tenant>.<cell>.<zone>               A AAAA SRV TXT    serving tasks, in random order
    <index>.<job>.<tenant>.<cell>.<zone>       A | AAAA, SRV TXT one task, wherever it is placed
    _<port>._tcp.[<index>.]<job>.<tenant>…     SRV               one port

What lies between these (`<tenant>.<cell>.<zone>`, `machine.…`, `_tcp.…`) exists and holds nothing (RFC 8020).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import dns.name
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.ANY.NS
import dns.rdtypes.ANY.SOA
import dns.rdtypes.ANY.TXT
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
import dns.rdtypes.IN.SRV
from dns.rdataclass import IN
from dns.rdatatype import AAAA, NS, SOA, SRV, TXT, A, RdataType

from naming.directory import Directory
from naming.names import RESERVED_CELLS, InvalidName, parse_index
from naming.table import Job, NameTable, Task

# dnspython's constructors of records are untyped.
_a: Any = dns.rdtypes.IN.A.A
_aaaa: Any = dns.rdtypes.IN.AAAA.AAAA
_ns: Any = dns.rdtypes.ANY.NS.NS
_soa_record: Any = dns.rdtypes.ANY.SOA.SOA
_srv: Any = dns.rdtypes.IN.SRV.SRV
_txt: Any = dns.rdtypes.ANY.TXT.TXT

ROOT = (b"",)
REFRESH_S, RETRY_S, EXPIRE_S = 30, 5, 7 * 86_400
SRV_FIXED = (
    18  # bytes of an SRV record beside its target: owner as pointer, type, class, TTL, length, three numbers
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many tasks a job's name may answer with: `addresses` for A and AAAA, `services` for SRV."""

    addresses: int
    services: int


@dataclass(frozen=True, slots=True)
class Records:
    """`extra`: names with their address records, for the additional section."""

    rdatas: list[dns.rdata.Rdata]
    extra: list[tuple[dns.name.Name, dns.rdata.Rdata]]


NOTHING = Records([], [])
Read = Callable[[RdataType, Limits, Random], Records]


@dataclass(frozen=True, slots=True)
class Zone:
    """Where a negative answer takes its SOA from."""

    apex: dns.name.Name
    soa: Callable[[], dns.rdata.Rdata]


@dataclass(frozen=True, slots=True)
class Node:
    """A name inside a zone. `exists` false: NXDOMAIN.

    What it takes to answer SRV with all of it: `tasks` tasks of `task_bytes` octets at least each.
    """

    zone: Zone
    exists: bool
    read: Read
    tasks: int = 0
    task_bytes: int = 0


class Outside(Exception):
    """The name lies in none of our zones: refused."""


class NotLoaded(Exception):
    """The name may exist, its cell has not been read yet: SERVFAIL, so that clients ask again."""


@lru_cache(maxsize=65_536)
def address_record(address: str) -> dns.rdata.Rdata:
    """Raises `ValueError` for text that is no IP address."""
    record: dns.rdata.Rdata
    if ipaddress.ip_address(address).version == 4:
        record = _a(IN, A, address)
    else:
        record = _aaaa(IN, AAAA, address)
    return record


def _absolute(labels: Iterable[str | bytes], directory: Directory) -> dns.name.Name:
    given = tuple(label.encode() if isinstance(label, str) else label for label in labels)
    return dns.name.Name(given + directory.labels + ROOT)


def _text(*strings: str) -> Records:
    return Records([_txt(IN, TXT, [string.encode()[:255] for string in strings])], [])


def _empty(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
    return NOTHING


def _address(address: str) -> Read:
    def read(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
        record = address_record(address)
        return Records([record], []) if record.rdtype == rdtype else NOTHING

    return read


def find(directory: Directory, labels: tuple[bytes, ...]) -> Node:
    """The node of an absolute name given by its labels, root included, in any case.

    Raises `Outside` and `NotLoaded`.
    """
    lowered = [label.lower() for label in labels[:-1]]
    depth = len(lowered) - len(directory.labels)
    if depth < 0 or tuple(lowered[depth:]) != directory.labels:
        raise Outside
    # Bytes that are no ASCII match no label of ours, whatever they decode to.
    above = [label.decode("latin-1") for label in lowered[:depth]]
    if depth == 0:
        return Node(_parent(directory), True, _parent_apex(directory))
    if above == ["health"]:
        return Node(_parent(directory), True, _health(directory))
    if above == ["ns"]:
        return Node(_parent(directory), True, _address(directory.nameserver))
    table = directory.cells.get(above[-1])
    if table is None:
        if not directory.loaded and above[-1] not in RESERVED_CELLS:
            raise NotLoaded
        return Node(_parent(directory), False, _empty)
    if not table.ready:
        raise NotLoaded
    return _in_cell(directory, table, above[:-1], labels)


def _in_cell(directory: Directory, table: NameTable, above: list[str], labels: tuple[bytes, ...]) -> Node:
    zone = _cell_zone(directory, table)
    missing, between = Node(zone, False, _empty), Node(zone, True, _empty)
    if not above:
        return Node(zone, True, _cell_apex(directory, table))
    tenant = above[-1]
    if tenant == "machine":
        machine = table.hosts.get(above[0]) if len(above) == 2 else None
        if machine is not None:
            return Node(zone, True, _address(machine.address) if machine.family else _empty)
        return between if len(above) == 1 else missing
    if tenant not in table.tenants:
        return missing
    if len(above) == 1:
        return between
    job = table.job(tenant, above[-2])
    if job is None:
        return missing
    service, index = _split(above[:-2], job)
    if service is None:
        return missing
    task = None if index is None else job.placed.get(index)
    if service == ["_tcp"]:
        return between if job.all_port_names() else missing
    if service:
        port = service[0].removeprefix("_")
        if port not in job.all_port_names():
            return missing
        if index is not None:
            return Node(zone, True, _services(directory, table, job, [task] if task else [], port))
        size = _service_bytes(labels[2:])
        return Node(zone, True, _services(directory, table, job, None, port), len(job.answering), size)
    if index is not None:
        return Node(zone, True, _task(directory, table, job, task))
    size = _service_bytes(labels) * len(job.port_names)
    return Node(zone, True, _job(directory, table, job), len(job.answering), size)


def _split(above: list[str], job: Job) -> tuple[list[str] | None, int | None]:
    """What stands before a job's name as (service labels, index); service None where there is no such name."""
    index = None
    if above and not above[-1].startswith("_"):
        try:
            index = parse_index(above[-1])
        except InvalidName:
            return None, None
        if index not in job.indexes:
            return None, None
        above = above[:-1]
    if above in ([], ["_tcp"]) or (len(above) == 2 and above[1] == "_tcp" and above[0].startswith("_")):
        return above, index
    return None, None


def _service_bytes(job: tuple[bytes, ...]) -> int:
    """What one SRV record of a task takes at least, for the job of this absolute name. Targets don't compress."""
    return SRV_FIXED + 2 + sum(len(label) + 1 for label in job)


def _soa(directory: Directory, apex: dns.name.Name, serial: int) -> dns.rdata.Rdata:
    server, mailbox = _absolute(["ns"], directory), dns.name.Name((b"hostmaster", *apex.labels))
    times = (REFRESH_S, RETRY_S, EXPIRE_S, directory.negative_ttl_s)
    record: dns.rdata.Rdata = _soa_record(IN, SOA, server, mailbox, serial, *times)
    return record


def _parent(directory: Directory) -> Zone:
    apex = _absolute([], directory)
    return Zone(apex, lambda: _soa(directory, apex, directory.serial))


def _cell_zone(directory: Directory, table: NameTable) -> Zone:
    apex = _absolute([table.cell], directory)
    return Zone(apex, lambda: _soa(directory, apex, table.serial))


def _apex(directory: Directory, zone: Zone, text: Callable[[], Records]) -> Read:
    def read(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
        if rdtype == SOA:
            return Records([zone.soa()], [])
        if rdtype == NS:
            server = _absolute(["ns"], directory)
            return Records([_ns(IN, NS, server)], [(server, address_record(directory.nameserver))])
        return text() if rdtype == TXT else NOTHING

    return read


def _parent_apex(directory: Directory) -> Read:
    return _apex(directory, _parent(directory), lambda: _text(f"cells={len(directory.cells)}"))


def _cell_apex(directory: Directory, table: NameTable) -> Read:
    def text() -> Records:
        return _text(
            f"serial={table.serial}",
            f"revision={table.revision}",
            f"names-revision={table.names_revision}",
            f"history={table.history_ordinal}",
        )

    return _apex(directory, _cell_zone(directory, table), text)


def _health(directory: Directory) -> Read:
    def read(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
        if rdtype != TXT:
            return NOTHING
        return _text(f"status={directory.status}", f"cells={len(directory.cells)}")

    return read


def _job(directory: Directory, table: NameTable, job: Job) -> Read:
    def read(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
        if rdtype == SRV:
            return _service_records(directory, table, job, job.answering.sample(limits.services, rng), None)
        if rdtype == TXT:
            return _text(
                f"revision={job.revision}",
                f"tasks={job.indexes.size}",
                f"placed={len(job.placed)}",
                f"serving={len(job.serving)}",
                f"fail-open={'yes' if job.fails_open else 'no'}",
            )
        family = {A: 4, AAAA: 6}.get(rdtype, 0)
        if not family or family not in table.families:
            return NOTHING
        mixed = len(table.families) > 1
        chosen = job.answering.sample(len(job.answering) if mixed else limits.addresses, rng)
        fitting = [task.address for task in chosen if task.family == family]
        return Records([address_record(address) for address in fitting[: limits.addresses]], [])

    return read


def _task(directory: Directory, table: NameTable, job: Job, task: Task | None) -> Read:
    def read(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
        if task is None:
            return _text("placed=no") if rdtype == TXT else NOTHING
        if rdtype == SRV:
            return _service_records(directory, table, job, [task], None)
        if rdtype == TXT:
            return _text(
                f"revision={task.revision}",
                f"incarnation={task.incarnation}",
                f"phase={task.phase}",
                f"health={task.health}",
                f"serving={'yes' if task.serves else 'no'}",
                f"machine={task.machine.hostname}",
                *(f"port.{name}={number}" for name, number in task.named_ports()),
            )
        return _address(task.address)(rdtype, limits, rng) if task.family else NOTHING

    return read


def _services(directory: Directory, table: NameTable, job: Job, tasks: list[Task] | None, port: str) -> Read:
    """One port of `tasks`, or of all that answer for the job."""

    def read(rdtype: RdataType, limits: Limits, rng: Random) -> Records:
        if rdtype != SRV:
            return NOTHING
        chosen = job.answering.sample(limits.services, rng) if tasks is None else tasks
        return _service_records(directory, table, job, chosen, port)

    return read


def _service_records(
    directory: Directory, table: NameTable, job: Job, tasks: Iterable[Task], port: str | None
) -> Records:
    """SRV of one port, or of all when `port` is None; every target's address in `extra`."""
    rdatas: list[dns.rdata.Rdata] = []
    extra: list[tuple[dns.name.Name, dns.rdata.Rdata]] = []
    for task in tasks:
        target = _absolute([str(task.index), job.name, job.tenant, table.cell], directory)
        numbers = [number for name, number in task.named_ports() if port in (None, name)]
        rdatas.extend(_srv(IN, SRV, 0, 1, number, target) for number in numbers)
        if numbers and task.family:
            extra.append((target, address_record(task.address)))
    return Records(rdatas, extra)
