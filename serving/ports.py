"""Bind ports, reserve a port for all workers of a resolver, and find the process that uses a port."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ANY_PORT_TRIES = 20  # attempts to find a free port: a port that is free for UDP may be in use for TCP
RECEIVE_BUFFER = 4 * 2**20  # bytes, for a burst of questions while the resolver applies changes
# Time for an earlier resolver to end. Its workers end within `serving.processes.STOP_S`.
PATIENCE_S = 5.0
_AGAIN_S = 0.05
_LISTENS = ("07", "0A")  # states of an open UDP socket and of a listening TCP socket in /proc/net


class NoPort(OSError):
    """Raised if a port cannot be used. The message names the setting, says what to do and, if this is known, which
    process uses the port.
    """


def check_free(host: str, ports: Mapping[str, int], *, udp: Collection[str] = ()) -> None:
    """Check that this process can bind all these ports. Raises `NoPort` for the first port that it cannot bind.

    `ports`: the ports by the names of their settings. `udp`: the settings whose port is needed for UDP as well as for
    TCP.
    """
    for setting, port in ports.items():
        for kind in (socket.SOCK_STREAM, *([socket.SOCK_DGRAM] if setting in udp else [])):
            with wanted(setting, host, port):
                bound(host, port, kind, shared=False).close()


@contextmanager
def wanted(setting: str, host: str, port: int) -> Iterator[None]:
    """Convert an `OSError` in the `with` block to `NoPort`. Its message names the setting and the port."""
    try:
        yield
    except NoPort:
        raise
    except OSError as error:
        raise _no_port(setting, host, port, error) from error


@contextmanager
def reserved(host: str, port: int, *, patience_s: float = PATIENCE_S) -> Iterator[int]:
    """Reserve a port for this process and its children until the end of the `with` block. Yield the number of the
    port. If `port` is 0, choose a free port.

    The workers of a resolver share a port (SO_REUSEPORT). A second resolver of the same user could share it by mistake
    and would receive some of the queries. So this function checks that no other process uses the port, and holds a
    lock until the end of the block. It waits up to `patience_s` seconds for another process to free the port. Raises
    `NoPort` if the port stays in use.
    """
    if port:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lock:
            _take(lock, host, port, patience_s)
            yield port
        return
    with wanted("BORG_DNS_PORT", host, port):
        datagrams, streams = both_bound(host, port, tcp=True, shared=True)
    free = int(datagrams.getsockname()[1])
    datagrams.close()  # otherwise this socket would receive questions that no process reads
    assert streams is not None
    with streams:  # bound, but not listening
        yield free


def _take(lock: socket.socket, host: str, port: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    logged = False
    while True:
        try:
            with wanted("BORG_DNS_PORT", host, port):
                if not lock.getsockname():
                    lock.bind(f"\0borg-resolver-{host}-{port}")  # abstract: scoped to the network namespace, like ports
                bound(host, port, socket.SOCK_DGRAM, shared=False).close()
            return
        except NoPort as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline:
                raise
            if not logged:
                import structlog  # not above, because the supervisor of `make up` does without it

                structlog.get_logger(__name__).warning(
                    "another process uses the DNS port; the resolver waits until the port is free",
                    reason=error.strerror,
                    patience_s=patience_s,
                )
                logged = True
            time.sleep(_AGAIN_S)


def _no_port(setting: str, host: str, port: int, error: OSError) -> NoPort:
    if error.errno == errno.EACCES:
        reason = "this user may not listen on a port below 1024; choose a port above 1023"
    elif error.errno == errno.EADDRINUSE:
        found = _holder(port, "udp") or _holder(port, "tcp")
        reason = f"it is taken{f' by {found}' if found else ''}; stop that process, or choose another port"
    else:
        reason = f"{error.strerror or error}; give an address of this host"
    return NoPort(error.errno, f"{setting}={port} on {host} cannot be used: {reason}")


def _holder(port: int, protocol: str) -> str | None:
    """Return the process that listens on `port`, such as `process 42 (nginx)`. Return None if no process is found."""
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
                    return f"process {number} ({_program(process)})"
    return None


def _program(process: Path) -> str:
    """Return the name of a process. If the process is Python with the option `-m`, add the name of the module. Other
    arguments are omitted, because they may be secret.
    """
    arguments = (process / "cmdline").read_text(errors="replace").split("\0")
    module = f" -m {arguments[2]}" if arguments[1:2] == ["-m"] and len(arguments) > 2 else ""
    return (process / "comm").read_text().strip() + module


def bound(host: str, port: int, kind: socket.SocketKind, *, shared: bool = True) -> socket.socket:
    """Return a socket that is bound to `host` and `port`. `shared`: other processes of this user may bind the same
    port. Raises `OSError` if the address cannot be used.
    """
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


def both_bound(host: str, port: int, *, tcp: bool, shared: bool) -> tuple[socket.socket, socket.socket | None]:
    """Return (UDP socket, TCP socket) on the same port. The TCP socket is None if `tcp` is False. Raises `OSError` if
    the port is not free.

    If `shared` is False, no other process can bind the UDP port. Other processes can always bind the TCP port.
    """
    for tries_left in reversed(range(1 if port else ANY_PORT_TRIES)):
        datagrams = bound(host, port, socket.SOCK_DGRAM, shared=shared)
        try:
            number = datagrams.getsockname()[1]
            return datagrams, bound(host, number, socket.SOCK_STREAM) if tcp else None
        except OSError:
            datagrams.close()
            if not tries_left:
                raise
    raise AssertionError("unreachable")
