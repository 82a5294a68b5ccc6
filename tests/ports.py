"""Free TCP and UDP ports on loopback, for servers that tests start as other processes.

A port that the kernel chooses for `bind(…, 0)` may be taken again before the server listens, because any outgoing
connection of this machine can get it. The ports of this module lie below the range of outgoing connections.
"""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_FIRST, _BEHIND = 10_000, 20_000  # tasks in tests use ports from 20,000 on
_LEAST = 1_000
_given: set[int] = set()
_random = random.SystemRandom()  # parallel test runs must not draw the same ports


def free_port() -> int:
    """Return a port that is free for TCP and UDP and that this process has not returned before."""
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
