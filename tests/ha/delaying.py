"""Delay all packets of a host: `python delaying.py DEVICE DEVICE SECONDS` carries frames between two network devices.

The kernel has no netem on every machine. This program reads each frame at one device and writes it to the other one
after a constant time, in both directions. It runs in the network of the switch, and prints a line when it is ready. It
uses only the standard library, so that it starts fast.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque

_ALL_PROTOCOLS = 0x0003
_OUTGOING = 4  # a frame that this host sends itself
_SOL_PACKET, _VNET_HEADER = 263, 15
_LARGEST, _BUFFER = 70_000, 8_000_000


def main(one: str, other: str, seconds: str) -> None:
    """Carry frames until the process is killed."""
    devices = [_device(one), _device(other)]
    waiting: list[deque[tuple[float, bytes]]] = [deque(), deque()]  # (when it is due, frame) that came from a device
    print("ready", flush=True)
    while True:
        now = time.monotonic()
        due = [queue[0][0] for queue in waiting if queue]
        readable, _, _ = select.select(devices, [], [], max(0.0, min(due) - now) if due else None)
        now = time.monotonic()
        for device in readable:
            frame, address = device.recvfrom(_LARGEST)
            if address[2] != _OUTGOING:
                waiting[devices.index(device)].append((now + float(seconds), frame))
        for came_from, queue in enumerate(waiting):
            while queue and queue[0][0] <= now:
                try:
                    devices[1 - came_from].send(queue.popleft()[1])
                except OSError:  # the frame is lost, as on a full line
                    continue


def _device(name: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    # Frames carry a header for checksums and segments that the network card would still have to make.
    made.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    made.bind((name, 0))
    return made


if __name__ == "__main__":
    main(*sys.argv[1:])
