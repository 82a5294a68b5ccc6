"""Reverse names (PTR records): finds the machine or task that has a given address. `ZoneDirectory` contains the
reverse zones. This module does no I/O.

    <zone of a network>                        SOA NS
    <address>                                  PTR     the machine, or the task if it has its own address

Only the names of addresses have records. The names above an address exist, but have no records (RFC 8020). A reverse
zone contains addresses of all cells.
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
    OutsideZones,
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
    """Return the node of a reverse name. `lowered`: the labels of the name in lower case, without the root.

    Raises `OutsideZones` for a name outside the zones of this resolver. Raises `NotLoaded` if the name is not found,
    and not all cells are loaded yet.
    """
    above = next((n for n in range(len(lowered) + 1) if lowered[n:] in directory.reverse_apexes), None)
    if above is None:
        raise OutsideZones
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
    """Return the apex of a reverse zone. The zone has the serial of the parent zone, because secondaries cannot
    transfer it.
    """
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
            min(ttl_s(table, labels) for table, labels in owners),
            [],
        )

    def ttl_s(table: NameTable, labels: Labels) -> int:
        job = table.job(labels[-1], labels[-2])
        return directory.ttl_s if job is None else job.ttl_s_or(directory.ttl_s)

    return read
