"""Records as bytes: everything after a record's owner, as in transferred zones. Pure.

    type, class, TTL, length of the data, data; names in the data are whole

`naming.dns.zones.records` decides which records a name has. Tests compare the two for zones of all kinds.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from functools import lru_cache

from dns.rdatatype import AAAA, SRV, TXT, A

_FIXED = struct.Struct("!HHIH")
_SRV = struct.Struct("!HHIHHHH")
_IN = 1
# Enums are slow to compare and to pack.
A_TYPE, AAAA_TYPE, SRV_TYPE, TXT_TYPE = int(A), int(AAAA), int(SRV), int(TXT)


def data(rdtype: int, ttl_s: int, rdata: bytes) -> bytes:
    return _FIXED.pack(rdtype, _IN, ttl_s, len(rdata)) + rdata


@lru_cache(maxsize=65_536)
def address(text: str, ttl_s: int) -> bytes:
    """Return the parsed form of a valid address. It is the same object each time, so it is hashed once."""
    if ":" in text:
        return data(AAAA_TYPE, ttl_s, socket.inet_pton(socket.AF_INET6, text))
    return data(A_TYPE, ttl_s, socket.inet_aton(text))


def texts(ttl_s: int, strings: Iterable[str]) -> bytes:
    return data(TXT_TYPE, ttl_s, b"".join(_string(text.encode()[:255]) for text in strings))


def srv(ttl_s: int, weight: int, port: int, target: bytes) -> bytes:
    return _SRV.pack(SRV_TYPE, _IN, ttl_s, 6 + len(target), 0, weight, port) + target


@lru_cache(maxsize=65_536)
def label(text: str) -> bytes:
    return _string(text.encode())


def name(labels: Iterable[str | bytes]) -> bytes:
    """Return a name in wire form without its end: the root, or a pointer to the rest."""
    return b"".join(_string(each) if isinstance(each, bytes) else label(each) for each in labels)


def _string(octets: bytes) -> bytes:
    return bytes((len(octets),)) + octets
