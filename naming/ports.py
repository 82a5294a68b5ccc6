"""The port of a resolver: taken by one installation alone, however many of its processes share it, and who has it."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

ANY_PORT_TRIES = 20  # what is free for datagrams may be taken by some connection
RECEIVE_BUFFER = 4 * 2**20  # bytes; absorbs a burst while a slice of news is applied
# For one that is just ending: its workers have `naming.processes.STOP_S`.
PATIENCE_S = 5.0
_AGAIN_S = 0.05
_LISTENS = ("07", "0A")  # states of a datagram's socket and of a stream's in /proc/net


class NoPort(OSError):
    """A port can't be had; the text names the setting, and who has it where that can be seen."""


@contextmanager
def wanted(setting: str, host: str, port: int) -> Iterator[None]:
    """What is raised inside because of this port says so. Raises `NoPort`."""
    try:
        yield
    except NoPort:
        raise
    except OSError as error:
        raise _no_port(setting, host, port, error) from error


@contextmanager
def reserved(host: str, port: int, *, patience_s: float = PATIENCE_S) -> Iterator[int]:
    """A port for this process and those it forks: the one wished or, for 0, one that is free for UDP and TCP.

    Workers share it (SO_REUSEPORT), which would let a second installation of the same user have a part of the questions
    too. So it is looked at as one that is not shared, and who looks holds a lock until the end: of two that start at
    once one is refused. Whoever has it is given `patience_s` seconds to end. Raises `NoPort`.
    """
    if port:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
            _take(lock, host, port, patience_s)
            yield port
        return
    with wanted("BORG_DNS_PORT", host, port):
        datagrams, streams = both_bound(host, port, tcp=True, shared=True)
    free = int(datagrams.getsockname()[1])
    datagrams.close()  # or questions would be lost to it
    assert streams is not None
    with streams:  # bound, not listening
        yield free


def _take(lock: socket.socket, host: str, port: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    told = False
    while True:
        try:
            with wanted("BORG_DNS_PORT", host, port):
                if not lock.getsockname():
                    lock.bind(f"\0borg-resolver-{host}-{port}")  # of the network's namespace, as ports are
                bound(host, port, socket.SOCK_DGRAM, shared=False).close()
            return
        except NoPort as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
            if not told:
                log.warning("waiting for the port", reason=error.strerror, patience_s=patience_s)
                told = True
            time.sleep(_AGAIN_S)


def _no_port(setting: str, host: str, port: int, error: OSError) -> NoPort:
    if error.errno == errno.EACCES:
        told = "this user may not listen there; choose one above 1023"
    elif error.errno == errno.EADDRINUSE:
        found = holder(port, "udp") or holder(port, "tcp")
        told = f"it is taken{f' by {found}' if found else ''}; stop that, or choose another port"
    else:
        told = f"{error.strerror or error}"
    return NoPort(error.errno, f"{setting}={port} on {host} can't be had: {told}")


def holder(port: int, protocol: str) -> str | None:
    """Who listens there, whatever the address: `process 42 (nginx)`; None where this user may not see it."""
    inodes = set()
    for table in (protocol, f"{protocol}6"):
        with suppress(FileNotFoundError):  # a machine without IPv6
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port and fields[3] in _LISTENS:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for number in sorted(int(process.name) for process in Path("/proc").glob("[0-9]*")):
        process = Path(f"/proc/{number}")
        with suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                if os.readlink(descriptor) in inodes:
                    return f"process {number} ({_called(process)})"
    return None


def _called(process: Path) -> str:
    """Of a module of Python which one it is; arguments are nobody's business."""
    arguments = (process / "cmdline").read_text(errors="replace").split("\0")
    module = f" -m {arguments[2]}" if arguments[1:2] == ["-m"] and len(arguments) > 2 else ""
    return (process / "comm").read_text().strip() + module


def bound(host: str, port: int, kind: socket.SocketKind, *, shared: bool = True) -> socket.socket:
    """A socket on an address that, if `shared`, other processes of this user may take too. Raises `OSError`."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        if kind == socket.SOCK_DGRAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def both_bound(
    host: str, port: int, *, tcp: bool, shared: bool
) -> tuple[socket.socket, socket.socket | None]:
    """For datagrams and, with `tcp`, streams; for port 0 one that both have. Raises `OSError`.

    Not `shared` are datagrams: every resolver has them, so that they show whose the port is.
    """
    for left in reversed(range(1 if port else ANY_PORT_TRIES)):
        datagrams = bound(host, port, socket.SOCK_DGRAM, shared=shared)
        try:
            number = datagrams.getsockname()[1]
            return datagrams, bound(host, number, socket.SOCK_STREAM) if tcp else None
        except OSError:
            datagrams.close()
            if not left:
                raise
    raise AssertionError("unreachable")
