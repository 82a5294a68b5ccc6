"""Small processes to keep: each a line of Python with a wish of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from portal.up.supervision import probes
from portal.up.supervision.keeper import Spec

_LISTEN = "import socket,sys,time\ns=socket.create_server(('127.0.0.1',int(sys.argv[1])))\n"


def listener(name: str, port: int, *, needs: tuple[str, ...] = (), then: str = "time.sleep(600)") -> Spec:
    """Listens on `port`, then does something."""
    return Spec(
        name=name,
        argv=(sys.executable, "-S", "-c", _LISTEN + then, str(port)),
        needs=needs,
        ready=probes.tcp_open("127.0.0.1", port),
        alive=probes.tcp_open("127.0.0.1", port),
        start_s=10.0,
        alive_every_s=0.1,
    )


def script(name: str, code: str, **wishes: object) -> Spec:
    return Spec(name=name, argv=(sys.executable, "-S", "-c", code), **wishes)  # type: ignore[arg-type]


def writes(path: Path, text: str) -> str:
    """Code that appends a line to a file."""
    return f"open({str(path)!r}, 'a').write({text + chr(10)!r})\n"
