"""`python -m portal.up.preload SOCKET [PADDING]`: import the code of the server processes once, and fork a server
process for each request.

A server that this process forks shares the memory of the imported code, and need not import it. The supervisor sends
the requests (`portal.up.supervision.forks`). A request is one message with JSON and the file descriptor of the log.

    supervisor ── request ──► preload ── fork ──► helper ── fork ──► server
        ▲                                           └ ends at once: the supervisor becomes the server's parent
        └───────────── the server sends its process id, waits for the answer, and runs its module ──────────┘

At a fork, this process must have only one thread and no connection to the database, because a fork with more is not
safe. `PADDING` makes the command line longer, so that each server can write its own command line over it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from portal.up.supervision import children, forks

# The modules of the servers, except those that read the environment of one server or that a server runs as `__main__`.
# Without Numba, which only masters need.
MODULES = (
    *("portal.celery", "portal.asgi", "portal.urls"),
    *("uvicorn", "uvicorn.lifespan.on", "uvicorn.loops.uvloop", "uvicorn.protocols.http.httptools_impl"),
    *("uvicorn.protocols.websockets.auto", "serving.processes"),
    *("scheduling.link.server", "naming.dns.primary", "naming.dns.sockets", "naming.dns.zones.zone_settings"),
    *("naming.following.snapshots", "naming.following.journal_news", "naming.metrics", "naming.reporting"),
    *("celery.bin.celery", "celery.bin.worker", "celery.bin.beat", "celery.apps.worker", "celery.apps.beat"),
    *("celery.worker.worker", "celery.worker.consumer", "celery.worker.components", "celery.worker.autoscale"),
    *("celery.concurrency.thread", "celery.concurrency.solo", "celery.fixups.django", "kombu.transport.redis"),
    *("django_celery_beat.schedulers", "django.db.backends.postgresql.base", "django.core.management"),
    *("django.db.migrations.loader", "portal.management.commands.bootstrap"),
)
_REPARENTED_S = 10.0
_REQUEST_S = 5.0


class ForkUnsafe(RuntimeError):
    """The error if this process has a second thread or a PostgreSQL connection, which a server would inherit."""


def load(modules: Sequence[str] = MODULES) -> None:
    """Set up Django, import the modules and the Celery tasks, and exclude all objects from garbage collection."""
    import django

    django.setup()
    for module in modules:
        importlib.import_module(module)
    from portal.celery import app

    app.loader.import_default_modules()
    app.finalize()
    _check_fork_safety()
    gc.collect()
    gc.freeze()


def _check_fork_safety() -> None:
    """Raise `ForkUnsafe` if this process has a second thread or a connection to PostgreSQL."""
    from django.db import connections

    if len(threads := list(Path("/proc/self/task").iterdir())) > 1:
        raise ForkUnsafe(
            f"an imported module has started a thread, so a fork is not safe ({len(threads)} threads); report this "
            "as a bug"
        )
    if any(connection.connection is not None for connection in connections.all(initialized_only=True)):
        raise ForkUnsafe(
            "an imported module has opened a connection to PostgreSQL, so a fork is not safe; report this as a bug"
        )


def serve(path: Path) -> list[str]:
    """Listen on the socket `path` and fork a server for each request. This function returns only in the forked servers.
    It returns the command that the server must run.
    """
    supervisor = os.getppid()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        with forks.short_path(path) as short:
            listener.bind(short)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                if (argv := _answer(connection, supervisor)) is not None:
                    return argv


def _answer(connection: socket.socket, supervisor: int) -> list[str] | None:
    """Answer one connection. If it requests a server, fork one. In the forked server, return the command to run. In
    this process, return None.
    """
    connection.settimeout(_REQUEST_S)
    try:
        message, descriptors, _, _ = socket.recv_fds(connection, forks.MESSAGE_BYTES, 1)
    except OSError:
        return None
    try:
        if not message or len(descriptors) != 1:  # a probe connects and closes
            return None
        helper = os.fork()
        if helper:
            os.waitpid(helper, 0)
            return None
        if os.fork():
            os._exit(0)
        return _become_server(json.loads(message), descriptors[0], connection, supervisor)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _become_server(request: dict[str, Any], output: int, connection: socket.socket, supervisor: int) -> list[str]:
    """Turn this process into a server: set its parent, session, output, environment and name. Return its command."""
    children.wait_until(lambda: os.getppid() == supervisor, _REPARENTED_S, every_s=0.001)
    children.end_with_parent(supervisor, signal.Signals(request["death_signal"]))
    os.setsid()
    connection.send(str(os.getpid()).encode())
    if not connection.recv(1):  # the supervisor no longer waits for this process
        os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    argv: list[str] = request["argv"]
    _show_name(request["name"])
    _show_command(argv)
    return argv


def _show_name(name: str) -> None:
    """Make `ps` and similar programs show the name `borg-NAME` for this process. The kernel keeps 15 bytes of it."""
    children.LIBC.prctl(children.PR_SET_NAME, f"borg-{name}".encode()[:15], 0, 0, 0)


def _show_command(argv: Sequence[str]) -> None:
    """Make `ps` and similar programs show the command `argv` for this process."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # of the command line, in the memory of this process
    text = b"\0".join(map(os.fsencode, argv))[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def run(path: Path) -> None:
    """Fork a server for each request on the socket `path`. Each server runs its module as `python -m` does."""
    _, _, module, *arguments = serve(path)
    gc.enable()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(argv: Sequence[str]) -> None:
    """Import the code of all server processes, and fork a server each time the supervisor requests one."""
    _show_name("preload")
    gc.disable()  # a collection between imports finds nothing and leaves holes in the memory
    load()
    run(Path(argv[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
