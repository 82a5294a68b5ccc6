"""Reverse names (PTR): the owner of an address, in the zones of the directory's networks. Pure.

    <zone of a network>                        SOA NS
    <address>                                  PTR     the machine, or the task if it has its own address

Only addresses have records. The names above an address exist and have no records (RFC 8020). Zones span all cells.
"""

from __future__ import annotations

from random import Random
from typing import Any

import dns.name
import dns.rdtypes.ANY.PTR
from dns.rdataclass import IN
from dns.rdatatype import PTR, RdataType

from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.nodes import (
    NOTHING,
    ROOT,
    AnswerLimits,
    NotLoaded,
    Outside,
    Read,
    Records,
    ZoneApex,
    ZoneNode,
    absolute,
    apex,
    empty,
    soa,
)
from naming.table.reverse import Labels, Path, path_of_labels
from naming.table.table import NameTable

_ptr: Any = dns.rdtypes.ANY.PTR.PTR  # untyped in dnspython


def find(directory: ZoneDirectory, lowered: tuple[bytes, ...]) -> ZoneNode:
    """The node of a name given by its labels in lower case, without the root. Raises `Outside` and `NotLoaded`."""
    above = next((n for n in range(len(lowered) + 1) if lowered[n:] in directory.reverse_apexes), None)
    if above is None:
        raise Outside
    zone = _zone(directory, lowered[above:])
    place = path_of_labels(lowered)
    if place is None:
        return ZoneNode(zone, False, empty)
    path, depth = place
    tables = [table for table in directory.cells.values() if table.ready]
    whole = len(path) == depth
    read: Read = empty
    if whole:
        tables = [table for table in tables if table.reverse.owners(path, 1)]
        exists = bool(tables)
        if exists:
            read = _pointers(directory, tables, path)
    else:
        exists = any(table.reverse.below(path, depth) for table in tables)
    if not exists and (whole or above) and not directory.all_ready:
        raise NotLoaded
    if not above:
        return ZoneNode(zone, True, apex(directory, zone, read))
    return ZoneNode(zone, exists, read)


def _zone(directory: ZoneDirectory, labels: tuple[bytes, ...]) -> ZoneApex:
    """Return the reverse zone. It is not transferable, so it can use the serial of the parent zone."""
    mailbox = absolute(["hostmaster"], directory)
    return ZoneApex(dns.name.Name(labels + ROOT), lambda: soa(directory, mailbox, directory.serial))


def _pointers(directory: ZoneDirectory, tables: list[NameTable], path: Path) -> Read:
    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype != PTR:
            return NOTHING
        owners = [(table, labels) for table in tables for labels in table.reverse.owners(path, limits.pointers)]
        owners = owners[: limits.pointers]
        return Records(
            [_ptr(IN, PTR, absolute([*labels, table.cell], directory)) for table, labels in owners],
            min(_ttl_s(directory, table, labels) for table, labels in owners),
            [],
        )

    return read


def _ttl_s(directory: ZoneDirectory, table: NameTable, labels: Labels) -> int:
    job = table.job(labels[-1], labels[-2])
    return (job.ttl_s if job is not None else 0) or directory.ttl_s
