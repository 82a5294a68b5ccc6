"""Real name servers on loopback whose tables of names a test makes by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest

from naming.dns.sockets import DnsServer
from naming.dns.zones.directory import Status, ZoneDirectory
from naming.table.table import NameTable


def following(
    revision: int, *, names_revision: int = 3, status: Status = Status.OK, ready: bool = True
) -> ZoneDirectory:
    """Return the directory of a name server that has read the events of cell cc up to `revision`."""
    table = NameTable("cc")
    table.revision, table.names_revision, table.ready = revision, names_revision, ready
    return ZoneDirectory(loaded=True, status=status, cells={"cc": table})


@contextmanager
def serving(*directories: ZoneDirectory, at: Sequence[int] = ()) -> Iterator[list[int]]:
    """Start a name server on loopback for each directory, and yield the ports. `at`: ports of the first servers."""
    ports: list[int] = []
    up, loop = threading.Event(), asyncio.new_event_loop()

    async def start() -> None:
        servers = [
            DnsServer(directory, "127.0.0.1", port)
            for directory, port in zip_longest(directories, at, fillvalue=0)
            if isinstance(directory, ZoneDirectory)
        ]
        for server in servers:
            await server.start()
            ports.append(server.port)
        up.set()
        await stopped.wait()
        for server in servers:
            await server.stop()

    stopped = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(start(),))
    thread.start()
    assert up.wait(30)
    try:
        yield ports
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(30)
        loop.close()
