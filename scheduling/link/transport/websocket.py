"""WebSockets of machines, written directly on asyncio transports. They need no task, queue or timer per connection.

    LinkDoor ── GET /link ──────────────────────► LinkSocket ─► LinkApp.converse, until attached
        └─► uvicorn: HTTP ── an unusual GET /link ────┘ │ ◄─ write      Connection ◄─ Shard
                                                        └─ message ───► Shard.heard

`LinkApp.converse` handles a socket until the machine is attached to a `Shard`. After that, each message of the machine
goes to `Shard.heard`, and the `Shard` sends its messages through a `Connection`.

The WebSocket of uvicorn would need 240 µs per poll and 178 KiB per machine, because it uses coroutines and a queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol, cast

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from borglet.link.frames import POLICY_VIOLATION, BadFrame, FrameReader, Opcode, close_code, closing, frame
from borglet.messages import MAX_FRAME_BYTES
from scheduling.link.transport.upgrade import PATH, Upgrade, read_upgrade

log = structlog.get_logger(__name__)

# The peer must answer a close frame within this time.
CLOSE_WITHIN_S = 5.0
# Largest number of messages that are accepted before the machine is served. A machine sends a hello and waits for its
# answer.
MOST_EARLY = 2
# OpenSSL keeps an output buffer per connection that is a third larger than the largest write so far. A desired state
# with its identities takes 17 KiB once, and other messages less than 100 bytes.
_WRITE_BYTES = 2**12
# All connections read into this buffer, one after the other.
_buffer = memoryview(bytearray(2**16))


class Hangup(Exception):
    """Raised when the connection is closed."""


class Host(Protocol):
    """The interface of an application that serves WebSockets of machines, such as `scheduling.link.app.LinkApp`."""

    async def converse(self, socket: LinkSocket, authorization: str) -> None:
        """Check the `Authorization` header of one WebSocket, and serve its machine until the WebSocket closes."""


class LinkDoor(asyncio.Protocol):
    """Reads the first bytes of a connection and chooses its handler. A `LinkSocket` handles a WebSocket request for
    `PATH` in the usual form. The HTTP protocol that `make_http` returns handles all other requests.
    """

    def __init__(self, host: Host, server_state: Any, make_http: Callable[[], asyncio.Protocol]) -> None:
        self._host, self._server_state, self._make_http = host, server_state, make_http

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server_state.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._server_state.connections.discard(self)
        upgrade = read_upgrade(data)
        if upgrade is not None:
            socket = LinkSocket(self._host, self._server_state)
            self._transport.set_protocol(socket)
            socket.open(self._transport, upgrade)
            return
        http = self._make_http()
        self._transport.set_protocol(http)
        http.connection_made(self._transport)
        http.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server_state.connections.discard(self)

    def shutdown(self) -> None:
        """Close the connection. uvicorn calls this when the server stops."""
        self._transport.close()


class LinkHttp(HttpToolsProtocol):
    """The HTTP protocol of uvicorn, except that a `LinkSocket` handles each WebSocket request for `PATH`."""

    def handle_websocket_upgrade(self) -> None:
        if self.url.partition(b"?")[0] != PATH:
            super().handle_websocket_upgrade()
            return
        self.connections.discard(self)
        head = [b"GET ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.scope["headers"]:
            head += [name, b": ", value, b"\r\n"]
        handshake = ServerProtocol()
        handshake.receive_data(b"".join([*head, b"\r\n"]))
        request = next(iter(handshake.events_received()), None)
        if not isinstance(request, Request):
            self.transport.abort()
            return
        response = handshake.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self.transport.write(response.serialize())
            self.transport.close()
            return
        socket = LinkSocket(cast("Host", self.config.app), self.server_state)
        self.transport.set_protocol(socket)
        socket.open(self.transport, Upgrade(request.headers.get("Authorization", ""), response.serialize()))


class LinkSocket(asyncio.BufferedProtocol):
    """A WebSocket connection. It calls the function `hangup` once, when the connection has ended."""

    __slots__ = (
        "_answer",
        "_close_timer",
        "_ended",
        "_frames",
        "_host",
        "_opening",
        "_reader",
        "_server_state",
        "_transport",
        "_waiting",
        "closing",
        "congested",
        "hangup",
        "receive",
    )

    def __init__(self, host: Host, server_state: Any) -> None:
        self._host, self._server_state = host, server_state
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._waiting: deque[bytes] | None = deque()
        self._frames: asyncio.Future[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._answer: bytes | None = None  # accepts the request, until it is answered
        self._ended = False
        self.closing = False
        self.congested = False  # whether so much output waits that no further message should be sent
        self.receive: Callable[[bytes], None] | None = None  # takes messages once it is set
        self.hangup: Callable[[], None] | None = None

    # -- the handshake

    def open(self, transport: asyncio.Transport, upgrade: Upgrade) -> None:
        """Begin to handle the WebSocket request `upgrade`, which arrived on `transport`."""
        self._transport, self._answer = transport, upgrade.answer
        self._server_state.connections.add(self)
        self._opening = asyncio.get_running_loop().create_task(self._host.converse(self, upgrade.authorization))
        self._server_state.tasks.add(self._opening)
        self._opening.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._server_state.tasks.discard(task)
        self._opening = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error(
                "the shard cannot serve a machine because of an error, so it closes the connection of the machine",
                exc_info=error,
            )
            self._transport.abort()

    def accept(self) -> None:
        """Accept the request for a WebSocket. The WebSocket is open after this call."""
        assert self._answer is not None
        self._respond(self._answer)

    def reject(self, status: int, phrase: str, headers: dict[str, str], body: bytes) -> None:
        """Reject the request for a WebSocket with an HTTP response."""
        made = Headers({**headers, "Content-Length": str(len(body)), "Connection": "close"})
        self._respond(Response(status, phrase, made, body).serialize())
        self._transport.close()

    def _respond(self, answer: bytes) -> None:
        self._answer = None
        if not self._ended:
            self._transport.write(answer)

    async def message(self) -> bytes:
        """Wait for the next message and return it. Raises `Hangup` if the connection is closed. Do not call this
        method after `serve`.
        """
        assert self._waiting is not None
        while not self._waiting:
            if self._ended or self.closing:
                raise Hangup
            self._frames = asyncio.get_running_loop().create_future()
            await self._frames
        return self._waiting.popleft()

    def serve(self, receive: Callable[[bytes], None], hangup: Callable[[], None]) -> None:
        """Call `receive` with each message that already waits and with each later message. Call `hangup` when the
        connection has ended.

        Raises `Hangup` if the connection has already ended.
        """
        if self._ended:
            raise Hangup
        self.receive, self.hangup = receive, hangup
        early, self._waiting = self._waiting or (), None
        for content in early:
            receive(content)

    # -- out

    def send(self, content: bytes) -> None:
        """Send a text message. Do nothing if the connection is closed."""
        if self.closing or self._ended:
            return
        output = frame(Opcode.TEXT, content)
        if len(output) <= _WRITE_BYTES:
            self._transport.write(output)
            return
        for begin in range(0, len(output), _WRITE_BYTES):
            self._transport.write(output[begin : begin + _WRITE_BYTES])

    def close(self, code: int, reason: str) -> None:
        """Send a close frame. The connection ends when the peer answers, or after `CLOSE_WITHIN_S` seconds."""
        if self.closing or self._ended:
            return
        self.closing = True
        self._transport.write(closing(code, reason))
        self._close_timer = asyncio.get_running_loop().call_later(CLOSE_WITHIN_S, self._transport.abort)
        self._wake_reader()

    def shutdown(self) -> None:
        """Close the connection. uvicorn calls this when the server stops."""
        if self._answer is not None:
            self._transport.close()
        else:
            self.close(1001, "this shard stops")

    # -- input: methods that the transport calls

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, size: int) -> None:
        if self._ended:
            return
        if self._answer is not None:  # the peer sends frames before the WebSocket is open
            self._transport.abort()
            return
        try:
            for opcode, content in self._reader.read(_buffer[:size]):
                self._take(opcode, content)
        except BadFrame as error:
            self._fail(error)

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._server_state.connections.discard(self)
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._wake_reader()
        if self.hangup is not None:
            self.hangup()
            self.hangup = self.receive = None

    def _take(self, opcode: Opcode, content: bytes) -> None:
        if opcode is Opcode.CLOSE:
            code = close_code(content)
            if not self.closing:
                self.closing = True
                self._transport.write(frame(Opcode.CLOSE, content[:2]))
                log.debug("a machine closes its connection", code=code)
            self._wake_reader()
            self._transport.close()
        elif opcode is Opcode.PING:
            # A peer that does not read gets no further pongs, because they would fill the buffer.
            if not self.closing and not self.congested:
                self._transport.write(frame(Opcode.PONG, content))
        elif self.closing or opcode is Opcode.PONG:
            return
        elif self.receive is not None:
            self.receive(content)
        elif self._waiting is not None:
            if len(self._waiting) == MOST_EARLY:
                raise BadFrame(
                    POLICY_VIOLATION,
                    f"the machine sent more than {MOST_EARLY} messages before the welcome message; wait for it",
                )
            self._waiting.append(content)
            self._wake_reader()

    def _fail(self, error: BadFrame) -> None:
        log.warning("received an invalid WebSocket frame; the connection is closed", reason=str(error))
        if not self.closing:
            self.closing = True
            self._transport.write(closing(error.code, str(error)))
        self._wake_reader()
        self._transport.close()

    def _wake_reader(self) -> None:
        if self._frames is not None and not self._frames.done():
            self._frames.set_result(None)
        self._frames = None
