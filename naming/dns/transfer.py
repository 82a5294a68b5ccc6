"""Builds the messages of zone transfers, which send a cell's zone to other name servers. Pure.

    AXFR (RFC 5936)   SOA, all records, SOA
    IXFR (RFC 1995)   SOA, then per change: old SOA, removed records, new SOA, added records; then SOA
                      only one SOA: the client is up to date

A client gets an AXFR instead of an IXFR if its zone is too old, or if it got the zone from another process. Messages
are built without the library dnspython. A message has about 16 KB, because compression pointers reach only that far. If
the query was signed, each message is signed (TSIG, RFC 8945 §5.3.1).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from itertools import chain
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

MESSAGE_BYTES = 16_000  # approximately; the protocol allows 65,535
_QR_AA, _RD = 0x8400, 0x0100
_APEX = b"\xc0\x0c"  # a pointer to the name of the question
_MOST_POINTED = 0x3FFF
_OPT = b"\0\0\x29\x04\xd0\0\0"  # EDNS 0, 1,232 octets; the flags and the length of the options follow


def wanted(query: dns.message.Message) -> bool:
    """Return whether the query asks for a zone transfer."""
    return len(query.question) == 1 and query.question[0].rdtype in (AXFR, IXFR)


def serial_asked(query: dns.message.Message) -> int | None:
    """Return the serial in an IXFR query. It is the serial of the copy of the zone that the sender has. Return None if
    the query contains no serial.
    """
    for rrset in query.authority:
        if rrset.rdtype == SOA:
            return int(rrset[0].serial)
    return None


def given(query: dns.message.Message, zone: Zone, source: str) -> str:
    """Return the kind of answer that `messages` builds for this query.

    The kind is `axfr` (whole zone), `ixfr` (changes), or `current` if the secondary already has the newest zone.
    """
    changes = _changes(query, zone, source)
    if changes is None:
        return "axfr"
    return "ixfr" if changes else "current"


def messages(query: dns.message.Message, zone: Zone, source: str) -> Iterator[bytes]:
    """Yield the messages of the answer to a zone transfer. They describe the zone at the time of the call."""
    return _signed(query, _contents(query, _records(query, zone, source)))


def _changes(query: dns.message.Message, zone: Zone, source: str) -> list[ZoneChange] | None:
    """Return the changes to send to the client at `source`, or None if the client needs the whole zone."""
    serial = serial_asked(query) if query.question[0].rdtype == IXFR else None
    if serial is None:
        return None
    if not serial_newer(zone.serial, serial):
        return []
    return zone.since(serial) if source in zone.taken_by else None


def _records(query: dns.message.Message, zone: Zone, source: str) -> Iterator[tuple[Owner, Iterable[bytes]]]:
    """Return the names (owners) to send, each with its records, in this order. Later changes of the zone have no effect
    on the result.
    """
    soa = _soa(zone, zone.soa)
    changes = _changes(query, zone, source)
    if changes is None:
        owners, data = zone.sets()
        return chain([soa], zip(owners, data, strict=True), [soa])
    return chain([soa], _steps(zone, changes), [soa]) if changes else iter([soa])


def _steps(zone: Zone, changes: Iterable[ZoneChange]) -> Iterator[tuple[Owner, Iterable[bytes]]]:
    for change in changes:
        for soa, records in ((change.before, change.removed), (change.after, change.added)):
            yield _soa(zone, soa)
            for record in records:
                yield record.owner, (record.data,)


def _soa(zone: Zone, soa: dns.rdata.Rdata) -> tuple[Owner, Iterable[bytes]]:
    return (), (wire.data(int(SOA), zone.directory.negative_ttl_s, soa.to_wire() or b""),)


def _contents(query: dns.message.Message, records: Iterator[tuple[Owner, Iterable[bytes]]]) -> Iterator[bytearray]:
    """Yield the messages with these records, without EDNS and without a signature. Each message contains the question.

    Owner names are compressed: they end with a pointer to the name in the question.
    """
    question = query.question[0]
    asked = question.name.to_wire() + struct.pack("!HH", question.rdtype, question.rdclass)  # type: ignore[operator]
    flags = _QR_AA | (query.flags & _RD)
    message, count = bytearray(12) + asked, 0
    for owner, data in records:
        name = wire.name(owner) + _APEX if owner else _APEX
        short = None if owner else _APEX
        for each in data:
            if count and len(message) + len(name) + len(each) > MESSAGE_BYTES:
                wire.HEADER.pack_into(message, 0, query.id, flags, 1, count, 0, 0)
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
    wire.HEADER.pack_into(message, 0, query.id, flags, 1, count, 0, 0)
    yield message


def _signed(query: dns.message.Message, contents: Iterator[bytearray]) -> Iterator[bytes]:
    template: Any = dns.message.make_response(query)  # contains the key, and the signature of the query
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
            message += template.tsig.name.to_wire() + wire.FIXED.pack(dns.rdatatype.TSIG, 255, 0, len(signature))
            message += signature
            message[10:12] = (additional + 1).to_bytes(2)
        yield bytes(message)
