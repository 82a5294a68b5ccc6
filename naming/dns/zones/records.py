"""Finds the node for a name in the zones of a resolver, and the records of the node. Pure.

    <zone>                                     SOA NS CAA TXT    the cells
    ns.<zone>                                  A | AAAA          this resolver
    health.<zone>                              TXT               the status of this resolver
    <cell>.<zone>                              SOA NS CAA TXT    one zone per cell
    <host>.machine.<cell>.<zone>               A | AAAA
    <job>.<tenant>.<cell>.<zone>               A AAAA SRV TXT    serving tasks, in random order
    <service>.service.<tenant>.<cell>.<zone>   A AAAA SRV TXT    serving tasks of all jobs of the service
    <index>.<job>.<tenant>.<cell>.<zone>       A | AAAA, SRV TXT one task
    _<port>._tcp.<job, service or task>        SRV               one port
    <reverse name of an address>               PTR               see `naming.dns.zones.pointers`

The names above these names (`<tenant>.<cell>.<zone>`, `machine.…`, `service.…`, `_tcp.…`) exist, but have no records
(RFC 8020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import dns.name
import dns.rdata
import dns.rdtypes.IN.SRV
from dns.rdataclass import IN
from dns.rdatatype import AAAA, CAA, SRV, TXT, A, RdataType

from naming.dns.zones import pointers
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.nodes import (
    NOTHING,
    AnswerLimits,
    Extra,
    NotLoaded,
    OutsideZones,
    Read,
    Records,
    ZoneApex,
    ZoneNode,
    absolute,
    address_record,
    apex,
    empty,
    one_address,
    soa,
    texts,
)
from naming.dns.zones.srv_answers import Services
from naming.table.answering_tasks import Answering, Owner, PlacedTask, Weigh, own_weight
from naming.table.jobs import NamedJob, NamedService
from naming.table.names import RESERVED_CELLS, SERVICE, is_service
from naming.table.reverse import V4, V6
from naming.table.table import NameTable

_srv: Any = dns.rdtypes.IN.SRV.SRV  # untyped in dnspython

SRV_FIXED = 18  # octets of an SRV record without its target: owner as pointer, type, class, TTL, length, three numbers


def find(directory: ZoneDirectory, labels: tuple[bytes, ...]) -> ZoneNode:
    """Return the node of an absolute name. `labels`: the labels of the name, in upper or lower case, including the
    root.

    Raises `OutsideZones` for a name outside the zones of this resolver, and `NotLoaded` if the cell of the name is not
    loaded yet.
    """
    lowered = tuple(label.lower() for label in labels[:-1])
    depth = len(lowered) - len(directory.labels)
    if depth < 0 or lowered[depth:] != directory.labels:
        if lowered[-2:] in (V4, V6):
            return pointers.find(directory, lowered)
        raise OutsideZones
    # No label of a zone has bytes outside ASCII, so the decoding of such bytes does not matter.
    above = [label.decode("latin-1") for label in lowered[:depth]]
    if depth == 0:
        return ZoneNode(_parent(directory), True, _parent_apex(directory))
    if above == ["health"]:
        return ZoneNode(_parent(directory), True, _health(directory))
    if above == ["ns"]:
        return ZoneNode(_parent(directory), True, one_address(directory.nameserver, directory.ttl_s))
    table = directory.cells.get(above[-1])
    if table is None:
        if not directory.loaded and above[-1] not in RESERVED_CELLS:
            raise NotLoaded
        return ZoneNode(_parent(directory), False, empty)
    if not table.ready:
        raise NotLoaded
    return in_cell(directory, table, above[:-1])


def in_cell(directory: ZoneDirectory, table: NameTable, above: list[str]) -> ZoneNode:
    """Return the node of a name in a cell. `above`: the labels before the name of the cell, in lower case.

    The function uses `table`, even if the directory has a newer table of the cell.
    """
    zone = cell_zone(directory, table)
    missing, between = ZoneNode(zone, False, empty), ZoneNode(zone, True, empty)
    if not above:
        return ZoneNode(zone, True, _cell_apex(directory, table))
    tenant = above[-1]
    if tenant == "machine":
        machine = table.hosts.get(above[0]) if len(above) == 2 else None
        if machine is not None:
            read = one_address(machine.address, directory.ttl_s) if machine.family else empty
            return ZoneNode(zone, True, read)
        return between if len(above) == 1 else missing
    if tenant not in table.tenants:
        return missing
    if len(above) == 1:
        return between
    if above[-2] == SERVICE and len(above) > 2 and is_service(above[-3]):
        service = table.service(tenant, above[-3])
        return missing if service is None else _below(directory, table, service, above[:-3])
    job = table.job(tenant, above[-2])
    if job is None:
        return between if above == [SERVICE, tenant] and tenant in table.services else missing
    return _below(directory, table, job, above[:-2])


def _below(directory: ZoneDirectory, table: NameTable, named: NamedJob | NamedService, above: list[str]) -> ZoneNode:
    """Return the node of a job or service, or of a name below it. `above`: the labels before the name of the job or
    service.
    """
    zone = cell_zone(directory, table)
    missing, between = ZoneNode(zone, False, empty), ZoneNode(zone, True, empty)
    index = None
    if isinstance(named, NamedJob) and above and not above[-1].startswith("_"):
        index = named.index_of(above.pop())
        if index is None:
            return missing
    if above == ["_tcp"]:
        return between if named.all_port_names() else missing
    if above and (len(above) != 2 or above[1] != "_tcp" or not above[0].startswith("_")):
        return missing
    port = above[0].removeprefix("_") if above else None
    if port is not None and port not in named.all_port_names():
        return missing
    if isinstance(named, NamedJob) and index is not None:
        task = named.placed.get(index)
        if port is None:
            return ZoneNode(zone, True, _task(directory, table, named, task))
        return ZoneNode(zone, True, _srv_of(directory, table, named, [task] if task else [], port))
    answering = named.answering if port is None else with_port(named.answering, port)
    sizes = [(_srv_bytes(directory, table, tasks[0].job, port), len(tasks)) for _, tasks in answering.strata]
    if port is None:
        read = _several(directory, table, named)
    else:
        read = _srv_of(directory, table, named, answering, port)
    least = sum(octets * count for octets, count in sizes)

    def services(most: int, rng: Random) -> Services:
        tasks = answering.any(most, rng)
        return Services(tasks, port, named.ttl_s_or(directory.ttl_s), table.cell, named.weigh_in_answers())

    return ZoneNode(zone, True, read, least, max((octets for octets, _ in sizes), default=0), services)


def with_port(answering: Answering, port: str) -> Answering:
    """Return the tasks of `answering` whose job has a port with the name `port`. `answering`: the tasks that DNS
    answers for a name may contain.
    """
    return answering.narrowed(lambda one: one if port in one.tasks[0].job.all_port_names() else one._replace(tasks=()))


def _srv_bytes(directory: ZoneDirectory, table: NameTable, job: Owner, port: str | None) -> int:
    """Return the minimum size in octets of the SRV records of one task of this job. `port`: count only the record of
    this port; None: the records of all ports.
    """
    target = 2 + sum(1 + len(part) for part in (job.name, job.tenant, table.cell, directory.zone)) + 1
    return (SRV_FIXED + target) * (len(job.port_names) if port is None else 1)


def _parent(directory: ZoneDirectory) -> ZoneApex:
    name = absolute([], directory)
    mailbox = absolute(["hostmaster"], directory)
    return ZoneApex(name, lambda: soa(directory, mailbox, directory.serial))


def cell_zone(directory: ZoneDirectory, table: NameTable) -> ZoneApex:
    name = absolute([table.cell], directory)
    mailbox = absolute(["hostmaster", table.cell], directory)
    return ZoneApex(name, lambda: soa(directory, mailbox, table.serial))


def _apex(directory: ZoneDirectory, zone: ZoneApex, text: Callable[[], Iterable[str]]) -> Read:
    def more(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype == CAA:
            return Records(list(directory.caa), directory.ttl_s, [])
        return texts(directory.ttl_s, *text()) if rdtype == TXT else NOTHING

    return apex(directory, zone, more)


def _parent_apex(directory: ZoneDirectory) -> Read:
    return _apex(directory, _parent(directory), lambda: [f"cells={len(directory.cells)}"])


def _cell_apex(directory: ZoneDirectory, table: NameTable) -> Read:
    def text() -> Iterable[str]:
        yield f"serial={table.serial}"
        yield f"revision={table.revision}"
        yield f"names-revision={table.names_revision}"
        yield f"history={table.history_ordinal}"

    return _apex(directory, cell_zone(directory, table), text)


def _health(directory: ZoneDirectory) -> Read:
    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype != TXT:
            return NOTHING
        return texts(directory.ttl_s, f"status={directory.status}", f"cells={len(directory.cells)}")

    return read


def _several(directory: ZoneDirectory, table: NameTable, named: NamedJob | NamedService) -> Read:
    """Return a function that reads the records of a job or a service."""

    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        ttl_s = named.ttl_s_or(directory.ttl_s)
        if rdtype == SRV:
            tasks = named.answering.any(limits.services, rng)
            return _srv_records(directory, table, tasks, None, ttl_s, named.weigh_in_answers())
        if rdtype == TXT:
            return texts(ttl_s, *about(named))
        family = {A: 4, AAAA: 6}.get(rdtype, 0)
        if not family or family not in table.families:
            return NOTHING
        answering = named.answering
        if len(table.families) > 1:
            answering = answering.of_family(family)
        chosen = answering if limits.whole else answering.sample(limits.addresses, rng)
        return Records([address_record(task.address) for task in chosen], ttl_s, [])

    return read


def about(named: NamedJob | NamedService) -> Iterable[str]:
    """Yield the texts of the TXT record of a job or a service."""
    if isinstance(named, NamedService):
        yield f"jobs={len(named.jobs)}"
        if named.weights:
            yield f"weights={','.join(f'{track}:{weight}' for track, weight in sorted(named.weights.items()))}"
    else:
        yield f"revision={named.revision}"
    yield f"tasks={named.tasks_total}"
    yield f"placed={named.placed_total}"
    yield f"serving={named.serving_total}"
    yield f"fail-open={'yes' if named.fails_open else 'no'}"


def _task(directory: ZoneDirectory, table: NameTable, job: NamedJob, task: PlacedTask | None) -> Read:
    ttl_s = job.ttl_s_or(directory.ttl_s)

    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype == TXT:
            return texts(ttl_s, *about_task(task, ttl_s))
        if task is None:
            return NOTHING
        if rdtype == SRV:
            return _srv_records(directory, table, [task], None, ttl_s, own_weight)
        return one_address(task.address, ttl_s)(rdtype, limits, rng) if task.family else NOTHING

    return read


def about_task(task: PlacedTask | None, ttl_s: int) -> Iterable[str]:
    """Return the texts of the TXT record of a task. `task` is None if the task is not placed."""
    if task is None:
        return ("placed=no",)
    return (
        f"revision={task.revision}",
        f"incarnation={task.incarnation}",
        f"phase={task.phase}",
        f"health={task.health}",
        f"serving={'yes' if task.serves else 'no'}",
        f"weight={task.weight}",
        f"ttl={ttl_s}",
        f"machine={task.machine.hostname}",
        *(f"port.{name}={number}" for name, number in task.named_ports()),
    )


def _srv_of(
    directory: ZoneDirectory,
    table: NameTable,
    named: NamedJob | NamedService,
    tasks: Answering | list[PlacedTask],
    port: str,
) -> Read:
    """Return a function that reads the SRV records of one port of these tasks."""

    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype != SRV:
            return NOTHING
        chosen = tasks.any(limits.services, rng) if isinstance(tasks, Answering) else tasks
        return _srv_records(directory, table, chosen, port, named.ttl_s_or(directory.ttl_s), named.weigh_in_answers())

    return read


def _srv_records(
    directory: ZoneDirectory, table: NameTable, tasks: Iterable[PlacedTask], port: str | None, ttl_s: int, weigh: Weigh
) -> Records:
    """Return the SRV records of these tasks, with their addresses as extra records. `port`: the port of the records;
    None for all ports. `weigh`: returns the weight of a task in them.
    """
    rdatas: list[dns.rdata.Rdata] = []
    extra: list[Extra] = []
    for task in tasks:
        job = task.job
        target = absolute([str(task.index), job.name, job.tenant, table.cell], directory)
        numbers = [number for name, number in task.named_ports() if port in (None, name)]
        rdatas.extend(_srv(IN, SRV, 0, weigh(task), number, target) for number in numbers)
        if numbers and task.family:
            extra.append(Extra(target, address_record(task.address), job.ttl_s_or(directory.ttl_s)))
    return Records(rdatas, ttl_s, extra)
