"""A small HTTP client for load tests, with connections that stay open and requests that are due at fixed times."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

GIVE_UP_S = 30.0
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """One HTTP request. `kind`: a name under which similar requests are counted together.

    `headers`: complete lines without line ends. `user`: requests of different users never share a connection.
    """

    kind: str
    path: str
    headers: tuple[str, ...] = ()
    body: bytes = b""
    method: str = "GET"
    user: str = ""

    def encoded(self, host: str) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}", *self.headers]
        if self.body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(self.body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@dataclass(frozen=True)
class Answer:
    """The result of one request. `status`: 0 if there was no answer. `seconds`: since the request was due. `size`:
    bytes."""

    kind: str
    path: str
    status: int
    seconds: float
    size: int


@dataclass
class Connections:
    """Open connections to one server, which later requests of the same user use again."""

    host: str
    port: int
    _idle: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    async def send(self, request: Request, due: float) -> Answer:
        """Send one request and return its answer. `due`: when it should have been sent, in seconds of the event loop's
        clock."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(GIVE_UP_S):
                status, size = await self._send(request)
        except (OSError, EOFError, TimeoutError):
            status, size = 0, 0
        return Answer(request.kind, request.path, status, loop.time() - due, size)

    async def _send(self, request: Request) -> tuple[int, int]:
        idle = self._idle[request.user]
        reader, writer = idle.pop() if idle else await asyncio.open_connection(self.host, self.port)
        try:
            writer.write(request.encoded(f"{self.host}:{self.port}"))
            status, size, reusable = await _read(reader)
        except BaseException:
            writer.close()
            raise
        if reusable:
            idle.append((reader, writer))
        else:
            writer.close()
        return status, size

    def close(self) -> None:
        for _, writer in chain(*self._idle.values()):
            writer.close()
        self._idle.clear()


async def _read(reader: asyncio.StreamReader) -> tuple[int, int, bool]:
    """Read one answer. Return its status, the size of its body, and whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    status = int(head[0].split()[1])
    headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
    size = 0
    if "chunked" in headers.get("transfer-encoding", ""):
        while length := int(await reader.readline(), 16):
            await reader.readexactly(length + 2)
            size += length
        await reader.readline()
    elif status not in (204, 304):
        size = int(headers.get("content-length", "0"))
        await reader.readexactly(size)
    return status, size, headers.get("connection") != "close"


async def at_rate(
    connections: Connections, per_second: float, seconds: float, draw: Callable[[], Request]
) -> list[Answer]:
    """Send requests at a fixed rate, without waiting for earlier answers, and return all answers."""
    loop = asyncio.get_running_loop()
    begin = loop.time() + 0.05
    running = []
    for number in range(int(per_second * seconds)):
        due = begin + number / per_second
        if (wait := due - loop.time()) > 0:
            await asyncio.sleep(wait)
        running.append(asyncio.create_task(connections.send(draw(), due)))
    return list(await asyncio.gather(*running))


async def by_clients(
    connections: Connections, clients: int, number: int, draw: Callable[[], Request]
) -> tuple[list[Answer], float]:
    """Send `number` requests from `clients` concurrent clients, each of which waits for its answers.

    Return the answers and the seconds that all requests took.
    """
    loop = asyncio.get_running_loop()
    left = iter(range(number))
    answers: list[Answer] = []

    async def one() -> None:
        for _ in left:
            answers.append(await connections.send(draw(), loop.time()))

    began = time.monotonic()
    await asyncio.gather(*(one() for _ in range(clients)))
    return answers, time.monotonic() - began


def run(work: Callable[[Connections], Awaitable[T]], host: str, port: int) -> T:
    """Run `work` with connections to the server in a new event loop, and return its result."""

    async def all_of_it() -> T:
        connections = Connections(host, port)
        try:
            return await work(connections)
        finally:
            connections.close()

    return asyncio.run(all_of_it())


def share(values: Sequence[float], part: float) -> float:
    """Return a quantile of the values, for example `part=0.99` for p99. NaN if there are no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")
