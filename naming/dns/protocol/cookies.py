"""DNS cookies (RFC 7873, RFC 9018). If a client sends back a valid server cookie, its address is not forged. Pure.

    server cookie = version, three zeros, time in s (4 octets), keyed hash of these fields and of the client (8 octets)

RFC 9018 recommends the hash function SipHash. This module uses BLAKE2 instead, because Python includes it, and because
only this server reads the hash. Processes that share a port have the same key.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import NamedTuple

CLIENT_SIZE, SERVER_SIZE = 8, 16
OLDEST_S, NEWEST_S = 3_600, 300  # limits on the age of a valid cookie; the clocks of the processes differ a little
_FRESH = b"\1\0\0\0"  # version and three zeros
# The octets before the cookies in an OPT record with only a cookie option: length of all options, code and length.
_TAIL = b"\0\x1c\0\x0a\0\x18"


class DnsClient(NamedTuple):
    """The client of a query, and the time of the query. `address`: 4 or 16 octets; `now`: seconds since the epoch."""

    address: bytes
    now: int


class Cookies:
    """Creates and checks server cookies with one secret key. The key has 16 to 64 octets."""

    def __init__(self, key: bytes) -> None:
        if not 16 <= len(key) <= 64:
            raise ValueError(f"the key of the DNS cookies has {len(key)} octets; use 16 to 64 octets")
        self._key = key

    @classmethod
    def from_secret(cls, secret: str) -> Cookies:
        """Return an object with a key that is computed from the installation's secret `secret`. All processes get the
        same key.
        """
        return cls(hashlib.blake2b(b"dns cookies " + secret.encode(), digest_size=32).digest())

    def server(self, cookie: bytes, client: DnsClient) -> bytes:
        """Return a server cookie for a client that sent the client cookie `cookie`."""
        fresh = _FRESH + client.now.to_bytes(4)
        return fresh + self._hash(cookie, fresh, client.address)

    def believed(self, cookie: bytes, server: bytes, client: DnsClient) -> bool:
        """Return whether this server recently created the server cookie `server` for this client.

        `cookie`: the client cookie that the client sent with `server`.
        """
        if len(cookie) != CLIENT_SIZE or len(server) != SERVER_SIZE or server[:4] != _FRESH:
            return False
        made = int.from_bytes(server[4:8])
        if not client.now - OLDEST_S <= made <= client.now + NEWEST_S:
            return False
        return hmac.compare_digest(server[8:], self._hash(cookie, server[:8], client.address))

    def _hash(self, cookie: bytes, fresh: bytes, address: bytes) -> bytes:
        return hashlib.blake2b(cookie + fresh + address, digest_size=8, key=self._key).digest()


def at_the_end(query: bytes) -> tuple[bytes, bytes] | None:
    """Return the client cookie and the server cookie at the end of a message. Return None if the message does not end
    with these two cookies.
    """
    both = CLIENT_SIZE + SERVER_SIZE
    if query[-both - len(_TAIL) : -both] != _TAIL:
        return None
    return query[-both:-SERVER_SIZE], query[-SERVER_SIZE:]
