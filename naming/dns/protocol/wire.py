"""Encodes DNS records as bytes, without the name (the owner) at their beginning. Pure.

    type, class, TTL, length of the data, data; names in the data are not compressed

`naming.dns.zones.records` builds the same records with the library dnspython. Tests compare the records of both.
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
    """Return the DNS record with this type, TTL and data as bytes, without its owner name."""
    return FIXED.pack(rdtype, _IN, ttl_s, len(rdata)) + rdata


@lru_cache(maxsize=65_536)
def address(text: str, ttl_s: int) -> bytes:
    """Return the A or AAAA record for the IP address `text`, which must be valid. Equal calls return the same
    object.
    """
    if ":" in text:
        return data(AAAA_TYPE, ttl_s, socket.inet_pton(socket.AF_INET6, text))
    return data(A_TYPE, ttl_s, socket.inet_aton(text))


def texts(ttl_s: int, strings: Iterable[str]) -> bytes:
    """Return one TXT record with these strings. Each string is cut to 255 octets."""
    return data(TXT_TYPE, ttl_s, b"".join(_string(text.encode()[:255]) for text in strings))


def srv(ttl_s: int, weight: int, port: int, target: bytes) -> bytes:
    """Return an SRV record with priority 0. `target`: the name of the target as bytes (see `name`), including the zero
    octet or the compression pointer at its end.
    """
    return _SRV.pack(SRV_TYPE, _IN, ttl_s, 6 + len(target), 0, weight, port) + target


@lru_cache(maxsize=65_536)
def label(text: str) -> bytes:
    return _string(text.encode())


def name(labels: Iterable[str | bytes]) -> bytes:
    """Return the labels of a name as bytes, as in a DNS message. The caller adds the end of the name: a zero octet, or
    a compression pointer.
    """
    return b"".join(_string(each) if isinstance(each, bytes) else label(each) for each in labels)


def _string(octets: bytes) -> bytes:
    return bytes((len(octets),)) + octets
