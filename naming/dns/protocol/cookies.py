"""DNS cookies (RFC 7873, RFC 9018): a client that returns our cookie has not forged its address. Pure.

    server cookie = version, three zeros, time in s (4 octets), keyed hash of all that and of the client (8 octets)

RFC 9018 recommends SipHash. The hash is BLAKE2 instead, because Python includes it and only this server reads it.
Processes that share a port share the key.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

CLIENT_SIZE, SERVER_SIZE = 8, 16
OLDEST_S, NEWEST_S = 3_600, 300  # of a valid cookie; clocks of our processes differ a little
_FRESH = b"\1\0\0\0"
# What an OPT record with nothing but both cookies ends with: length of its options, code and length of this one.
_TAIL = b"\0\x1c\0\x0a\0\x18"


class DnsClient(NamedTuple):
    """The client that asks. `address`: 4 or 16 octets; `now`: seconds since the epoch."""

    address: bytes
    now: int


class Cookies:
    """Creates and checks cookies with a key of 16 to 64 octets."""

    def __init__(self, key: bytes) -> None:
        if not 16 <= len(key) <= 64:
            raise ValueError(f"a key of {len(key)} octets; 16 to 64 are wanted")
        self._key = key

    @classmethod
    def from_secret(cls, secret: str) -> Cookies:
        """Derive the key from the installation's secret, so that all its processes agree."""
        return cls(hashlib.blake2b(b"dns cookies " + secret.encode(), digest_size=32).digest())

    def server(self, cookie: bytes, client: DnsClient) -> bytes:
        """The server cookie for a client's own cookie."""
        fresh = _FRESH + client.now.to_bytes(4)
        return fresh + self._hash(cookie, fresh, client.address)

    def believed(self, cookie: bytes, server: bytes, client: DnsClient) -> bool:
        """Return whether this server cookie was recently issued to this client."""
        if len(cookie) != CLIENT_SIZE or len(server) != SERVER_SIZE or server[:4] != _FRESH:
            return False
        made = int.from_bytes(server[4:8])
        if not client.now - OLDEST_S <= made <= client.now + NEWEST_S:
            return False
        return hmac.compare_digest(server[8:], self._hash(cookie, server[:8], client.address))

    def _hash(self, cookie: bytes, fresh: bytes, address: bytes) -> bytes:
        return hashlib.blake2b(cookie + fresh + address, digest_size=8, key=self._key).digest()


def at_the_end(query: bytes) -> tuple[bytes, bytes] | None:
    """Return both cookies of a message whose last record is EDNS with only them, as clients send it; None for
    others.
    """
    both = CLIENT_SIZE + SERVER_SIZE
    if query[-both - len(_TAIL) : -both] != _TAIL:
        return None
    return query[-both:-SERVER_SIZE], query[-SERVER_SIZE:]
