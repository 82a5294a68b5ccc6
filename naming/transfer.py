"""Zone transfers: the messages that hand a cell's zone to other name servers. Pure.

    AXFR (RFC 5936)   SOA, everything, SOA
    IXFR (RFC 1995)   SOA, then for each change: SOA before, removed, SOA after, added; and SOA. One SOA: up to date

Whoever is too far behind for an IXFR is given an AXFR in its place. Messages hold some 50 KB and, where the question
was signed, each is signed after the one before it (TSIG, RFC 8945 §5.3.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import dns.flags
import dns.message
import dns.name
import dns.rdata
import dns.rdatatype
import dns.rrset
from dns.rdatatype import AXFR, IXFR, SOA, RdataType

from naming.table import serial_newer
from naming.zone import Owner, Record, Zone

MESSAGE_BYTES = 50_000  # about; the most there may be are 65,535
_FIXED_BYTES = 10 + 2  # of a record beside its owner, which is compressed, and its data


class Part(NamedTuple):
    """One record on its way, SOA records included."""

    owner: Owner
    rdtype: RdataType
    ttl_s: int
    rdata: dns.rdata.Rdata


def wanted(query: dns.message.Message) -> bool:
    """Whether it asks for a transfer."""
    return len(query.question) == 1 and query.question[0].rdtype in (AXFR, IXFR)


def serial_asked(query: dns.message.Message) -> int | None:
    """Of the zone that an IXFR's sender has; None where it doesn't say."""
    for rrset in query.authority:
        if rrset.rdtype == SOA:
            return int(rrset[0].serial)
    return None


def given(query: dns.message.Message, zone: Zone) -> str:
    """What `messages` answers with: `axfr`, `ixfr`, or `current` where there is nothing new."""
    serial = serial_asked(query) if query.question[0].rdtype == IXFR else None
    if serial is None:
        return "axfr"
    if not serial_newer(zone.serial, serial):
        return "current"
    return "axfr" if zone.since(serial) is None else "ixfr"


def messages(query: dns.message.Message, zone: Zone) -> Iterator[bytes]:
    """The answer to a permitted question, in the order to send it. The zone must not change meanwhile."""
    context = None
    for number, parts in enumerate(_messages_of(_parts(query, zone))):
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA
        if number:
            response.question = []
        for (owner, rdtype, ttl_s), several in groupby(parts, key=lambda part: part[:3]):
            name = _absolute(owner, zone)
            rdatas = [part.rdata for part in several]
            if rdtype == SOA:  # two of them are two ends, not a set
                response.answer.extend(dns.rrset.from_rdata(name, ttl_s, rdata) for rdata in rdatas)
            else:
                response.answer.append(dns.rrset.from_rdata_list(name, ttl_s, rdatas))
        signed = response.had_tsig or query.had_tsig
        yield response.to_wire(max_size=65_535, multi=signed, tsig_ctx=context, want_shuffle=False)
        context = response.tsig_ctx if signed else None


def _parts(query: dns.message.Message, zone: Zone) -> Iterator[Part]:
    soa = _soa(zone, zone.soa)
    if query.question[0].rdtype == IXFR:
        serial = serial_asked(query)
        if serial is not None:
            if not serial_newer(zone.serial, serial):
                yield soa
                return
            changes = zone.since(serial)
            if changes is not None:
                yield soa
                for change in changes:
                    yield _soa(zone, change.before)
                    yield from _in_sets(change.removed)
                    yield _soa(zone, change.after)
                    yield from _in_sets(change.added)
                yield soa
                return
    yield soa
    yield from _in_sets(zone.records())
    yield soa


def _soa(zone: Zone, rdata: dns.rdata.Rdata) -> Part:
    return Part((), SOA, zone.directory.negative_ttl_s, rdata)


def _in_sets(records: Iterator[Record] | tuple[Record, ...]) -> Iterator[Part]:
    """Records of one owner and type beside each other, as a set in a message wants them."""
    together: dict[tuple[Owner, RdataType, int], list[dns.rdata.Rdata]] = {}
    for owner, rdtype, ttl_s, rdata in records:
        together.setdefault((owner, rdtype, ttl_s), []).append(rdata)
    for (owner, rdtype, ttl_s), rdatas in together.items():
        for rdata in rdatas:
            yield Part(owner, rdtype, ttl_s, rdata)


def _messages_of(parts: Iterator[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    size = 0
    for part in parts:
        takes = _FIXED_BYTES + sum(len(label) + 1 for label in part.owner) + len(part.rdata.to_wire() or b"")
        if batch and size + takes > MESSAGE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += takes
    yield batch


def _absolute(owner: Owner, zone: Zone) -> dns.name.Name:
    return dns.name.Name(tuple(label.encode() for label in owner) + zone.apex.labels)
