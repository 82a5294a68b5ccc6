"""A small WebSocket client, for the connection that a machine keeps open all the time.

    dial ─► TLS ─► Upgrade ─► ClientSocket ── receive ─► messages, in order
                                   ▲ send, close

The library `websockets` only makes the request of the handshake and checks the answer. Its connections need too much
memory: one process may have ten thousand. So this module uses its own `ClientSocket` for the open connection.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from typing import cast

from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close
from websockets.protocol import State
from websockets.uri import parse_uri

from borglet.link.frames import NO_STATUS, BadFrame, FrameReader, Opcode, close_code, closing, frame

# All connections read into this buffer, one after the other.
_buffer = memoryview(bytearray(2**16))
_FINE = (1000, 1001)
_SWITCHED, _HEAD_ENDS = b" 101 ", b"\r\n\r\n"
_MOST_HEAD_BYTES = 2**16


class ClientSocket(asyncio.BufferedProtocol):
    """One open WebSocket, which `dial` creates. It belongs to one loop and has one reader at a time."""

    __slots__ = (
        "_closing",
        "_deadline",
        "_end",
        "_handshake",
        "_head",
        "_headers",
        "_heard",
        "_reader",
        "_timer",
        "_transport",
        "_waiting",
    )

    _head: bytes | None

    def __init__(self, handshake: ClientProtocol, headers: dict[str, str], most_bytes: int) -> None:
        self._handshake: ClientProtocol | None = handshake
        self._headers, self._head = headers, b""
        self._reader = FrameReader(most_bytes, masked=False)
        self._heard: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._end: Exception | None = None  # why the connection ended
        self._closing = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self, within_s: float) -> bytes:
        """Return the next message. Raises `ConnectionClosed` if the connection ends, and `TimeoutError` if no message
        arrives in `within_s` seconds.
        """
        loop = asyncio.get_running_loop()
        if not self._heard and self._end is None:
            self._deadline = loop.time() + within_s
            if self._timer is None or self._timer.when() > self._deadline:
                self._arm(loop)
            await self._wait(loop)
        if self._heard:
            return self._heard.popleft()
        assert self._end is not None
        raise self._end

    def send(self, content: bytes) -> None:
        """Send a text message. If the connection has ended, this call raises no error, but the next `receive` does."""
        if not self._closing and self._end is None:
            self._transport.write(frame(Opcode.TEXT, content, mask=os.urandom(4)))

    def close(self, code: int, reason: str = "") -> None:
        """Send the reason and close the connection."""
        if not self._closing and self._end is None:
            self._closing = True
            self._transport.write(closing(code, reason, mask=os.urandom(4)))
        self._transport.close()

    def abort(self) -> None:
        """Break the connection without a close frame."""
        self._transport.abort()

    # -- the handshake

    async def upgraded(self) -> None:
        """Wait for the server's answer to the handshake. Raises `InvalidHandshake` if the server rejects the handshake,
        and `ConnectionClosed` if the connection ends.
        """
        if self._handshake is not None and self._end is None:
            await self._wait(asyncio.get_running_loop())
        if self._end is not None:
            raise self._end

    def _shake(self, arrived: bytes) -> None:
        assert self._handshake is not None
        handshake, frames = self._handshake, b""
        if self._head is not None:
            self._head += arrived
            end = self._head.find(_HEAD_ENDS)
            if end < 0 and len(self._head) < _MOST_HEAD_BYTES:
                return
            arrived, self._head = self._head, None
            if _SWITCHED in arrived[: arrived.find(b"\r\n")]:
                # The bytes after the answer are frames.
                arrived, frames = arrived[: end + len(_HEAD_ENDS)], arrived[end + len(_HEAD_ENDS) :]
        handshake.receive_data(arrived)
        if handshake.handshake_exc is not None:
            self._finish(handshake.handshake_exc)
            self._transport.abort()
        elif handshake.state is State.OPEN:
            self._handshake = None
            self._awake()
            if frames:
                self._frames(memoryview(frames))

    # -- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        assert self._handshake is not None
        request = self._handshake.connect()
        request.headers.update(self._headers)
        self._handshake.send_request(request)
        self._transport.write(b"".join(self._handshake.data_to_send()))

    def get_buffer(self, sizehint: int) -> memoryview:
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._end is not None:
            return
        if self._handshake is not None:
            self._shake(bytes(_buffer[:nbytes]))
        else:
            self._frames(_buffer[:nbytes])

    def eof_received(self) -> None:
        if self._handshake is not None:
            self._handshake.receive_eof()
            if self._handshake.handshake_exc is not None:
                self._finish(self._handshake.handshake_exc)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._handshake is not None and self._end is None:
            self._handshake.receive_eof()
            self._finish(
                self._handshake.handshake_exc
                or ConnectionResetError(
                    "the shard closed the connection before it answered the request for a WebSocket"
                )
            )
        self._finish(ConnectionClosedError(None, None))
        if self._timer is not None:
            self._timer.cancel()

    def _frames(self, arrived: memoryview) -> None:
        try:
            for opcode, content in self._reader.read(arrived):
                self._take(opcode, content)
        except BadFrame as error:
            self.close(error.code, str(error))
            self._finish(ConnectionClosedError(None, Close(error.code, str(error))))

    def _take(self, opcode: Opcode, content: bytes) -> None:
        if opcode is Opcode.PING:
            if not self._closing:
                self._transport.write(frame(Opcode.PONG, content, mask=os.urandom(4)))
        elif opcode is Opcode.CLOSE:
            code = close_code(content)
            detail = Close(code, content[2:].decode(errors="replace")) if code != NO_STATUS else None
            if not self._closing:
                self._closing = True
                self._transport.write(frame(Opcode.CLOSE, content[:2], mask=os.urandom(4)))
            kind = ConnectionClosedOK if code in _FINE else ConnectionClosedError
            self._finish(kind(detail, detail, True))
            self._transport.close()
        elif opcode is not Opcode.PONG and self._end is None:
            self._heard.append(content)
            self._awake()

    # -- waiting

    def _finish(self, end: Exception) -> None:
        if self._end is None:
            self._end = end
            self._awake()

    async def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting = loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _awake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer to `self._deadline`, the time at which a waiting `receive` raises `TimeoutError`."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._deadline, self._ran_out)

    def _ran_out(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._waiting is None or self._waiting.done():
            return
        if loop.time() < self._deadline:
            self._arm(loop)
        else:
            self._waiting.set_exception(TimeoutError("the shard sent no message within the time limit"))


async def dial(
    url: str, context: ssl.SSLContext, headers: dict[str, str], *, within_s: float, most_bytes: int
) -> ClientSocket:
    """Open a WebSocket at `url` (`wss://…`). `most_bytes`: the largest size of one message. Raises `TimeoutError` after
    `within_s` seconds. Raises OSError, `InvalidHandshake` or `ConnectionClosed` if the connection cannot be opened.
    """
    uri = parse_uri(url)

    def make() -> ClientSocket:
        return ClientSocket(ClientProtocol(uri, max_size=most_bytes), headers, most_bytes)

    async with asyncio.timeout(within_s):
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(make, uri.host, uri.port, ssl=context)
        try:
            await socket.upgraded()
        except BaseException:
            socket.abort()
            raise
    return socket
