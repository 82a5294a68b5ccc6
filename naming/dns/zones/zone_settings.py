"""What an installation says of its zones, read from settings: reverse zones, CAA records, times. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dns.rdata
import dns.rdtypes.ANY.CAA
from dns.rdataclass import IN
from dns.rdatatype import CAA

from naming.table.reverse import Network

_caa: Any = dns.rdtypes.ANY.CAA.CAA  # untyped in dnspython
# Of the registry of RFC 8659 §7. A tag that no authority knows would forbid nothing, silently.
TAGS = ("issue", "issuewild", "iodef", "issuemail", "issuevmc", "contactemail", "contactphone")
_RECORD = re.compile(r'\s*(\d{1,3})\s+([A-Za-z0-9]+)\s+(?:"([^"]*)"|([^\s";]+))\s*(?:[;\n]|$)')
MOST_TTL_S = 86_400  # as of jobs
_EXAMPLE = 'give records such as 0 issue "ca.example", separated by ;'


class InvalidZones(ValueError):
    """A setting of zones that can't be read; the text names it and says what to write instead."""


@dataclass(frozen=True, slots=True)
class ZoneSettings:
    """As in `naming.dns.zones.directory.ZoneDirectory`."""

    reverse: tuple[Network, ...]
    caa: tuple[dns.rdata.Rdata, ...]
    ttl_s: int
    negative_ttl_s: int

    @classmethod
    def read(cls, *, reverse: Sequence[str], caa: str, ttl_s: int, negative_ttl_s: int) -> ZoneSettings:
        """Raises `InvalidZones`."""
        for name, seconds in (("BORG_DNS_TTL", ttl_s), ("BORG_DNS_NEGATIVE_TTL", negative_ttl_s)):
            if not 0 <= seconds <= MOST_TTL_S:
                raise InvalidZones(f"{name}={seconds}: give seconds from 0 to {MOST_TTL_S}")
        return cls(read_reverse(reverse), read_caa(caa), ttl_s, negative_ttl_s)


def read_reverse(texts: Sequence[str]) -> tuple[Network, ...]:
    """Of `BORG_DNS_REVERSE`, the word none for none. Networks that touch are put together. Raises `InvalidZones`."""
    if list(texts) == ["none"]:
        return ()
    networks = [_network(text) for text in texts]
    v4 = ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv4Network))
    v6 = ipaddress.collapse_addresses(one for one in networks if isinstance(one, ipaddress.IPv6Network))
    return (*v4, *v6)


def _network(text: str) -> Network:
    try:
        network = ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise InvalidZones(
            f"BORG_DNS_REVERSE: {text!r}: {error}; give networks such as 10.0.0.0/8"
        ) from error
    if network.prefixlen == 0:
        raise InvalidZones(f"BORG_DNS_REVERSE: {text!r} is every address there is; give your own networks")
    return network


def read_caa(text: str) -> tuple[dns.rdata.Rdata, ...]:
    """Of `BORG_DNS_CAA`: `flags tag value`, separated by `;` or lines, a value with blanks or `;` in quotes (RFC 8659).

    Raises `InvalidZones`.
    """
    found: list[dns.rdata.Rdata] = []
    rest = text.strip()
    while rest:
        match = _RECORD.match(rest)
        if match is None:
            raise InvalidZones(f"BORG_DNS_CAA: {rest[:64]!r} can't be read; {_EXAMPLE}")
        flags, tag, quoted, plain = match.groups()
        if int(flags) not in (0, 128):
            raise InvalidZones(
                f"BORG_DNS_CAA: {flags} before {tag!r}: the flags are 0, or 128 for critical; {_EXAMPLE}"
            )
        if tag.lower() not in TAGS:
            raise InvalidZones(f"BORG_DNS_CAA: {tag!r} is no tag; use one of {', '.join(TAGS)}")
        value = (plain if quoted is None else quoted).encode()
        found.append(_caa(IN, CAA, int(flags), tag.lower().encode(), value))
        rest = rest[match.end() :].lstrip("; \t\r\n")
    return tuple(dict.fromkeys(found))
