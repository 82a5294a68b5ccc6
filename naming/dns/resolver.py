"""Computes the answer to a DNS query from the bytes of the query and a directory of names (the *long path*). Pure.

    bytes ─► quick_rcode ─► dnspython ─► records.find ─► answer | NODATA | NXDOMAIN | REFUSED ─► bytes

Only messages that look like one plain question are parsed with the library dnspython, so that no message needs much
more time than another. No message causes an exception. A message that cannot be parsed gets no answer, or an answer
that contains only a header.
"""

from __future__ import annotations

from collections.abc import Generator
from random import Random
from typing import Any, Literal

import dns.edns
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdata
import dns.rdataclass
import dns.rdatatype
import dns.rdtypes.ANY.HINFO
import dns.rrset
import dns.tsig
from dns.rdataclass import IN
from dns.rdatatype import RdataType

from naming.dns import tsig_errors
from naming.dns.protocol import wire
from naming.dns.protocol.cookies import DnsClient
from naming.dns.zones import srv_answers
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.nodes import AnswerLimits, NotLoaded, OutsideZones, ZoneNode
from naming.dns.zones.records import find

MAX_QUERY = 4_096  # octets; valid questions are far shorter
# Names of IPv6 addresses (ip6.arpa) have 34 labels. The parsing time of dnspython grows with the square of this number.
MOST_LABELS = 40
_MOST_NAME = 255  # octets
UDP_PAYLOAD = 1_232  # octets that no network fragments (DNS flag day 2020)
UDP_LIMITS = AnswerLimits(addresses=24, services=1_000, pointers=8)
TCP_LIMITS = AnswerLimits(addresses=1_000, services=1_000, pointers=200)
_TCP_SERVICES_BYTES = 60_000
OPT_BYTES = 11  # octets of an OPT record (EDNS) without options
_ADDRESS_BYTES = 12  # octets of an address record without the address: owner as pointer, type, class, TTL, length

_nsid: Any = dns.edns.NSIDOption
_cookie: Any = dns.edns.CookieOption
_hinfo: Any = dns.rdtypes.ANY.HINFO.HINFO  # untyped in dnspython

Transport = Literal["udp", "tcp"]
Steps = Generator[None, None, bytes | None]


def finished(steps: Steps) -> bytes | None:
    """Run all steps of the generator `steps`. Return the response as bytes, or None if no response is to be sent."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            response: bytes | None = end.value
            return response


def answering(
    query: bytes, directory: ZoneDirectory, *, via: Transport, rng: Random, client: DnsClient | None = None
) -> Steps:
    """Build the response to the message `query`, in steps of less than a millisecond. Names may change between two
    steps.

    The generator returns the response, or None if no response is to be sent. `client`: the sender and the time of the
    query; None: the response has no cookie.
    """
    if len(query) < wire.HEADER.size:
        return None
    if query[2] & 0x80:  # QR
        return None
    if (rcode := quick_rcode(query)) is not None:
        return header_only(query, rcode)
    try:
        message = dns.message.from_wire(query, keyring=dict(directory.keyring) or None)
        response = dns.message.make_response(message, our_payload=UDP_PAYLOAD)
    except tuple(tsig_errors.ERRORS) as error:
        return _signature_error(query, tsig_errors.ERRORS[type(error)], directory, client)
    except (dns.exception.DNSException, ValueError):
        return header_only(query, dns.rcode.FORMERR)
    if message.additional:  # dnspython does not list EDNS and the signature here
        return header_only(query, dns.rcode.FORMERR)
    if message.edns >= 0:
        flags = message.ednsflags & dns.flags.DO  # RFC 3225 §3
        options = _options(message, directory, client)
        response.use_edns(0, flags, UDP_PAYLOAD, message.payload, options=options)
    most_bytes = _most_bytes(message, via)
    if message.edns > 0:
        response.set_rcode(dns.rcode.BADVERS)
    else:
        encoded = yield from _fill(response, directory, most_bytes, via, rng)
        if encoded is not None:
            return encoded
    return response.to_wire(max_size=most_bytes, prefer_truncation=True, want_shuffle=False)


def quick_rcode(query: bytes) -> dns.rcode.Rcode | None:
    """Return the error code for a message that does not look like one plain question. Otherwise, return None: the
    message must be parsed. `query` must have a complete header.
    """
    _, flags, questions, answers, authorities, additionals = wire.HEADER.unpack_from(query)
    if dns.opcode.from_flags(flags) != dns.opcode.QUERY:
        return dns.rcode.NOTIMP
    if questions != 1 or answers or authorities > 1 or additionals > 2 or len(query) > MAX_QUERY:
        return dns.rcode.FORMERR  # the two additional records may be EDNS and a signature
    at, labels = wire.HEADER.size, 0
    while at < len(query) and (length := query[at]):
        if length > 63 or at - wire.HEADER.size >= _MOST_NAME:
            return dns.rcode.FORMERR  # a compression pointer, but there is no earlier name
        at += length + 1
        labels += 1
    if at + 5 > len(query) or (authorities and query[at + 1 : at + 3] != dns.rdatatype.IXFR.to_bytes(2)):
        return dns.rcode.FORMERR  # only an IXFR has an authority record: the SOA of its sender
    return dns.rcode.REFUSED if labels > MOST_LABELS else None


def _options(message: dns.message.Message, directory: ZoneDirectory, client: DnsClient | None) -> list[dns.edns.Option]:
    """Return the EDNS options of the answer: NSID and a cookie, each only if the query contains this option."""
    options: dict[dns.edns.OptionType, dns.edns.Option] = {}
    for option in message.options:
        if option.otype in options:
            continue
        if option.otype == dns.edns.OptionType.NSID and directory.nsid:
            options[option.otype] = _nsid(directory.nsid)
        elif isinstance(option, dns.edns.CookieOption) and directory.cookies and client:
            options[option.otype] = _cookie(option.client, directory.cookies.server(option.client, client))
    return list(options.values())


def truncated(query: bytes) -> bytes | None:
    """Return an answer without records and with the TC bit, so that the client asks again over TCP. Return None if the
    query is not valid.

    The answer is not longer than the query.
    """
    at = wire.HEADER.size
    while at < len(query) and (length := query[at]):
        if length > 63:
            return None
        at += length + 1
    ends = at + 5
    if ends > len(query) or query[2] & 0x80:
        return None
    identity, flags, *_ = wire.HEADER.unpack_from(query)
    kept = flags & (0x7800 | dns.flags.RD)
    return wire.HEADER.pack(identity, dns.flags.QR | dns.flags.TC | kept, 1, 0, 0, 0) + query[wire.HEADER.size : ends]


def _signature_error(query: bytes, error: int, directory: ZoneDirectory, client: DnsClient | None) -> bytes:
    try:
        return tsig_errors.error_answer(query, error, directory, client.now if client else 0)
    except (dns.exception.DNSException, ValueError):  # the message is damaged behind its signature
        return header_only(query, dns.rcode.FORMERR)


def header_only(query: bytes, rcode: int) -> bytes:
    """Return an answer that contains only a header with the response code `rcode`. It is for queries that cannot be
    parsed.
    """
    identity, flags, *_ = wire.HEADER.unpack_from(query)
    kept = flags & (0x7800 | dns.flags.RD)  # the opcode
    return wire.HEADER.pack(identity, dns.flags.QR | kept | rcode, 0, 0, 0, 0)


def _most_bytes(message: dns.message.Message, via: Transport) -> int:
    """Return the maximum size of the answer in octets."""
    if via == "tcp":
        return 65_535
    return max(512, min(message.payload, UDP_PAYLOAD)) if message.edns >= 0 else 512


def _fill(
    response: dns.message.Message, directory: ZoneDirectory, most_bytes: int, via: Transport, rng: Random
) -> Steps:
    """Add the records to `response`, and return None. For SRV records of a name with many tasks, return the whole
    answer as bytes instead.
    """
    question = response.question[0]
    rdtype = question.rdtype
    rcode = _unsupported(rdtype, question.rdclass)
    if rcode is not None:
        response.set_rcode(rcode)
        return None
    try:
        node = find(directory, question.name.labels)
    except (OutsideZones, NotLoaded) as error:
        response.set_rcode(error.rcode)
        return None
    response.flags |= dns.flags.AA
    if not node.exists:
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif rdtype == dns.rdatatype.ANY:
        # RFC 8482 §4.2: answer ANY with one HINFO record, not with all records.
        hinfo = _hinfo(IN, dns.rdatatype.HINFO, b"RFC8482", b"")
        _add(response.answer, question.name, directory.ttl_s, [hinfo])
        return None
    elif rdtype == dns.rdatatype.SRV and via == "udp" and node.least > most_bytes:
        response.flags |= dns.flags.TC  # the records would not fit
        return None
    elif rdtype == dns.rdatatype.SRV and node.services is not None and not response.had_tsig:
        chosen = node.services(_limits(response, node, most_bytes, via).services, rng)
        encoded = yield from srv_answers.message(response.to_wire(), chosen, directory, most_bytes)
        if encoded is not None:
            return encoded
    else:
        records = node.read(rdtype, _limits(response, node, most_bytes, via), rng)
        if records.rdatas:
            _add(response.answer, question.name, records.ttl_s, records.rdatas)
            for name, rdata, ttl_s in records.extra:
                _add(response.additional, name, ttl_s, [rdata])
            return None
    # RFC 2308 §3: the SOA contains the time for which a negative answer may be cached.
    _add(response.authority, node.zone.apex, directory.negative_ttl_s, [node.zone.soa()])
    return None


def _unsupported(rdtype: RdataType, rdclass: int) -> dns.rcode.Rcode | None:
    """Return the error code for queries of this record type and class, or None if such queries can be answered."""
    if rdclass != IN or rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
        return dns.rcode.REFUSED
    if rdtype in (dns.rdatatype.NONE, dns.rdatatype.OPT):
        return dns.rcode.FORMERR
    if 128 <= rdtype < dns.rdatatype.ANY:
        return dns.rcode.NOTIMP  # meta types (RFC 6895 §3.1)
    return None


def addresses_fitting(octets: int, family: int) -> int:
    """Return how many address records of one name fit into `octets` octets, but at least 1. `family`: 4 (IPv4) or 6
    (IPv6).
    """
    return max(1, min(UDP_LIMITS.addresses, octets // (_ADDRESS_BYTES + (4 if family == 4 else 16))))


def _limits(response: dns.message.Message, node: ZoneNode, most_bytes: int, via: Transport) -> AnswerLimits:
    """Return for how many tasks the answer may contain records, for each type of record. `response`: the answer, which
    does not contain records yet. `most_bytes`: the maximum size of the answer in octets.
    """
    if via == "udp":
        question = response.question[0]
        used = wire.HEADER.size + len(question.name.to_wire() or b"") + 4
        if response.edns >= 0:
            used += OPT_BYTES + sum(4 + len(option.to_wire() or b"") for option in response.options)
        fitting = addresses_fitting(most_bytes - used, 4 if question.rdtype == dns.rdatatype.A else 6)
        return AnswerLimits(fitting, UDP_LIMITS.services, UDP_LIMITS.pointers)
    if not node.task_bytes:
        return TCP_LIMITS
    # A fifth more than the minimum size of a record leaves space for indexes of seven digits.
    fitting = _TCP_SERVICES_BYTES // (node.task_bytes * 6 // 5) or 1
    return AnswerLimits(TCP_LIMITS.addresses, min(TCP_LIMITS.services, fitting), TCP_LIMITS.pointers)


def _add(section: list[dns.rrset.RRset], owner: dns.name.Name, ttl_s: int, rdatas: list[dns.rdata.Rdata]) -> None:
    section.append(dns.rrset.from_rdata_list(owner, ttl_s, rdatas))
