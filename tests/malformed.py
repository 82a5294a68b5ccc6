"""Generators of malformed DNS messages, reproducible by seed: for the bench `dns-fuzz` and for a unit test.

    for packet in packets(seed): …        # endless; packet.kind says how it was made, packet.wire is what is sent

A message counts as *well-formed* if it holds exactly one question of class IN and nothing that the grammar of a
question does not allow (RFC 1035 §4, RFC 6891 §6, RFC 7873 §4, RFC 8945 §4.2). Such a message may get an ordinary, long
answer. Every other message is malformed. `well_formed` decides this without dnspython.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import dns.edns
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import dns.tsig

ZONE = "borg.internal"
KEY = dns.tsig.Key("shared.", b"0123456789abcdef0123456789abcdef", dns.tsig.HMAC_SHA256)
MOST_OCTETS = 65_535
_HEADER = struct.Struct("!6H")
_OPT, _TSIG, _IXFR = 41, 250, 251
_ANY_CLASS = 255
_LARGE_EVERY = 20  # rounds


class Packet(NamedTuple):
    kind: str
    wire: bytes


def questions(*, cell: str = "cc", tenant: str = "ubar", job: str = "web") -> list[bytes]:
    """Return well-formed messages of all kinds that a resolver of that job may receive. Tests damage them."""
    names = [
        f"0.{job}.{tenant}.{cell}",
        f"{job}.{tenant}.{cell}",
        f"_http._tcp.{job}.{tenant}.{cell}",
        f"{tenant}.{cell}",
        f"m0.machine.{cell}",
        cell,
        f"nobody.{tenant}.{cell}",
        "health",
        "ns",
    ]
    asked = [
        dns.message.make_query(f"{name}.{ZONE}.", rdtype, use_edns=edns, payload=payload)
        for name in names
        for rdtype in ("A", "SRV", "TXT", "ANY", "SOA")
        for edns, payload in ((-1, 0), (0, 1_232), (0, 4_096))
    ]
    asked += [dns.message.make_query("www.example.org.", "A"), dns.message.make_query(".", "NS", use_edns=0)]
    options = [
        dns.edns.GenericOption(dns.edns.OptionType.NSID, b""),
        dns.edns.CookieOption(b"12345678", b""),
        dns.edns.CookieOption(b"12345678", b"\1\0\0\0" + bytes(12)),
    ]
    for many in (options[:1], options[1:2], options[2:], options[:2]):
        asked.append(dns.message.make_query(f"{job}.{tenant}.{cell}.{ZONE}.", "A", use_edns=0, options=many))
    for rdtype in ("SRV", "AXFR"):
        signed = dns.message.make_query(f"{cell}.{ZONE}.", rdtype)
        signed.use_tsig(KEY)
        asked.append(signed)
    ixfr = dns.message.make_query(f"{cell}.{ZONE}.", "IXFR")
    soa = f"ns.{ZONE}. hostmaster.{cell}.{ZONE}. 1 2 3 4 5"
    ixfr.authority.append(dns.rrset.from_text(f"{cell}.{ZONE}.", 0, "IN", "SOA", soa))
    asked.append(ixfr)
    return [one.to_wire() for one in asked]


def packets(seed: int, whole: list[bytes] | None = None) -> Iterator[Packet]:
    """Yield damaged messages without end. The same `seed` and `whole` messages give the same sequence.

    `whole`: the well-formed messages that are damaged; by default those of `questions()`.
    """
    rng = Random(seed)
    whole = whole or questions()
    cuts = itertools.cycle([one[:size] for one in whole for size in range(len(one))])
    large = itertools.cycle(_LARGE.items())
    for number in itertools.count():
        yield Packet("cut", next(cuts))
        for kind, spoil in (*_KINDS.items(), *([next(large)] if number % _LARGE_EVERY == 0 else [])):
            yield Packet(kind, spoil(rng, rng.choice(whole))[:MOST_OCTETS])


def well_formed(wire: bytes) -> bool:
    """Return whether a message holds exactly one question of class IN and is valid in all other parts too."""
    if len(wire) < _HEADER.size:
        return False
    _, flags, qdcount, ancount, nscount, arcount = _HEADER.unpack_from(wire)
    if flags & 0xF800 or qdcount != 1 or ancount or arcount > 2:
        return False
    at = _name_ends(wire, _HEADER.size)
    if at is None or at + 4 > len(wire):
        return False
    rdtype, rdclass = struct.unpack_from("!2H", wire, at)
    at += 4
    if rdclass != 1 or nscount > (rdtype == _IXFR):
        return False
    if nscount:
        soa = _record(wire, at)
        if soa is None or soa.rdtype != 6:
            return False
        at = soa.ends
    seen = []
    for _ in range(arcount):
        record = _record(wire, at)
        if record is None or not _additional(record, seen):
            return False
        seen.append(record.rdtype)
        at = record.ends
    return at == len(wire)


class _Record(NamedTuple):
    rdtype: int
    rdclass: int
    ttl: int
    rdata: bytes
    at_root: bool
    ends: int


def _record(wire: bytes, at: int) -> _Record | None:
    ends = _name_ends(wire, at, pointers=True)
    if ends is None or ends + 10 > len(wire):
        return None
    rdtype, rdclass, ttl, size = struct.unpack_from("!2HIH", wire, ends)
    data = wire[ends + 10 : ends + 10 + size]
    return _Record(rdtype, rdclass, ttl, data, ends == at + 1, ends + 10 + size) if len(data) == size else None


def _additional(record: _Record, seen: list[int]) -> bool:
    """Return whether an additional record may accompany a question: one OPT of EDNS version 0, or a TSIG as the last.

    `seen`: the types of the additional records before it. The signature in a TSIG record is not checked.
    """
    if record.rdtype == _TSIG:
        return _TSIG not in seen and record.rdclass == _ANY_CLASS and not record.ttl
    if record.rdtype != _OPT or seen or not record.at_root or record.ttl >> 16 & 0xFF:
        return False
    at = 0
    while at < len(record.rdata):
        if at + 4 > len(record.rdata):
            return False
        code, size = struct.unpack_from("!2H", record.rdata, at)
        at += 4 + size
        if code == 10 and not (size == 8 or 16 <= size <= 40):
            return False
    return at == len(record.rdata)


def _name_ends(wire: bytes, at: int, *, pointers: bool = False) -> int | None:
    begins = at
    while at < len(wire):
        length = wire[at]
        if length >= 0xC0:
            return at + 2 if pointers and at + 2 <= len(wire) else None
        if length > 63 or at - begins >= 255:
            return None
        at += 1 + length
        if not length:
            return at
    return None


def _parts(wire: bytes) -> tuple[bytes, bytes, bytes]:
    """Split a well-formed message into its header, its first question, and the rest."""
    ends = _name_ends(wire, _HEADER.size)
    assert ends is not None
    return wire[: _HEADER.size], wire[_HEADER.size : ends + 4], wire[ends + 4 :]


def _counted(wire: bytes, *counts: int) -> bytes:
    return wire[:4] + struct.pack("!4H", *counts) + wire[12:]


def _flipped(rng: Random, wire: bytes) -> bytes:
    spoiled = bytearray(wire)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        spoiled[rng.randrange(2, len(spoiled))] ^= 1 << rng.randrange(8)
    return bytes(spoiled)


def _spliced(rng: Random, wire: bytes) -> bytes:
    at = rng.randrange(2, len(wire))
    return wire[:at] + rng.randbytes(rng.randrange(1, 12)) + wire[at + rng.randrange(0, 12) :]


def _random(rng: Random, wire: bytes) -> bytes:
    return rng.randbytes(rng.randrange(600))


def _with_header(rng: Random, wire: bytes) -> bytes:
    """Return random octets behind a header that announces one question."""
    return _counted(wire[:12], 1, 0, 0, rng.randrange(3)) + rng.randbytes(rng.randrange(600))


def _pointers(rng: Random, wire: bytes) -> bytes:
    """End the question's name in a compression pointer: to itself, forward, back, into the header, or outside."""
    head, question, rest = _parts(wire)
    name, fixed = question[:-5], question[-4:]
    here = len(head) + len(name)
    target = rng.choice(
        (here, here + 1, here + 2, 0, rng.randrange(12), 12, rng.randrange(here), 0x3FFF, rng.randrange(0x4000))
    )
    return head + name + (0xC000 | target).to_bytes(2) + fixed + rest


def _rings(rng: Random, wire: bytes) -> bytes:
    """Return a message whose questions and records have names that are pointers to each other."""
    number = rng.randrange(2, 8)
    spot = [12 + 6 * each for each in range(number)]
    body = b"".join((0xC000 | rng.choice(spot)).to_bytes(2) + rng.choice((b"\0\1\0\1", b"\0\6\0\1")) for _ in spot)
    return _counted(wire[:12], rng.choice((1, number)), 0, 0, rng.randrange(number)) + body


def _counts(rng: Random, wire: bytes) -> bytes:
    some = (0, 0, 1, 1, 2, 3, 255, 65_535, rng.randrange(65_536))
    return _counted(wire, *(rng.choice(some) for _ in range(4)))


def _none(rng: Random, wire: bytes) -> bytes:
    head, _, rest = _parts(wire)
    return _counted(head, 0, 0, 0, rng.randrange(2)) + rng.choice((b"", rest))


def _many(rng: Random, wire: bytes) -> bytes:
    head, question, rest = _parts(wire)
    number = rng.randrange(2, 40)
    return _counted(head, rng.choice((number, 1, 65_535)), 0, 0, int(bool(rest))) + question * number + rest


def _opcodes(rng: Random, wire: bytes) -> bytes:
    return wire[:2] + rng.randrange(65_536).to_bytes(2) + wire[4:]


def _types(rng: Random, wire: bytes) -> bytes:
    head, question, rest = _parts(wire)
    some = (0, 1, 41, 249, 250, 251, 252, 253, 254, 255, 256, rng.randrange(65_536))
    classes = (0, 1, 1, 3, 4, 254, 255, rng.randrange(65_536))
    return head + question[:-4] + struct.pack("!2H", rng.choice(some), rng.choice(classes)) + rest


def _labels(rng: Random, wire: bytes) -> bytes:
    """Replace the question's name by labels of random lengths, of undefined types, or by none at all."""
    head, question, rest = _parts(wire)
    name = b""
    for _ in range(rng.randrange(1, 8)):
        size = rng.choice((0, 1, 62, 63, 64, 65, 0x80, 0xBF, rng.randrange(256)))
        name += bytes([size]) + rng.randbytes(rng.choice((size & 63, rng.randrange(8))))
    return head + name + rng.choice((question, question[-5:], question[-4:])) + rest


def _long_name(rng: Random, wire: bytes) -> bytes:
    """Put valid labels before the question's name, so that it has about 255 octets, the limit, or many more."""
    head, question, rest = _parts(wire)
    size = rng.choice((1, 1, 2, 7, 63))
    wanted = rng.choice((250, 254, 255, 256, 257, 300, 1_000, 4_000)) - len(question) + 4
    return head + (bytes([size]) + b"x" * size) * max(1, wanted // (size + 1)) + question + rest


def opt(rdata: bytes, *, owner: bytes = b"\0", payload: int = 1_232, ttl: int = 0, size: int | None = None) -> bytes:
    """Return an OPT record of EDNS in wire format. `size`: the data length that it states, if not the true one."""
    return owner + struct.pack("!2HIH", _OPT, payload, ttl, len(rdata) if size is None else size) + rdata


def _option(rng: Random) -> bytes:
    code = rng.choice((3, 8, 10, 10, 10, 12, 15, rng.randrange(65_536)))
    data = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 15, 16, 17, 24, 40, 41, rng.randrange(100))))
    size = rng.choice((len(data), len(data), len(data) + 1, 0, 65_535, rng.randrange(65_536)))
    return struct.pack("!2H", code, size) + data


def _edns(rng: Random, wire: bytes) -> bytes:
    head, question, _ = _parts(wire)
    records = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rdata = b"".join(_option(rng) for _ in range(rng.randrange(4)))
        records.append(
            opt(
                rdata,
                owner=rng.choice((b"\0", b"\0", b"\0", b"\1x\0", b"\xc0\x0c", b"\xc0\xff", b"\x41")),
                payload=rng.choice((0, 1, 511, 512, 1_232, 4_096, 65_535)),
                ttl=rng.choice((0, 0, 0x8000, 0x10000, 0xFF0000, 0x1000000, rng.randrange(2**32))),
                size=rng.choice((None, None, None, 0, 65_535, rng.randrange(200))),
            )
        )
    number = rng.choice((len(records), len(records), 1))
    counts = rng.choice(((1, 0, 0, number), (1, number, 0, 0), (1, 0, number, 0)))
    return _counted(head, *counts) + question + b"".join(records)


def _cookies(rng: Random, wire: bytes) -> bytes:
    """Add an OPT record with a cookie of a random length from 0 to 63 octets."""
    head, question, _ = _parts(wire)
    size = rng.randrange(64)
    return _counted(head, 1, 0, 0, 1) + question + opt(struct.pack("!2H", 10, size) + rng.randbytes(size))


def _signed(rng: Random, wire: bytes) -> bytes:
    """Add a TSIG record that is random, damaged, or at a place where none is allowed."""
    head, question, rest = _parts(wire)
    mac = rng.randbytes(rng.choice((0, 1, 16, 32, 32, 64, 200)))
    rdata = (
        rng.choice((b"\x0bhmac-sha256\0", b"\x08hmac-md5\x07sig-alg\x03reg\x03int\0", b"\0", b"\xc0\x0c", b"\x3f"))
        + rng.randbytes(6)
        + struct.pack("!2H", rng.choice((300, 0, 65_535)), rng.choice((len(mac), len(mac), 65_535, 0)))
        + mac
        + struct.pack("!3H", rng.randrange(65_536), rng.choice((0, 16, 17, 18)), rng.choice((0, 0, 6, 65_535)))
        + rng.randbytes(rng.choice((0, 0, 6)))
    )
    rdata = rng.choice((rdata, rdata, rdata[: rng.randrange(len(rdata))], rng.randbytes(rng.randrange(80))))
    owner = rng.choice((b"\x06shared\0", b"\x06shared\0", b"\x05other\0", b"\0", b"\xc0\x0c"))
    rdclass, ttl = rng.choice((255, 255, 1, 0)), rng.choice((0, 0, 1))
    size = rng.choice((len(rdata), len(rdata), len(rdata), 0, 65_535))
    record = owner + struct.pack("!2HIH", _TSIG, rdclass, ttl, size) + rdata
    number = rng.choice((1, 1, 2))
    if rng.random() < 0.2:
        return _counted(head, 1, number, 0, 0) + question + record * number
    return _counted(head, 1, 0, 0, number + (head[11] and bool(rest))) + question + rest + record * number


def _trailing(rng: Random, wire: bytes) -> bytes:
    return wire + rng.randbytes(rng.randrange(1, 40))


def _extra(rng: Random, wire: bytes) -> bytes:
    """Add a record that a question must not contain, to the answer, authority or additional section."""
    head, question, rest = _parts(wire)
    record = b"\xc0\x0c" + question[-4:] + rng.randbytes(4) + b"\0\4" + rng.randbytes(4)
    place = rng.randrange(3)
    if place < 2:
        counts = [1, 0, 0, int.from_bytes(head[10:12])]
        counts[place + 1] = 1
        return _counted(head, *counts) + question + record + rest
    return _counted(head, 1, 0, int.from_bytes(head[8:10]), int.from_bytes(head[10:12]) + 1) + question + rest + record


def _chains(rng: Random, wire: bytes) -> bytes:
    """Return a question with a long chain of compression pointers, and records whose names all follow that chain."""
    head, question, _ = _parts(wire)
    links = rng.randrange(1, 900)
    begins = len(head) + len(question) + 1 + 10
    chain = b"\0" + b"".join(
        (0xC000 | (begins + 1 + 2 * (link - 1) if link else begins)).to_bytes(2) for link in range(links)
    )
    end = (0xC000 | (begins + 1 + 2 * (links - 1))).to_bytes(2)
    number = rng.randrange(1, 150)
    owners = (end + b"\0\1\0\1" + bytes(4) + b"\0\4" + bytes(4)) * number
    first = b"\0" + struct.pack("!2HIH", rng.choice((10, 65_000)), 1, 0, len(chain)) + chain
    counts = rng.choice(((1, 0, 0, number + 1), (1, number + 1, 0, 0), (number + 2, 0, 0, 0)))
    return _counted(head, *counts) + question + first + owners


def _large_name(rng: Random, wire: bytes) -> bytes:
    head, question, rest = _parts(wire)
    size = rng.choice((1, 63))
    return head + (bytes([size]) + b"x" * size) * (MOST_OCTETS // (size + 1)) + question + rest


def _large_tail(rng: Random, wire: bytes) -> bytes:
    return wire + rng.randbytes(rng.choice((4_096 - len(wire), 4_097 - len(wire), 16_000, MOST_OCTETS)))


def _large_many(rng: Random, wire: bytes) -> bytes:
    head, question, _ = _parts(wire)
    number = MOST_OCTETS // len(question)
    return _counted(head, rng.choice((1, number)), 0, 0, 0) + question * number


def _large_chain(rng: Random, wire: bytes) -> bytes:
    head, question, _ = _parts(wire)
    begins = len(head) + len(question) + 1 + 10
    links = 7_000
    chain = b"\0" + b"".join(
        (0xC000 | (begins + 1 + 2 * (link - 1) if link else begins)).to_bytes(2) for link in range(links)
    )
    end = (0xC000 | (begins + 1 + 2 * (links - 1))).to_bytes(2)
    number = (MOST_OCTETS - begins - len(chain)) // 12
    first = b"\0" + struct.pack("!2HIH", 10, 1, 0, len(chain)) + chain
    return _counted(head, 1, number, 0, 0) + question + first + (end + b"\0\1\0\1" + bytes(6)) * number


def _large_option(rng: Random, wire: bytes) -> bytes:
    head, question, _ = _parts(wire)
    one = struct.pack("!2H", 10, 8) + rng.randbytes(8)
    rdata = rng.choice((one * 5_000, struct.pack("!2H", 65_001, 60_000) + bytes(60_000)))
    return _counted(head, 1, 0, 0, 1) + question + opt(rdata)


Spoil = Callable[[Random, bytes], bytes]
_KINDS: dict[str, Spoil] = {
    "flipped": _flipped,
    "spliced": _spliced,
    "random": _random,
    "header": _with_header,
    "pointers": _pointers,
    "rings": _rings,
    "counts": _counts,
    "none": _none,
    "many": _many,
    "opcodes": _opcodes,
    "types": _types,
    "labels": _labels,
    "long-name": _long_name,
    "edns": _edns,
    "cookies": _cookies,
    "signed": _signed,
    "trailing": _trailing,
    "extra": _extra,
    "chains": _chains,
}
# These messages are larger than a datagram of a real network.
_LARGE: dict[str, Spoil] = {
    "large-name": _large_name,
    "large-tail": _large_tail,
    "large-many": _large_many,
    "large-chain": _large_chain,
    "large-option": _large_option,
}
KINDS = ("cut", *_KINDS, *_LARGE)
