"""A name as a node of a zone, with its records. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import dns.name
import dns.rdata
import dns.rdtypes.ANY.NS
import dns.rdtypes.ANY.SOA
import dns.rdtypes.ANY.TXT
import dns.rdtypes.IN.A
import dns.rdtypes.IN.AAAA
from dns.rdataclass import IN
from dns.rdatatype import AAAA, NS, SOA, TXT, A, RdataType

from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.services import Choose

# dnspython's constructors of records are untyped.
_a: Any = dns.rdtypes.IN.A.A
_aaaa: Any = dns.rdtypes.IN.AAAA.AAAA
_ns: Any = dns.rdtypes.ANY.NS.NS
_soa_record: Any = dns.rdtypes.ANY.SOA.SOA
_txt: Any = dns.rdtypes.ANY.TXT.TXT

ROOT = (b"",)
REFRESH_S, RETRY_S, EXPIRE_S = 30, 5, 7 * 86_400


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Limits on the tasks in an answer: `addresses` for A and AAAA, `services` for SRV, `pointers` for PTR.

    `whole`: all tasks, not a sample by weights.
    """

    addresses: int
    services: int
    pointers: int
    whole: bool = False


class Extra(NamedTuple):
    """An address record for the additional section."""

    name: dns.name.Name
    rdata: dns.rdata.Rdata
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one type at a node, and their time to live in seconds."""

    rdatas: list[dns.rdata.Rdata]
    ttl_s: int
    extra: list[Extra]


NOTHING = Records([], 0, [])
Read = Callable[[RdataType, AnswerLimits, Random], Records]


@dataclass(frozen=True, slots=True)
class ZoneApex:
    """The apex from which a negative answer takes its SOA."""

    apex: dns.name.Name
    soa: Callable[[], dns.rdata.Rdata]


@dataclass(frozen=True, slots=True)
class ZoneNode:
    """A name in a zone. If `exists` is false, the answer is NXDOMAIN.

    `least`: minimum size in octets of all its SRV records; `task_bytes`: approximate size of those of one task;
    `services`: a function that chooses the SRV records, for names that may have many.
    """

    zone: ZoneApex
    exists: bool
    read: Read
    least: int = 0
    task_bytes: int = 0
    services: Choose | None = None


class Outside(Exception):
    """The name is in none of the zones of this resolver. The answer is REFUSED."""


class NotLoaded(Exception):
    """The name may exist, but its cell is not loaded yet. The answer is SERVFAIL, so that clients ask again."""


@lru_cache(maxsize=65_536)
def address_record(address: str) -> dns.rdata.Rdata:
    """Return the A or AAAA record. Raises `ValueError` for text that is not an IP address."""
    record: dns.rdata.Rdata
    if ipaddress.ip_address(address).version == 4:
        record = _a(IN, A, address)
    else:
        record = _aaaa(IN, AAAA, address)
    return record


def absolute(labels: Iterable[str | bytes], directory: ZoneDirectory) -> dns.name.Name:
    """Return the name of these labels below the directory's zone."""
    given = tuple(label.encode() if isinstance(label, str) else label for label in labels)
    return dns.name.Name(given + directory.labels + ROOT)


def texts(ttl_s: int, *strings: str) -> Records:
    return Records([_txt(IN, TXT, [string.encode()[:255] for string in strings])], ttl_s, [])


def empty(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
    return NOTHING


def one_address(address: str, ttl_s: int) -> Read:
    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        record = address_record(address)
        return Records([record], ttl_s, []) if record.rdtype == rdtype else NOTHING

    return read


def soa(directory: ZoneDirectory, mailbox: dns.name.Name, serial: int) -> dns.rdata.Rdata:
    """Return the SOA. Its minimum and its TTL are the same, so every negative answer is cached equally long.

    That is what RFC 2308 §3 makes of the two: whichever is less.
    """
    times = (REFRESH_S, RETRY_S, EXPIRE_S, directory.negative_ttl_s)
    record: dns.rdata.Rdata = _soa_record(IN, SOA, absolute(["ns"], directory), mailbox, serial, *times)
    return record


def apex(directory: ZoneDirectory, zone: ZoneApex, more: Read) -> Read:
    """Return the apex of a zone: SOA and NS, and other types from `more`."""

    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype == SOA:
            return Records([zone.soa()], directory.negative_ttl_s, [])
        if rdtype == NS:
            server = absolute(["ns"], directory)
            address = Extra(server, address_record(directory.nameserver), directory.ttl_s)
            return Records([_ns(IN, NS, server)], directory.ttl_s, [address])
        return more(rdtype, limits, rng)

    return read
