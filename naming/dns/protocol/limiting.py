"""Limits the rate of UDP queries per network, because their source address may be forged. Pure.

Above the rate, every second query gets an empty answer with the TC bit, so that a real client retries over TCP. The
other queries are dropped. So a victim, whose address was forged, receives at most this rate of answers. Some networks
are exempt, and the caller exempts clients with a valid cookie.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import Enum

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Private networks, in which the operator can find the sender of forged queries.
PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
)
PREFIX_4, PREFIX_6 = 24, 56  # bits; addresses with the same prefix count as one network
_MOST_REMEMBERED = 65_536  # addresses


def plain_address(text: str) -> Address:
    """Return the parsed address. An IPv4 address that is mapped into IPv6 becomes an IPv4 address."""
    address = ipaddress.ip_address(text.split("%", 1)[0])
    return getattr(address, "ipv4_mapped", None) or address


class RateVerdict(Enum):
    ANSWER = "answer"
    TRUNCATE = "truncate"
    DROP = "drop"


class RateLimit:
    """A limit on how many answers per second the resolver sends to one network of clients."""

    def __init__(self, rate: int, exempt: Iterable[Network] = PRIVATE) -> None:
        self._rate = rate
        self._exempt = tuple(exempt)
        self._networks: dict[str, str] = {}  # address -> network, empty for an exempt address
        self._counts: dict[str, int] = {}
        self._second = 0

    def verdict(self, address: str, now: float) -> RateVerdict:
        """Count a query and return how to handle it. `now`: seconds of a monotonic clock."""
        network = self._networks.get(address)
        if network is None:
            network = self._remember(address)
        if not network:
            return RateVerdict.ANSWER
        if int(now) != self._second:
            self._second = int(now)
            self._counts.clear()
        count = self._counts[network] = self._counts.get(network, 0) + 1
        if count <= self._rate:
            return RateVerdict.ANSWER
        return RateVerdict.TRUNCATE if count % 2 else RateVerdict.DROP

    def _remember(self, address: str) -> str:
        if len(self._networks) >= _MOST_REMEMBERED:
            self._networks.clear()
        read = plain_address(address)
        if any(read in network for network in self._exempt if network.version == read.version):
            network = ""
        else:
            bits = PREFIX_4 if read.version == 4 else PREFIX_6
            network = str(ipaddress.ip_network((read, bits), strict=False))
        self._networks[address] = network
        return network
