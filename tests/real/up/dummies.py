"""Small Python programs for tests of the supervisor of `make up`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from portal.up.supervision.probes import Probe
from portal.up.supervision.process_keeper import Spec

_LISTEN = "import socket,sys,time\ns=socket.create_server(('127.0.0.1',int(sys.argv[1])))\n"


def listener(name: str, port: int, *, needs: tuple[str, ...] = (), then: str = "time.sleep(600)") -> Spec:
    """Return a process that listens on `port` and then runs the Python code `then`."""
    return Spec(
        name=name,
        argv=(sys.executable, "-S", "-c", _LISTEN + then, str(port)),
        needs=needs,
        ready=tcp_open(port),
        alive=tcp_open(port),
        start_s=10.0,
        alive_every_s=0.1,
    )


def tcp_open(port: int) -> Probe:
    """Return a probe that checks whether a process accepts connections on this host."""

    def probe() -> str | None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=3.0):
                return None
        except OSError as error:
            return f"nobody accepts connections on {port}: {error}"

    return probe


def script(name: str, code: str, **wishes: object) -> Spec:
    return Spec(name=name, argv=(sys.executable, "-S", "-c", code), **wishes)  # type: ignore[arg-type]


def writes(path: Path, text: str) -> str:
    """Return Python code that appends a line to a file."""
    return f"open({str(path)!r}, 'a').write({text + chr(10)!r})\n"
