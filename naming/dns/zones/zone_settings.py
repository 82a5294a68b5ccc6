"""Parses the settings of an installation's zones: reverse zones and CAA records. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from typing import Any

import dns.rdata
import dns.rdtypes.ANY.CAA
from dns.rdataclass import IN
from dns.rdatatype import CAA

from naming.table.reverse import Network

_caa: Any = dns.rdtypes.ANY.CAA.CAA  # untyped in dnspython
# Tags in the registry of RFC 8659 §7. Certificate authorities ignore unknown tags, so a misspelt tag has no effect.
TAGS = ("issue", "issuewild", "iodef", "issuemail", "issuevmc", "contactemail", "contactphone")
_RECORD = re.compile(r'\s*(\d{1,3})\s+([A-Za-z0-9]+)\s+(?:"([^"]*)"|([^\s";]+))\s*(?:[;\n]|$)')
_EXAMPLE = 'give records such as 0 issue "ca.example", separated by ;'


class InvalidZones(ValueError):
    """The error for an invalid setting of zones. The message names the setting and says what to write instead."""


def read_reverse(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return the networks in the setting `BORG_DNS_REVERSE`. Adjacent networks are merged. Raises `InvalidZones` if a
    text is not a network.

    If "none" is the only text, there are no networks.
    """
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
        problem = f"BORG_DNS_REVERSE: {text!r} is not a network ({error}); give networks such as 10.0.0.0/8"
        raise InvalidZones(problem) from error
    if network.prefixlen == 0:
        raise InvalidZones(f"BORG_DNS_REVERSE: {text!r} contains all addresses; give only your own networks")
    return network


def read_caa(text: str) -> tuple[dns.rdata.Rdata, ...]:
    """Return the CAA records in the setting `BORG_DNS_CAA` (RFC 8659). Raises `InvalidZones` if a record is not valid.

    A record has the form `flags tag value`. Each record but the last ends with `;` or a line end. A value that contains
    spaces or `;` must be in quotes.
    """
    found: list[dns.rdata.Rdata] = []
    rest = text.strip()
    while rest:
        match = _RECORD.match(rest)
        if match is None:
            raise InvalidZones(f"BORG_DNS_CAA: {rest[:64]!r} is not a CAA record; {_EXAMPLE}")
        flags, tag, quoted, plain = match.groups()
        if int(flags) not in (0, 128):
            raise InvalidZones(f"BORG_DNS_CAA: flags {flags} before {tag!r} are not valid; give 0, or 128 (critical)")
        if tag.lower() not in TAGS:
            raise InvalidZones(f"BORG_DNS_CAA: {tag!r} is not a tag of CAA records; give one of {', '.join(TAGS)}")
        value = (plain if quoted is None else quoted).encode()
        found.append(_caa(IN, CAA, int(flags), tag.lower().encode(), value))
        rest = rest[match.end() :].lstrip("; \t\r\n")
    return tuple(dict.fromkeys(found))
