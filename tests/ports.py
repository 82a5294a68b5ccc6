"""Ports of loopback for servers that tests start in processes of their own.

A port that the kernel gave for `bind(…, 0)` is free for that moment alone: until the server is up, seconds later, any
connection of this machine may get it as its own end. These lie below the range that connections get theirs from.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_FIRST, _BEHIND = 10_000, 20_000  # tasks in tests have theirs from 20,000 on
_LEAST = 1_000
_given: set[int] = set()
_random = random.SystemRandom()  # others test beside us, and must not come to the same


def free_port() -> int:
    """One that nobody has, neither by TCP nor by UDP, and that this process was not given before."""
    of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    behind = min(_BEHIND, of_connections) if of_connections > _FIRST + _LEAST else _BEHIND
    for port in _random.sample(range(_FIRST, behind), _LEAST):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise AssertionError(f"none of {_LEAST} ports from {_FIRST} on is free")


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        udp.bind(("127.0.0.1", port))
        tcp.bind(("127.0.0.1", port))
        return True
    return False
