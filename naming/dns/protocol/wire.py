"""Encodes DNS records as bytes, without the name (the owner) at their beginning. Pure.

    type, class, TTL, length of the data, data; names in the data are not compressed

`naming.dns.zones.records` builds the same records with dnspython. Tests compare the two for zones of all kinds.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from functools import lru_cache

from dns.rdatatype import AAAA, SRV, TXT, A

HEADER = struct.Struct("!HHHHHH")  # of a message
FIXED = struct.Struct("!HHIH")  # of a record, after its owner
_SRV = struct.Struct("!HHIHHHH")
_IN = 1
# Enums are slow to compare and to pack.
A_TYPE, AAAA_TYPE, SRV_TYPE, TXT_TYPE = int(A), int(AAAA), int(SRV), int(TXT)


def data(rdtype: int, ttl_s: int, rdata: bytes) -> bytes:
    """Return a DNS record of any type in wire format, without the name of its owner at the beginning."""
    return FIXED.pack(rdtype, _IN, ttl_s, len(rdata)) + rdata


@lru_cache(maxsize=65_536)
def address(text: str, ttl_s: int) -> bytes:
    """Return the A or AAAA record of a valid address. Calls with the same arguments return the same object."""
    if ":" in text:
        return data(AAAA_TYPE, ttl_s, socket.inet_pton(socket.AF_INET6, text))
    return data(A_TYPE, ttl_s, socket.inet_aton(text))


def texts(ttl_s: int, strings: Iterable[str]) -> bytes:
    """Return one TXT record with these strings, each cut to 255 octets."""
    return data(TXT_TYPE, ttl_s, b"".join(_string(text.encode()[:255]) for text in strings))


def srv(ttl_s: int, weight: int, port: int, target: bytes) -> bytes:
    """Return an SRV record with priority 0. `target`: a name in wire form."""
    return _SRV.pack(SRV_TYPE, _IN, ttl_s, 6 + len(target), 0, weight, port) + target


@lru_cache(maxsize=65_536)
def label(text: str) -> bytes:
    return _string(text.encode())


def name(labels: Iterable[str | bytes]) -> bytes:
    """Return labels in wire form. The caller appends the end of the name: the root, or a pointer."""
    return b"".join(_string(each) if isinstance(each, bytes) else label(each) for each in labels)


def _string(octets: bytes) -> bytes:
    return bytes((len(octets),)) + octets
