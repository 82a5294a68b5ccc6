"""An authoritative answer as a function of bytes and a table. Pure.

    bytes ─► at a glance, by hand ─► dnspython ─► records.find ─► answer | NODATA | NXDOMAIN | refusal ─► bytes

Opcodes other than QUERY, responses, fragments, and all but one plain question never reach the parser, so that no
packet costs much more than another. Nothing in a packet raises: what can't be read is dropped or answered with a bare
header no longer than the query.
"""

from __future__ import annotations

import struct
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

from naming.dns import signatures
from naming.dns.protocol.cookies import DnsClient
from naming.dns.zones import services
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.nodes import AnswerLimits, NotLoaded, Outside, Records, ZoneNode
from naming.dns.zones.records import find

HEADER = struct.Struct("!HHHHHH")
MAX_QUERY = 4_096  # octets; no question of ours comes near
# Of a name; those of addresses (ip6.arpa) have 34, and the time dnspython takes grows with their square.
MOST_LABELS = 40
_MOST_NAME = 255  # octets
UDP_PAYLOAD = 1_232  # octets that pass any path unfragmented (DNS flag day 2020)
UDP_LIMITS = AnswerLimits(addresses=24, services=1_000, pointers=8)
TCP_LIMITS = AnswerLimits(addresses=1_000, services=1_000, pointers=200)
_TCP_SERVICES_BYTES = 60_000
OPT_BYTES = 11  # of EDNS without options
_ADDRESS_BYTES = 12  # of a record beside its address: owner as pointer, type, class, TTL, length

_nsid: Any = dns.edns.NSIDOption
_cookie: Any = dns.edns.CookieOption
_hinfo: Any = dns.rdtypes.ANY.HINFO.HINFO  # untyped in dnspython

Transport = Literal["udp", "tcp"]
Steps = Generator[None, None, bytes | None]


def answer(
    query: bytes, directory: ZoneDirectory, *, via: Transport, rng: Random, client: DnsClient | None = None
) -> bytes | None:
    """Return the response to a datagram or to one message of a TCP stream, or None if there is none to send.

    `client`: address and time of the query, for a cookie. Without it, the response has no cookie.
    """
    return finished(answering(query, directory, via=via, rng=rng, client=client))


def finished(steps: Steps) -> bytes | None:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            response: bytes | None = end.value
            return response


def answering(
    query: bytes, directory: ZoneDirectory, *, via: Transport, rng: Random, client: DnsClient | None = None
) -> Steps:
    """Do `answer` in steps of less than a millisecond. Between steps, others are answered and names may change."""
    if len(query) < HEADER.size:
        return None
    if query[2] & 0x80:  # QR
        return None
    if (rcode := at_a_glance(query)) is not None:
        return bare(query, rcode)
    try:
        message = dns.message.from_wire(query, keyring=dict(directory.keyring) or None)
        response = dns.message.make_response(message, our_payload=UDP_PAYLOAD)
    except tuple(signatures.ERRORS) as error:
        return _not_believed(query, signatures.ERRORS[type(error)], directory, client)
    except (dns.exception.DNSException, ValueError):
        return bare(query, dns.rcode.FORMERR)
    if message.additional:  # beside EDNS and a signature
        return bare(query, dns.rcode.FORMERR)
    if message.edns >= 0:
        flags = message.ednsflags & dns.flags.DO  # RFC 3225 §3
        options = _options(message, directory, client)
        response.use_edns(0, flags, UDP_PAYLOAD, message.payload, options=options)
    room = _room(message, via)
    if message.edns > 0:
        response.set_rcode(dns.rcode.BADVERS)
    else:
        by_hand = yield from _fill(response, directory, room, via, rng)
        if by_hand is not None:
            return by_hand
    return response.to_wire(max_size=room, prefer_truncation=True, want_shuffle=False)


def at_a_glance(query: bytes) -> dns.rcode.Rcode | None:
    """Return why a message with at least a header is not parsed, or None if it looks like one plain question."""
    _, flags, questions, answers, authorities, additionals = HEADER.unpack_from(query)
    if dns.opcode.from_flags(flags) != dns.opcode.QUERY:
        return dns.rcode.NOTIMP
    if questions != 1 or answers or authorities > 1 or additionals > 2 or len(query) > MAX_QUERY:
        return dns.rcode.FORMERR  # beside the question there may be EDNS and a signature
    at, labels = HEADER.size, 0
    while at < len(query) and (length := query[at]):
        if length > 63 or at - HEADER.size >= _MOST_NAME:
            return dns.rcode.FORMERR  # nothing stands before it that it might point to
        at += length + 1
        labels += 1
    if at + 5 > len(query) or (authorities and query[at + 1 : at + 3] != dns.rdatatype.IXFR.to_bytes(2)):
        return dns.rcode.FORMERR  # an IXFR brings the SOA that its sender has
    return dns.rcode.REFUSED if labels > MOST_LABELS else None


def _options(message: dns.message.Message, directory: ZoneDirectory, client: DnsClient | None) -> list[dns.edns.Option]:
    """Return the EDNS options of the answer: NSID and a cookie if the client asked for them, each once."""
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
    """The question back with the TC bit: come again over TCP. No longer than the query; None where there is none."""
    at = HEADER.size
    while at < len(query) and (length := query[at]):
        if length > 63:
            return None
        at += length + 1
    ends = at + 5
    if ends > len(query) or query[2] & 0x80:
        return None
    identity, flags, *_ = HEADER.unpack_from(query)
    kept = flags & (0x7800 | dns.flags.RD)
    return HEADER.pack(identity, dns.flags.QR | dns.flags.TC | kept, 1, 0, 0, 0) + query[HEADER.size : ends]


def _not_believed(query: bytes, error: int, directory: ZoneDirectory, client: DnsClient | None) -> bytes:
    try:
        return signatures.refusal(query, error, directory, client.now if client else 0)
    except (dns.exception.DNSException, ValueError):  # damaged after the parts that were parsed
        return bare(query, dns.rcode.FORMERR)


def bare(query: bytes, rcode: int) -> bytes:
    """A header alone: for what could not be read, never longer than the query."""
    identity, flags, *_ = HEADER.unpack_from(query)
    kept = flags & (0x7800 | dns.flags.RD)  # the opcode
    return HEADER.pack(identity, dns.flags.QR | kept | rcode, 0, 0, 0, 0)


def _room(message: dns.message.Message, via: Transport) -> int:
    if via == "tcp":
        return 65_535
    return max(512, min(message.payload, UDP_PAYLOAD)) if message.edns >= 0 else 512


def _fill(response: dns.message.Message, directory: ZoneDirectory, room: int, via: Transport, rng: Random) -> Steps:
    """Add the records to the response and return None, or return the complete encoded answer (large SRV sets)."""
    question = response.question[0]
    rdtype = question.rdtype
    rcode = _refusal(rdtype, question.rdclass)
    if rcode is not None:
        response.set_rcode(rcode)
        return None
    try:
        node = find(directory, question.name.labels)
    except Outside:
        response.set_rcode(dns.rcode.REFUSED)
        return None
    except NotLoaded:
        response.set_rcode(dns.rcode.SERVFAIL)
        return None
    response.flags |= dns.flags.AA
    if not node.exists:
        response.set_rcode(dns.rcode.NXDOMAIN)
    elif rdtype == dns.rdatatype.ANY:
        # RFC 8482 §4.2: answer ANY with one HINFO record, not with all records.
        hinfo = _hinfo(IN, dns.rdatatype.HINFO, b"RFC8482", b"")
        _add(response.answer, question.name, directory.ttl_s, [hinfo])
        return None
    elif rdtype == dns.rdatatype.SRV and via == "udp" and node.least > room:
        response.flags |= dns.flags.TC  # without building what won't fit
        return None
    elif rdtype == dns.rdatatype.SRV and node.services is not None and not response.had_tsig:
        chosen = node.services(_limits(response, node, room, via).services, rng)
        made = yield from services.message(response.to_wire(), chosen, directory, room)
        if made is not None:
            return made
    else:
        records = node.read(rdtype, _limits(response, node, room, via), rng)
        if records.rdatas:
            _add_records(response, question.name, records)
            return None
    # RFC 2308 §3: the SOA contains the time for which a negative answer may be cached.
    _add(response.authority, node.zone.apex, directory.negative_ttl_s, [node.zone.soa()])
    return None


def _refusal(rdtype: RdataType, rdclass: int) -> dns.rcode.Rcode | None:
    """Return the refusal of questions outside the resolver's zones."""
    if rdclass != IN or rdtype in (dns.rdatatype.AXFR, dns.rdatatype.IXFR):
        return dns.rcode.REFUSED
    if rdtype in (dns.rdatatype.NONE, dns.rdatatype.OPT):
        return dns.rcode.FORMERR
    if 128 <= rdtype < dns.rdatatype.ANY:
        return dns.rcode.NOTIMP  # questions about questions (RFC 6895 §3.1)
    return None


def addresses_fitting(octets: int, family: int) -> int:
    """Return how many addresses of a name fit into `octets` octets of a datagram."""
    return max(1, min(UDP_LIMITS.addresses, octets // (_ADDRESS_BYTES + (4 if family == 4 else 16))))


def _limits(response: dns.message.Message, node: ZoneNode, room: int, via: Transport) -> AnswerLimits:
    """Return the limits of an answer. `response`: has only its question and options."""
    if via == "udp":
        question = response.question[0]
        used = HEADER.size + len(question.name.to_wire() or b"") + 4
        if response.edns >= 0:
            used += OPT_BYTES + sum(4 + len(option.to_wire() or b"") for option in response.options)
        fitting = addresses_fitting(room - used, 4 if question.rdtype == dns.rdatatype.A else 6)
        return AnswerLimits(fitting, UDP_LIMITS.services, UDP_LIMITS.pointers)
    if not node.task_bytes:
        return TCP_LIMITS
    # A fifth more than the least a record takes covers indexes of seven digits.
    fitting = _TCP_SERVICES_BYTES // (node.task_bytes * 6 // 5) or 1
    return AnswerLimits(TCP_LIMITS.addresses, min(TCP_LIMITS.services, fitting), TCP_LIMITS.pointers)


def _add_records(response: dns.message.Message, owner: dns.name.Name, records: Records) -> None:
    _add(response.answer, owner, records.ttl_s, records.rdatas)
    for name, rdata, ttl_s in records.extra:
        _add(response.additional, name, ttl_s, [rdata])


def _add(section: list[dns.rrset.RRset], owner: dns.name.Name, ttl_s: int, rdatas: list[dns.rdata.Rdata]) -> None:
    section.append(dns.rrset.from_rdata_list(owner, ttl_s, rdatas))
