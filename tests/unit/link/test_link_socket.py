"""Tests of a machine's socket: it stores nothing for a peer that sends too much, before or after authentication."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from websockets.frames import Frame
from websockets.frames import Opcode as Known

from borglet.link.frames import BadFrame, FrameReader, Opcode, frame
from scheduling.link.transport.upgrade import read_upgrade
from scheduling.link.transport.websocket import MOST_EARLY, LinkSocket

HEAD = (
    b"GET /link HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer m1:s\r\n\r\n"
)


class Transport:
    """A test double for a transport that records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    abort = close


class Doors:
    """An application that admits the machine once a test sets `known`."""

    def __init__(self) -> None:
        self.known = asyncio.Event()

    async def converse(self, socket: LinkSocket, authorization: str) -> None:
        await self.known.wait()
        socket.accept()


class Server:
    def __init__(self) -> None:
        self.connections: set[Any] = set()
        self.tasks: set[Any] = set()


def client(kind: Known, content: bytes, *, fin: bool = True) -> bytes:
    return Frame(kind, content, fin).serialize(mask=True)


def arrive(socket: LinkSocket, stream: bytes) -> None:
    for begin in range(0, len(stream), 2**16):
        piece = stream[begin : begin + 2**16]
        socket.get_buffer(-1)[: len(piece)] = piece
        socket.buffer_updated(len(piece))


def conversed(act: Callable[[LinkSocket, Doors, Transport], Any]) -> Transport:
    async def run() -> Transport:
        doors, transport = Doors(), Transport()
        socket = LinkSocket(doors, Server())  # type: ignore[arg-type]
        upgrade = read_upgrade(HEAD)
        assert upgrade is not None
        socket.open(transport, upgrade)  # type: ignore[arg-type]
        await act(socket, doors, transport)
        doors.known.set()
        for task in list(socket._server_state.tasks):
            await task
        return transport

    return asyncio.run(run())


async def let_in(doors: Doors, socket: LinkSocket) -> None:
    doors.known.set()
    for task in list(socket._server_state.tasks):
        await task


def test_a_machine_that_speaks_before_it_is_known_is_cut_off() -> None:
    async def act(socket: LinkSocket, doors: Doors, transport: Transport) -> None:
        arrive(socket, client(Known.TEXT, b"x" * 1000))
        assert transport.closed
        assert not socket._waiting

    conversed(act)


def test_a_hello_may_wait_and_a_flood_may_not() -> None:
    async def act(socket: LinkSocket, doors: Doors, transport: Transport) -> None:
        await let_in(doors, socket)
        arrive(socket, client(Known.TEXT, b"hello"))
        assert await socket.message() == b"hello"
        arrive(socket, client(Known.TEXT, b"x") * MOST_EARLY)
        assert not transport.closed
        arrive(socket, client(Known.TEXT, b"x"))
        assert transport.closed
        assert b"before the welcome" in transport.written[-1]

    conversed(act)


def test_pings_of_a_machine_that_reads_nothing_are_not_answered() -> None:
    async def act(socket: LinkSocket, doors: Doors, transport: Transport) -> None:
        await let_in(doors, socket)
        before = len(transport.written)
        arrive(socket, client(Known.PING, b"?"))
        assert len(transport.written) == before + 1
        socket.pause_writing()
        arrive(socket, client(Known.PING, b"?") * 1000)
        assert len(transport.written) == before + 1
        socket.resume_writing()
        arrive(socket, client(Known.PING, b"?"))
        assert len(transport.written) == before + 2

    conversed(act)


def test_a_large_message_is_written_in_pieces() -> None:
    async def act(socket: LinkSocket, doors: Doors, transport: Transport) -> None:
        await let_in(doors, socket)
        before = len(transport.written)
        socket.send(b"x" * 10_000)
        pieces = transport.written[before:]
        assert b"".join(pieces) == frame(Opcode.TEXT, b"x" * 10_000)
        assert max(map(len, pieces)) <= 4096

    conversed(act)


def test_a_message_of_countless_empty_parts_is_refused_soon() -> None:
    reader = FrameReader(8 * 2**20)
    reader.read(memoryview(client(Known.TEXT, b"", fin=False)))
    empty = memoryview(client(Known.CONT, b"", fin=False) * 200_000)
    began = time.process_time()
    with pytest.raises(BadFrame) as caught:
        reader.read(empty)
    assert caught.value.code == 1009
    assert time.process_time() - began < 5.0  # 0.3 s; quadratic, it would be minutes
