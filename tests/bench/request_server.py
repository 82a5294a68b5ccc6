"""A latency-sensitive workload: a server, and its client, as one task. Run as a script; it needs nothing but Python.

Requests are due at a fixed rate, whether or not earlier ones were answered (as users are); the server spends a fixed
amount of work on each. A request's latency runs from the moment it was due, so that a client that wakes late, and
anyone who waits behind a slow request, count too. Once a second a line: `[[due, latency in ms], …]`; `due` in seconds
of CLOCK_MONOTONIC.

    request_server.py RATE_PER_S BLOCKS      BLOCKS of 1 KiB are hashed for each request
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import time


def serve(connection: socket.socket, blocks: int) -> None:
    block = b"x" * 1024
    while connection.recv(1):
        digest = hashlib.sha256()
        for _ in range(blocks):
            digest.update(block)
        connection.send(digest.digest()[:1])


def ask(connection: socket.socket, rate_per_s: float) -> None:
    due, told_at, answered = time.monotonic() + 0.1, 0.0, []
    while True:
        wait_s = due - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        connection.send(b"?")
        connection.recv(1)
        now = time.monotonic()
        answered.append((round(due, 6), round(1000 * (now - due), 4)))
        due += 1 / rate_per_s
        if now - told_at >= 1.0:
            print(json.dumps(answered), flush=True)
            answered, told_at = [], now


if __name__ == "__main__":
    client, server = socket.socketpair()
    if os.fork() == 0:
        client.close()
        serve(server, int(sys.argv[2]))
        os._exit(0)
    server.close()
    ask(client, float(sys.argv[1]))
