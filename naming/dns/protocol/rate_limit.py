"""Limits the rate of UDP queries per network, because the source address of a UDP query may be forged. Pure.

Above the rate, every second query gets an empty answer with the TC bit, so that a real client asks again over TCP. The
other queries get no answer. So the real owner of a forged address does not receive many answers. Some networks have no
limit. The caller does not limit clients with a valid cookie.
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
    """Return the IP address that `text` contains. An IPv4 address that is written as an IPv6 address becomes an IPv4
    address.
    """
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
        """Count a query from `address`, and return how to handle it. `now`: seconds of a monotonic clock."""
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
