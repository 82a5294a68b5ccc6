"""Check that ports are free, and name the process that uses one."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Mapping

from serving.ports import holder


class PortTaken(RuntimeError):
    """A port is in use. The message names the setting to change."""


def check_free(host: str, wanted: Mapping[str, int], *, udp: Collection[str] = ()) -> None:
    """Raise `PortTaken` for the first port that cannot be bound. `wanted`: by setting; `udp`: settings with UDP too."""
    for setting, port in wanted.items():
        for kind in (socket.SOCK_STREAM, *([socket.SOCK_DGRAM] if setting in udp else [])):
            with socket.socket(socket.AF_INET, kind) as probe:
                if kind == socket.SOCK_STREAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                    if kind == socket.SOCK_STREAM:
                        probe.listen(1)
                except OSError as error:
                    raise PortTaken(_sentence(host, setting, port, kind, error)) from None


def _sentence(host: str, setting: str, port: int, kind: socket.SocketKind, error: OSError) -> str:
    cure = f"choose another port, such as {setting}={min(port + 1, 65535)}"
    if error.errno == errno.EACCES:
        return f"{setting}={port}: this user cannot listen on ports below 1024; {cure}"
    if error.errno != errno.EADDRINUSE:
        return f"{setting}={port} on {host} cannot be used ({error.strerror}); {cure}"
    found = holder(port, "tcp" if kind == socket.SOCK_STREAM else "udp")
    by = f" by {found}" if found else ""
    return f"{setting}={port} is in use on {host}{by}; stop that process, or {cure}"
