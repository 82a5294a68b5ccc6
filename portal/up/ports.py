"""Check that ports are free, and name the process that uses one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from naming.ports import holder


class PortTaken(RuntimeError):
    """A port is in use. The message names the setting to change."""


@dataclass(frozen=True, slots=True)
class RequestedPort:
    setting: str
    port: int
    udp: bool = False


def check_free(host: str, wanted: Iterable[RequestedPort]) -> None:
    """Raise `PortTaken` for the first port that cannot be bound."""
    for want in wanted:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM) if want.udp else (socket.SOCK_STREAM,):
            with socket.socket(socket.AF_INET, kind) as probe:
                if kind == socket.SOCK_STREAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, want.port))
                    if kind == socket.SOCK_STREAM:
                        probe.listen(1)
                except OSError as error:
                    raise PortTaken(_sentence(host, want, kind, error)) from None


def _sentence(host: str, want: RequestedPort, kind: socket.SocketKind, error: OSError) -> str:
    cure = f"choose another port, such as {want.setting}={min(want.port + 1, 65535)}"
    if error.errno == errno.EACCES:
        return f"{want.setting}={want.port}: this user cannot listen on ports below 1024; {cure}"
    if error.errno != errno.EADDRINUSE:
        return f"{want.setting}={want.port} on {host} cannot be used ({error.strerror}); {cure}"
    found = holder(want.port, "tcp" if kind == socket.SOCK_STREAM else "udp")
    by = f" by {found}" if found else ""
    return f"{want.setting}={want.port} is in use on {host}{by}; stop that process, or {cure}"
