"""Serve archives of packages to other Borglets over plain HTTP. Each connection has one request, and the number of
simultaneous uploads is limited.

    GET /packages/<digest>      Authorization: Borg-Ticket <ticket>      Range: bytes=N-

Answers: 200 or 206 with the archive, 401 for a bad ticket, 404 for an unknown package, 416 for a range after the end,
503 if too many uploads run (the client then tries another peer). There is no TLS: all machines of the cell may read the
content, and its digest proves that it is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from borglet.packages.tickets import TicketRefused, check

log = logging.getLogger(__name__)

_REQUEST = re.compile(rb"GET /packages/(sha256:[0-9a-f]{64}) HTTP/1\.[01]\Z")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-\Z")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """The limits of the server that uploads packages to other machines."""

    uploads: int = 4  # uploads at the same time
    connections: int = 64  # open connections; further ones are closed
    header_bytes: int = 8192
    header_timeout_s: float = 5.0
    least_bytes_s: int = 128 * 1024  # the upload to a slower client is stopped
    grace_s: float = 10.0  # time that each upload gets in addition


class _Answer(Exception):
    """Raised if the requested archive cannot be sent. The server then answers the request with an HTTP error."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class PeerServer:
    """The server from which other Borglets download packages. `find` returns the path of an archive by its digest, or
    None if it is missing. `keys` returns the public keys of the cell's authorities. `now` returns seconds since the
    epoch.
    """

    def __init__(
        self,
        find: Callable[[str], Path | None],
        keys: Callable[[], Sequence[ec.EllipticCurvePublicKey]],
        *,
        now: Callable[[], float],
        settings: PeerSettings = PeerSettings(),
    ) -> None:
        self._find, self._keys, self._now, self._settings = find, keys, now, settings
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._uploads = 0
        self.served = 0  # number of complete uploads

    async def open(self, address: str, port: int) -> int:
        """Start to serve at `address` and `port`, and return the port. If `port` is 0, the kernel chooses one. Raises
        OSError if the port cannot be used.
        """
        self._server = await asyncio.start_server(self._accept, address, port, limit=self._settings.header_bytes)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._settings.connections:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError) as error:
            log.info("an upload to %s ended early: %s", writer.get_extra_info("peername"), error)
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            digest, offset = await self._request(reader)
            with self._upload():
                await self._send(writer, digest, offset)
        except _Answer as answer:
            body = f"{answer.text}\n".encode()
            extra = "Retry-After: 1\r\n" if answer.status is HTTPStatus.SERVICE_UNAVAILABLE else ""
            writer.write(_head(answer.status, len(body), extra) + body)
            async with asyncio.timeout(self._settings.header_timeout_s):
                await writer.drain()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, int]:
        """Read a request. Return the digest of the requested archive and the offset of the first byte to send. Raises
        `_Answer` if the request is invalid or its ticket is not accepted.
        """
        try:
            async with asyncio.timeout(self._settings.header_timeout_s):
                raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the client closed the connection before it sent a request") from error
        except asyncio.LimitOverrunError as error:
            text = f"the request header has more than {self._settings.header_bytes} bytes; send fewer headers"
            raise _Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text) from error
        first, *lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
        match = _REQUEST.match(first)
        if match is None:
            raise _Answer(HTTPStatus.BAD_REQUEST, "the request is not valid; send GET /packages/sha256:<64 hex digits>")
        headers = {}
        for line in lines:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        digest = match.group(1).decode("ascii")
        scheme, _, ticket = headers.get("authorization", "").partition(" ")
        try:
            if scheme != "Borg-Ticket":
                raise TicketRefused("the request has no ticket; send the header Authorization: Borg-Ticket <ticket>")
            check(ticket.strip(), self._keys(), digest=digest, now=self._now())
        except TicketRefused as error:
            raise _Answer(HTTPStatus.UNAUTHORIZED, str(error)) from error
        wanted = _RANGE.match(headers.get("range", ""))
        return digest, int(wanted.group(1)) if wanted else 0

    @contextlib.contextmanager
    def _upload(self) -> Iterator[None]:
        if self._uploads >= self._settings.uploads:
            raise _Answer(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"this machine serves {self._uploads} downloads, which is the limit; try again later",
            )
        self._uploads += 1
        try:
            yield
        finally:
            self._uploads -= 1

    async def _send(self, writer: asyncio.StreamWriter, digest: str, offset: int) -> None:
        path = self._find(digest)
        if path is None:
            raise _Answer(HTTPStatus.NOT_FOUND, f"this machine does not have the package {digest}; use another source")
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise _Answer(
                HTTPStatus.NOT_FOUND, f"this machine no longer has the package {digest}; use another source"
            ) from error
        with file:
            size = os.fstat(file.fileno()).st_size
            if offset >= size:
                raise _Answer(
                    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
                    f"the range starts after the end of the archive, which has {size} bytes; give an earlier start",
                )
            part = f"Content-Range: bytes {offset}-{size - 1}/{size}\r\n" if offset else ""
            status = HTTPStatus.PARTIAL_CONTENT if offset else HTTPStatus.OK
            limit_s = self._settings.grace_s + (size - offset) / self._settings.least_bytes_s
            async with asyncio.timeout(limit_s):
                writer.write(_head(status, size - offset, part))
                await writer.drain()
                loop = asyncio.get_running_loop()
                await loop.sendfile(writer.transport, file, offset, size - offset)
        self.served += 1
        log.info("uploaded %s to %s", digest, writer.get_extra_info("peername"))


def _head(status: HTTPStatus, length: int, extra: str) -> bytes:
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Content-Length: {length}\r\n{extra}Connection: close\r\n\r\n"
    )
    return lines.encode("ascii")
