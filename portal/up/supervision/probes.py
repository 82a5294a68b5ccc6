"""Health checks, one per kind of process. A check returns None if the process is well, else the reason.

The probes use the wire protocols directly, so each one costs a short connection and no child process.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

Probe = Callable[[], "str | None"]  # a check of one process

_PATIENCE_S = 3.0
# SQLSTATEs of a server that is alive but has no free connection.
_ALIVE_BUT_FULL = frozenset({b"53300"})


def postgres(socket_path: Path) -> str | None:
    """Check whether PostgreSQL accepts a client."""
    options = b"user\0postgres\0database\0postgres\0application_name\0borg-probe\0\0"
    hello = struct.pack("!ii", 8 + len(options), 0x30000) + options
    try:
        with _unix(socket_path) as link:
            link.sendall(hello)
            answer = link.recv(4096)
            if answer[:1] == b"R":
                link.sendall(b"X\0\0\0\4")  # Terminate, else the server logs a lost client
                return None
    except OSError as error:
        return f"no answer on {socket_path}: {error}"
    if answer[:1] != b"E":
        return "the connection was closed without an answer"
    fields = {part[:1]: part[1:] for part in answer[5:].split(b"\0") if part}
    if fields.get(b"C") in _ALIVE_BUT_FULL:
        return None
    return fields.get(b"M", b"rejected").decode(errors="replace")


def redis(socket_path: Path) -> str | None:
    """Check whether Redis answers PING. Redis answers -LOADING while it reads its file."""
    try:
        with _unix(socket_path) as link:
            link.sendall(b"PING\r\n")
            answer = link.recv(200)
    except OSError as error:
        return f"no answer on {socket_path}: {error}"
    return None if answer.startswith(b"+PONG") else answer.decode(errors="replace").strip() or "no answer"


def http_ok(host: str, port: int, path: str) -> str | None:
    """Check whether `GET path` answers 200."""
    connection = http.client.HTTPConnection(host, port, timeout=_PATIENCE_S)
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
    """Check whether the resolver answers a query for the SOA of `name` without SERVFAIL."""
    number = random.getrandbits(16)
    labels = b"".join(bytes((len(part),)) + part.encode() for part in name.rstrip(".").split("."))
    query = struct.pack("!6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 6, 1)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.settimeout(_PATIENCE_S)
            link.connect((host, port))
            link.send(query)
            answer = link.recv(4096)
    except OSError as error:
        return f"no answer on {host}:{port}: {error}"
    if len(answer) < 12 or answer[:2] != query[:2]:
        return f"{host}:{port} sends no DNS answer"
    rcode = answer[3] & 0xF
    return f"the resolver fails (rcode {rcode})" if rcode == 2 else None


def heartbeat(path: Path, longest_s: float) -> str | None:
    """Check whether the file was touched within `longest_s`, for processes without a port."""
    try:
        age_s = time.time() - os.stat(path).st_mtime
    except FileNotFoundError:
        return f"no heartbeat yet in {path}"
    return None if age_s <= longest_s else f"the last heartbeat is {age_s:.0f} s old (limit {longest_s:.0f} s)"


def _unix(path: Path) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(_PATIENCE_S)
    try:
        link.connect(str(path))
    except OSError:
        link.close()
        raise
    return link
