"""The nodes of a zone. A node is a name with its records. Pure."""

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
from dns.rcode import REFUSED, SERVFAIL
from dns.rdataclass import IN
from dns.rdatatype import AAAA, NS, SOA, TXT, A, RdataType

from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.srv_answers import Choose

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
    """The largest number of tasks in an answer: `addresses` in A and AAAA answers, `services` in SRV answers,
    `pointers` in PTR answers.

    `whole`: whether address answers contain all tasks instead of a random sample.
    """

    addresses: int
    services: int
    pointers: int
    whole: bool = False


class Extra(NamedTuple):
    """An address record (A or AAAA) for the additional section of a DNS answer."""

    name: dns.name.Name
    rdata: dns.rdata.Rdata
    ttl_s: int


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one type at a node, and for how many seconds clients may cache them. `extra`: further address
    records.
    """

    rdatas: list[dns.rdata.Rdata]
    ttl_s: int
    extra: list[Extra]


NOTHING = Records([], 0, [])
Read = Callable[[RdataType, AnswerLimits, Random], Records]  # returns the records of a type


@dataclass(frozen=True, slots=True)
class ZoneApex:
    """The apex of a zone (its top name), and a function that returns the zone's current SOA record."""

    apex: dns.name.Name
    soa: Callable[[], dns.rdata.Rdata]


@dataclass(frozen=True, slots=True)
class ZoneNode:
    """A name in a zone. If `exists` is false, the answer is NXDOMAIN.

    `least`: the minimum size of all its SRV records together, in octets. `task_bytes`: the approximate size of the SRV
    records of one task, in octets. `services`: for a name that may have many tasks, a function that chooses the tasks
    of an SRV answer.
    """

    zone: ZoneApex
    exists: bool
    read: Read
    least: int = 0
    task_bytes: int = 0
    services: Choose | None = None


class OutsideZones(Exception):
    """The error for a name that is not in a zone of this resolver. The client gets the answer REFUSED."""

    rcode = REFUSED


class NotLoaded(Exception):
    """The error for a name whose cell is not loaded yet. The client gets the answer SERVFAIL, and asks again later."""

    rcode = SERVFAIL


@lru_cache(maxsize=65_536)
def address_record(address: str) -> dns.rdata.Rdata:
    """Return the A or AAAA record of an IP address. Raises `ValueError` for text that is not an IP address."""
    four = ipaddress.ip_address(address).version == 4
    record: dns.rdata.Rdata = _a(IN, A, address) if four else _aaaa(IN, AAAA, address)
    return record


def absolute(labels: Iterable[str | bytes], directory: ZoneDirectory) -> dns.name.Name:
    """Return the absolute name that consists of these labels and of the name of the directory's zone."""
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
    """Return the SOA record of a zone.

    `mailbox`: the administrator's mail address as a name. `serial`: the serial of the zone.
    """
    times = (REFRESH_S, RETRY_S, EXPIRE_S, directory.negative_ttl_s)
    record: dns.rdata.Rdata = _soa_record(IN, SOA, absolute(["ns"], directory), mailbox, serial, *times)
    return record


def apex(directory: ZoneDirectory, zone: ZoneApex, more: Read) -> Read:
    """Return a function that reads the records of a zone's apex by type.

    The returned function builds SOA and NS records itself. For all other types, it calls the function `more`.
    """

    def read(rdtype: RdataType, limits: AnswerLimits, rng: Random) -> Records:
        if rdtype == SOA:
            return Records([zone.soa()], directory.negative_ttl_s, [])
        if rdtype == NS:
            server = absolute(["ns"], directory)
            address = Extra(server, address_record(directory.nameserver), directory.ttl_s)
            return Records([_ns(IN, NS, server)], directory.ttl_s, [address])
        return more(rdtype, limits, rng)

    return read
