"""Limits the open TCP connections, in total and per source, and chooses which connection to close for a new one. Pure.

    new connection ─► its source is at its limit   ─► the connection of this source that was unused longest is closed
                  └─► the total is at its limit    ─► the same, but for the source with the most connections

A connection is not closed while the server answers a query on it. If no connection can be closed, the new one is
rejected. So a source with many connections cannot keep other sources out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from naming.dns.protocol.rate_limit import plain_address

MOST = 512
MOST_A_SOURCE = 64
MOST_A_SECONDARY = 256  # for servers that may transfer zones: one connection per zone, and queries for serials
_SOURCE_6 = 64  # bits: the owner of an IPv6 address usually has the whole network of this prefix


@dataclass(eq=False, slots=True)
class DnsStream:
    """A TCP connection. `busy`: an answer is being built or sent. `used`: a number that grows with each use, so the
    connection that was unused longest has the lowest number. `give_way`: a function that closes the connection.
    """

    source: str
    give_way: Callable[[], None]
    used: int
    busy: bool = False


class Streams:
    """The open TCP connections of a DNS server. Their number is limited, for each source and in total.

    If a connection is closed or rejected because of a limit, the function `note` is called with the name of the limit:
    `source` (for one source) or `all` (in total).
    """

    def __init__(self, note: Callable[[str], None], *, most: int = MOST, most_a_source: int = MOST_A_SOURCE) -> None:
        self._note = note
        self._most, self._most_a_source = most, most_a_source
        self._by_source: dict[str, dict[DnsStream, None]] = {}  # per source, ordered by the last use
        self._number = 0
        self._uses = 0

    def __len__(self) -> int:
        return self._number

    def open(self, address: str, give_way: Callable[[], None], *, secondary: bool = False) -> DnsStream | None:
        """Register a new connection. If a limit is reached, close an idle connection. If no connection is idle, reject
        the new one.

        Return None if the new connection is rejected. `give_way`: a function that closes the new connection.
        """
        source = source_of(address)
        most = MOST_A_SECONDARY if secondary else self._most_a_source
        limit, chosen = "", None
        if len(self._by_source.get(source, ())) >= most:
            limit, chosen = "source", _idlest(self._by_source[source])
        elif self._number >= self._most:
            limit, chosen = "all", self._idlest_of_largest_source()
        if limit:
            self._note(limit)
            if chosen is None:
                return None
            self.close(chosen)
            chosen.give_way()
        stream = DnsStream(source, give_way, self._next())
        self._by_source.setdefault(source, {})[stream] = None
        self._number += 1
        return stream

    def close(self, stream: DnsStream) -> None:
        """Remove a connection that has ended. A second call for the same connection has no effect."""
        mine = self._by_source.get(stream.source, {})
        if stream in mine:
            del mine[stream]
            self._number -= 1
            if not mine:
                del self._by_source[stream.source]

    def answered(self, stream: DnsStream) -> None:
        """Mark a connection as idle, because the answer was sent. Callers set `stream.busy` before they answer."""
        stream.busy, stream.used = False, self._next()
        mine = self._by_source.get(stream.source, {})
        if stream in mine:
            del mine[stream]
            mine[stream] = None

    def _next(self) -> int:
        self._uses += 1
        return self._uses

    def _idlest_of_largest_source(self) -> DnsStream | None:
        idle = [(len(mine), -one.used, one) for mine in self._by_source.values() if (one := _idlest(mine))]
        return max(idle, key=lambda found: found[:2])[2] if idle else None


def _idlest(streams: dict[DnsStream, None]) -> DnsStream | None:
    return next((stream for stream in streams if not stream.busy), None)


def source_of(address: str) -> str:
    """Return the source to which the limit of connections applies: an IPv4 address itself, or the /64 network of an
    IPv6 address.
    """
    read = plain_address(address)
    if read.version == 4:
        return str(read)
    return str(ipaddress.ip_network((read, _SOURCE_6), strict=False))
