"""Reverse DNS names: the reverse zones of IP networks, and the names that have a given address. Pure.

    address        reverse name
    192.0.2.1      1.2.0.192.in-addr.arpa                   one label per octet
    2001:db8::1    1.0.0.0. … .8.b.d.0.1.0.0.2.ip6.arpa     one label per 4 bits

A *path* is an address as bytes, one byte per label. The bytes are in the order of the address, not of the reverse name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from itertools import islice

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Labels = tuple[str, ...]  # labels of a name below its cell
Path = bytes

V4, V6 = (b"in-addr", b"arpa"), (b"ip6", b"arpa")
_OCTETS = {str(number).encode(): bytes([number]) for number in range(256)}
_NIBBLES = {f"{number:x}".encode(): bytes([number]) for number in range(16)}
_DEPTHS: dict[tuple[bytes, ...], int] = {V4: 4, V6: 32}  # number of labels of a complete address


class AddressIndex:
    """An index of IP addresses. For each address it contains the names that have this address (its *owners*). Changes
    take O(1).

    The index also contains a tree of paths, which is only as deep as needed to distinguish the addresses. A leaf
    contains the only address below its path. Every other node contains the number of addresses below its path.
    """

    __slots__ = ("_below", "_owners")

    def __init__(self) -> None:
        self._owners: dict[Path, Labels | set[Labels]] = {}
        self._below: dict[bytes, Path | int] = {}  # by `_key`

    def add(self, address: str, owner: Labels) -> None:
        """Add `owner` as an owner of an address. If `address` is not an IP address, do nothing."""
        path = path_of(address)
        if path is None:
            return
        known = self._owners.get(path)
        if known is None:
            self._owners[path] = owner
            self._put(path)
        elif isinstance(known, set):
            known.add(owner)
        elif known != owner:
            self._owners[path] = {known, owner}

    def discard(self, address: str, owner: Labels) -> None:
        """Remove `owner` from the owners of an address. If it is not an owner, do nothing."""
        path = path_of(address)
        known = None if path is None else self._owners.get(path)
        if path is None or known is None:
            return
        if isinstance(known, set):
            known.discard(owner)
            if len(known) == 1:
                (self._owners[path],) = known
        elif known == owner:
            del self._owners[path]
            self._take(path)

    def owners(self, path: Path, most: int) -> list[Labels]:
        """Return at most `most` owners of the address that this path stands for."""
        known = self._owners.get(path)
        if known is None:
            return []
        return list(islice(known, most)) if isinstance(known, set) else [known]

    def below(self, path: Path, depth: int) -> bool:
        """Return whether any address that has an owner begins with this path. `depth`: the number of labels of a
        complete address, 4 for IPv4 and 32 for IPv6.
        """
        for length in range(1, len(path) + 1):
            held = self._below.get(_key(path[:length], depth))
            if held is None:
                return False
            if isinstance(held, bytes):
                return held.startswith(path)
        return True

    def _put(self, path: Path) -> None:
        depth = len(path)
        for length in range(1, depth + 1):
            key = _key(path[:length], depth)
            held = self._below.get(key)
            if held is None:
                self._below[key] = path
                return
            if isinstance(held, int):
                self._below[key] = held + 1
                continue
            self._below[key] = 2
            self._below[_key(held[: length + 1], depth)] = held

    def _take(self, path: Path) -> None:
        depth = len(path)
        for length in range(1, depth + 1):
            key = _key(path[:length], depth)
            held = self._below[key]
            if isinstance(held, bytes) or held == 1:
                del self._below[key]
                if isinstance(held, bytes):
                    return
            else:
                self._below[key] = held - 1


def _key(path: Path, depth: int) -> bytes:
    """Return the dictionary key of a path. IPv4 and IPv6 paths have different keys. `depth`: the number of labels of a
    complete address, 4 for IPv4 and 32 for IPv6.
    """
    return path if depth == 4 else b"6" * 5 + path


def path_of(address: str) -> Path | None:
    """Return an IP address as bytes: one byte for each octet (IPv4) or for each 4 bits (IPv6), in their order. Return
    None if `address` is not an IP address.
    """
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return None
    if ip.version == 4:
        return ip.packed
    return bytes(nibble for octet in ip.packed for nibble in (octet >> 4, octet & 15))


def path_of_labels(labels: tuple[bytes, ...]) -> tuple[Path, int] | None:
    """Return the path of a reverse name, and the number of labels of a complete address: 4 for IPv4, 32 for IPv6.

    `labels`: the labels of the name, in lower case, without the empty label of the root. Return None if no address can
    have this name or a name below it.
    """
    top = labels[-2:]
    depth = _DEPTHS.get(top)
    if depth is None or len(labels) - 2 > depth:
        return None
    bytes_of = _OCTETS if depth == 4 else _NIBBLES
    found = [bytes_of.get(label) for label in reversed(labels[:-2])]
    return None if None in found else (b"".join(each for each in found if each is not None), depth)


def apexes(networks: Iterable[Network]) -> frozenset[tuple[bytes, ...]]:
    """Return the names of the reverse zones of these networks. Each name is a tuple of labels, without the empty label
    of the root.

    A network whose prefix ends within a label has several zones. For example, 172.16.0.0/12 has 16 zones.
    """
    found = set()
    for network in networks:
        step, top = (8, V4) if network.version == 4 else (4, V6)
        aligned = -(-network.prefixlen // step) * step
        for part in network.subnets(new_prefix=aligned):
            path = path_of(str(part.network_address))
            assert path is not None
            text = (str(each) if top == V4 else f"{each:x}" for each in reversed(path[: aligned // step]))
            found.add((*(label.encode() for label in text), *top))
    return frozenset(found)
