"""Zone transfers: the messages that hand a cell's zone to other name servers. Pure.

    AXFR (RFC 5936)   SOA, everything, SOA
    IXFR (RFC 1995)   SOA, then for each change: SOA before, removed, SOA after, added; and SOA. One SOA: up to date

A client that is too far behind for an IXFR, or has the zone from another process, gets an AXFR instead. Messages are
built without dnspython and have about 16 KB, because pointers to names reach no further. Each takes less than a
millisecond of the event loop.
If the question was signed, each is signed after the one before it (TSIG, RFC 8945 §5.3.1).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

import dns.flags
import dns.message
import dns.rdata
import dns.rdatatype
import dns.tsig
from dns.rdatatype import AXFR, IXFR, SOA

from naming.dns.protocol import wire
from naming.dns.zones.rendering import Owner
from naming.dns.zones.zone import Zone, ZoneChange
from naming.table.table import serial_newer

MESSAGE_BYTES = 16_000  # about; the most there may be are 65,535
_HEADER = struct.Struct("!HHHHHH")
_QR_AA, _RD = 0x8400, 0x0100
_APEX = b"\xc0\x0c"  # the name of the question
_MOST_POINTED = 0x3FFF
_OPT = b"\0\0\x29\x04\xd0\0\0"  # EDNS 0, 1,232 octets; its flags and length come behind


def wanted(query: dns.message.Message) -> bool:
    """Return whether the query asks for a transfer."""
    return len(query.question) == 1 and query.question[0].rdtype in (AXFR, IXFR)


def serial_asked(query: dns.message.Message) -> int | None:
    """Return the serial that the sender of an IXFR has; None if it is missing."""
    for rrset in query.authority:
        if rrset.rdtype == SOA:
            return int(rrset[0].serial)
    return None


def given(query: dns.message.Message, zone: Zone, source: str) -> str:
    """Return the kind of answer of `messages`: `axfr`, `ixfr`, or `current` if nothing is new."""
    changes = _changes(query, zone, source)
    if changes is None:
        return "axfr"
    return "ixfr" if changes else "current"


def messages(query: dns.message.Message, zone: Zone, source: str) -> Iterator[bytes]:
    """The answer to a permitted question, in the order to send it: of the zone as it is now, whatever comes."""
    return _signed(query, _contents(query, _records(query, zone, source)))


def _changes(query: dns.message.Message, zone: Zone, source: str) -> list[ZoneChange] | None:
    """Return the changes for the client at `source`, or None if it needs the whole zone."""
    serial = serial_asked(query) if query.question[0].rdtype == IXFR else None
    if serial is None:
        return None
    if not serial_newer(zone.serial, serial):
        return []
    return zone.since(serial) if source in zone.taken_by else None


def _records(query: dns.message.Message, zone: Zone, source: str) -> Iterator[tuple[Owner, Iterable[bytes]]]:
    """Yield owners with their records. The zone's present state is taken at the call."""
    soa = _soa(zone, zone.soa)
    changes = _changes(query, zone, source)
    if changes is not None:
        return _steps(zone, soa, changes) if changes else iter([soa])
    owners, data = zone.sets()
    return _around(soa, zip(owners, data, strict=True))


def _around(
    soa: tuple[Owner, Iterable[bytes]], records: Iterable[tuple[Owner, Iterable[bytes]]]
) -> Iterator[tuple[Owner, Iterable[bytes]]]:
    yield soa
    yield from records
    yield soa


def _steps(
    zone: Zone, soa: tuple[Owner, Iterable[bytes]], changes: Iterable[ZoneChange]
) -> Iterator[tuple[Owner, Iterable[bytes]]]:
    yield soa
    for change in changes:
        yield _soa(zone, change.before)
        for record in change.removed:
            yield record.owner, (record.data,)
        yield _soa(zone, change.after)
        for record in change.added:
            yield record.owner, (record.data,)
    yield soa


def _soa(zone: Zone, soa: dns.rdata.Rdata) -> tuple[Owner, Iterable[bytes]]:
    return (), (wire.data(int(SOA), zone.directory.negative_ttl_s, soa.to_wire() or b""),)


def _contents(query: dns.message.Message, records: Iterator[tuple[Owner, Iterable[bytes]]]) -> Iterator[bytearray]:
    """Yield messages without EDNS and signature. Each has the question, whose name compresses the owners."""
    question = query.question[0]
    asked = question.name.to_wire() + struct.pack("!HH", question.rdtype, question.rdclass)  # type: ignore[operator]
    flags = _QR_AA | (query.flags & _RD)
    message, count = bytearray(12) + asked, 0
    for owner, data in records:
        name = wire.name(owner) + _APEX if owner else _APEX
        short = None if owner else _APEX
        for each in data:
            if count and len(message) + len(name) + len(each) > MESSAGE_BYTES:
                _HEADER.pack_into(message, 0, query.id, flags, 1, count, 0, 0)
                yield message
                message, count, short = bytearray(12) + asked, 0, None if owner else _APEX
            if short is None:
                if len(message) <= _MOST_POINTED:
                    short = (0xC000 | len(message)).to_bytes(2)
                message += name
            else:
                message += short
            message += each
            count += 1
    _HEADER.pack_into(message, 0, query.id, flags, 1, count, 0, 0)
    yield message


def _signed(query: dns.message.Message, contents: Iterator[bytearray]) -> Iterator[bytes]:
    # dnspython knows with what, and in answer to which signature.
    template: Any = dns.message.make_response(query)
    sign: Any = dns.tsig.sign  # untyped
    context = None
    for message in contents:
        additional = 0
        if query.edns >= 0:
            message += _OPT + (query.ednsflags & dns.flags.DO).to_bytes(2) + bytes(2)
            additional = 1
            message[10:12] = additional.to_bytes(2)
        if template.tsig is not None:
            tsig, context = sign(
                bytes(message),
                template.keyring,
                template.tsig[0],
                int(time.time()),
                template.request_mac,
                context,
                True,
            )
            signature = tsig.to_wire()
            message += template.tsig.name.to_wire() + struct.pack("!HHIH", dns.rdatatype.TSIG, 255, 0, len(signature))
            message += signature
            message[10:12] = (additional + 1).to_bytes(2)
        yield bytes(message)
