"""A latency-sensitive workload that runs as one task: a server and its client. The script needs only Python.

    request_server.py RATE_PER_S BLOCKS

The client sends requests at a fixed rate, and the server hashes BLOCKS of 1 KiB for each of them. A response time
begins when the request is due, so it includes the delay of a client that wakes up late, or of an earlier slow request.
Once per second the script prints a line `[[due, response time in ms], …]`, with `due` in seconds of CLOCK_MONOTONIC.
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
