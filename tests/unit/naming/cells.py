"""Builders for tests of names: one cell `cc`, made from the events that production writes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import dns.flags
import dns.message

from naming.dns.protocol.cookies import DnsClient
from naming.dns.resolver import Transport, answering, finished
from naming.dns.zones.directory import Status, ZoneDirectory
from naming.dns.zones.zone import Zone, ZoneRecord
from naming.table.answering_tasks import PlacedTask, Pool
from naming.table.table import NameTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement

WEB = 7  # job id


def answer(
    query: bytes, directory: ZoneDirectory, *, via: Transport, rng: Random, client: DnsClient | None = None
) -> bytes | None:
    """Return the resolver's answer to a query, or None if it sends none."""
    return finished(answering(query, directory, via=via, rng=rng, client=client))


def machine(number: int, address: str | None = None) -> events.MachineSet:
    return events.MachineSet(
        machine_id=number,
        hostname=f"m{number}",
        address=address or f"10.0.{number // 250}.{number % 250 + 1}",
        capacity=(),
    )


def submitted(
    name: str = "web",
    *,
    job_id: int = WEB,
    tenant: str = "ubar",
    tasks: int = 3,
    ports: tuple[str, ...] = ("http", "rpc"),
    labels: dict[str, str] | None = None,
    published: Published = Published(),
    kind: str = "job",
) -> events.JobSubmitted:
    return events.JobSubmitted(
        job_id=job_id,
        uid="0" * 32,
        tenant_id=1,
        tenant=tenant,
        name=name,
        job_kind=kind,
        priority=200,
        latency_sensitive=True,
        spec_version=1,
        groups=(Group(Requirement(()), ((0, tasks - 1),)),),
        port_names=ports,
        labels=labels or {},
        published=published,
    )


def changed(
    *,
    job_id: int = WEB,
    version: int = 1,
    ports: tuple[str, ...] = ("http", "rpc"),
    labels: dict[str, str] | None = None,
    published: Published = Published(),
) -> events.JobChanged:
    return events.JobChanged(
        job_id=job_id,
        priority=200,
        latency_sensitive=True,
        spec_version=version,
        port_names=ports,
        labels=labels or {},
        published=published,
    )


def placed(index: int, machine_id: int, *, job_id: int = WEB, incarnation: int = 1, **more: Any) -> events.TaskPlaced:
    more.setdefault("ports", (20_000 + index, 21_000 + index))
    return events.TaskPlaced(job_id=job_id, index=index, machine_id=machine_id, incarnation=incarnation, **more)


def reported(
    index: int,
    phase: str = "up",
    health: str = "healthy",
    *,
    job_id: int = WEB,
    incarnation: int = 1,
    restarts: int = 0,
    checked: bool = True,
    address: str = "",
) -> events.TaskReported:
    return events.TaskReported(
        job_id=job_id,
        index=index,
        machine_id=0,
        incarnation=incarnation,
        phase=phase,
        health=health,
        up=phase == "up" and (health == "healthy" or not checked),
        restarts=restarts,
        address=address,
    )


def ended(index: int, *, job_id: int = WEB, incarnation: int = 1) -> events.TaskEnded:
    return events.TaskEnded(job_id=job_id, index=index, machine_id=0, incarnation=incarnation, how="killed")


def evicted(index: int, *, job_id: int = WEB, incarnation: int = 1) -> events.TaskEvicted:
    return events.TaskEvicted(job_id=job_id, index=index, machine_id=0, incarnation=incarnation, cause="preemption")


def running(tasks: int, *, machines: int | None = None, name: str = "web") -> list[events.Event]:
    """Return events of a job of `tasks` healthy tasks on `machines` machines, by default one machine per task."""
    count = machines or tasks
    return [
        *(machine(number) for number in range(count)),
        submitted(name, tasks=tasks),
        *(placed(index, index % count) for index in range(tasks)),
        *(reported(index) for index in range(tasks)),
    ]


def in_service(name: str = "front") -> list[events.Event]:
    """Return events of two jobs that belong to one service.

    Job `web` has 3 tasks at 10.0.0.1 to 10.0.0.3. Job `canary` (id 8) has 2 tasks at 10.0.0.4 and 10.0.0.5.
    """
    return [
        *(machine(number) for number in range(5)),
        submitted(tasks=3, labels={"service": name}),
        submitted("canary", job_id=8, tasks=2, ports=("http", "debug"), labels={"service": name}),
        *(placed(index, index) for index in range(3)),
        *(placed(index, 3 + index, job_id=8) for index in range(2)),
        *(reported(index) for index in range(3)),
        *(reported(index, job_id=8) for index in range(2)),
    ]


def table_of(*many: events.Event) -> NameTable:
    """Return the table of names after these events. Each event has its own revision, from 1 on."""
    table = NameTable("cc")
    for revision, event in enumerate(many, start=1):
        table.apply(event, revision)
    table.ready = True
    return table


def directory_of(table: NameTable) -> ZoneDirectory:
    directory = ZoneDirectory(zone="borg.internal", nameserver="192.0.2.53")
    directory.cells[table.cell] = table
    directory.loaded, directory.status = True, Status.OK
    return directory


def ask_wire(
    directory: ZoneDirectory, query: dns.message.Message, *, via: Transport = "udp", seed: int = 1
) -> dns.message.Message:
    wire = answer(query.to_wire(), directory, via=via, rng=Random(seed))
    assert wire is not None
    response = dns.message.from_wire(wire)
    assert query.is_response(response)
    assert not response.flags & dns.flags.RA
    return response


def ask(
    directory: ZoneDirectory, name: str, rdtype: str = "A", *, via: Transport = "udp", seed: int = 1, **query: Any
) -> dns.message.Message:
    """Return the response to a query made by dnspython. A `name` without a final dot gets the zone appended."""
    if not name.endswith("."):
        name = f"{name}.borg.internal."
    return ask_wire(directory, dns.message.make_query(name, rdtype, **query), via=via, seed=seed)


def texts(response: dns.message.Message) -> list[str]:
    """Return the data of the records in the answer section, in order."""
    return [rdata.to_text() for rrset in response.answer for rdata in rrset]


def in_order(pool: Pool) -> list[PlacedTask]:
    return sorted(pool, key=lambda task: task.index)


def publish(zone: Zone) -> bool:
    """Publish all changes of the table in the zone, and return whether its serial changed."""
    before = zone.serial
    for _ in zone.publishing():
        pass
    return zone.serial != before


def records(zone: Zone) -> Iterator[ZoneRecord]:
    """Yield all records of the zone except the SOA."""
    for owner, data in zip(*zone.sets(), strict=True):
        for each in data:
            yield ZoneRecord(owner, each)
