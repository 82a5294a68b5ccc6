"""Health checks, one per kind of process. Each check returns None if the process is well, or else the problem.

A check imports its client library only when it runs, so that the start of the processes does not wait for the import.
"""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

Probe = Callable[[], "str | None"]  # a check of one process

_TIMEOUT_S = 3


def postgres(url: str) -> str | None:
    """Return None if PostgreSQL is up, even if all its connections are in use, or else the problem."""
    from psycopg import pq

    answer = pq.PGconn.ping(f"{url}&connect_timeout={_TIMEOUT_S}".encode())
    if answer == pq.Ping.REJECT:
        return "PostgreSQL accepts no clients, because it is starting or stopping"
    return None if answer == pq.Ping.OK else "PostgreSQL does not answer"


def redis(url: str) -> str | None:
    """Return None if Redis at `unix:///path` answers PING, or else the problem.

    While Redis loads its data file, it answers PING with an error. This counts as a problem.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_TIMEOUT_S)
            link.connect(url.removeprefix("unix://"))
            link.sendall(b"PING\r\n")
            answer = link.recv(200).decode(errors="replace").strip()
    except OSError as error:
        return f"Redis does not answer PING: {error}"
    return None if answer == "+PONG" else f"Redis does not answer PING: {answer}"


def http_ok(host: str, port: int, path: str) -> str | None:
    """Return None if the answer to `GET path` has the status 200, or else the problem."""
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", path, headers={"User-Agent": "borg-up"})
        answer = connection.getresponse()
        body = answer.read(300)
    except (OSError, http.client.HTTPException) as error:
        return f"no answer on http://{host}:{port}{path}: {error}"
    finally:
        connection.close()
    if answer.status == 200:
        return None
    return f"{path} answers {answer.status}: {body.decode(errors='replace').strip()}"


def dns_answers(host: str, port: int, name: str) -> str | None:
    """Return None if the resolver answers an SOA query for `name` without SERVFAIL, or else the problem."""
    import dns.exception
    import dns.inet
    import dns.message
    import dns.query
    import dns.rcode

    try:
        with socket.socket(dns.inet.af_for_address(host), socket.SOCK_DGRAM) as link:
            link.setblocking(False)
            link.connect((host, port))  # so that the kernel reports a closed port at once
            query = dns.message.make_query(name, "SOA")
            answer = dns.query.udp(query, host, timeout=_TIMEOUT_S, port=port, sock=link)
    except (OSError, dns.exception.DNSException) as error:
        return f"no answer on {host}:{port}: {error}"
    return "the resolver answers SERVFAIL" if answer.rcode() == dns.rcode.SERVFAIL else None


def heartbeat(path: Path, longest_s: float) -> str | None:
    """Return None if the file `path` was touched in the last `longest_s` seconds, or else the problem."""
    try:
        age_s = time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return f"no heartbeat in {path} yet"
    return None if age_s <= longest_s else f"the last heartbeat is {age_s:.0f} s old; the limit is {longest_s:.0f} s"
