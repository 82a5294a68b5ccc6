"""A limit on the size of request bodies, which applies before anything else reads them.

Django spools bodies of any size. Django REST framework ignores a body of unknown length (`Transfer-Encoding: chunked`):
a kill with the body `{"indexes": [1]}` would have killed the whole job. So this module reads such bodies, up to the
limit, and passes them on with their length.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from portal.http.errors import CONTENT_TYPE, document_of
from quota.vocabulary.errors import Rejected

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


class _TooLarge(Exception):
    pass


class BoundedBodies:
    """An ASGI application that answers 413 to bodies of more than `most_bytes`, and passes all others to `inner`."""

    def __init__(self, inner: Application, *, most_bytes: int) -> None:
        self._inner, self._most_bytes = inner, most_bytes

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if length := headers.get(b"content-length"):
            if int(length) > self._most_bytes:  # the server has checked that it is a number
                return await self._reject(send)
        elif b"transfer-encoding" in headers:
            try:
                body = await self._body(receive)
            except _TooLarge:
                return await self._reject(send)
            if body is None:
                return None
            known = [pair for pair in scope["headers"] if pair[0] != b"transfer-encoding"]
            scope = {**scope, "headers": [*known, (b"content-length", str(len(body)).encode())]}
            receive = _replayed(body, receive)
        return await self._inner(scope, receive, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Return the whole body, or None if the client disconnected before the end. Raises `_TooLarge`."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes:
                raise _TooLarge
            if not message.get("more_body"):
                return b"".join(parts)

    async def _reject(self, send: Send) -> None:
        detail = (
            f"the request body is larger than the {self._most_bytes} bytes that this server accepts; send a smaller one"
        )
        await reject(send, Rejected("too-large", detail, status=413))


async def reject(
    send: Send, problem: Rejected, *, request_id: str = "", headers: Mapping[str, str] | None = None
) -> None:
    """Answer with a problem document. Without `request_id`, the request gets a new id."""
    request_id = request_id or uuid.uuid4().hex
    body = json.dumps(document_of(problem, request_id)).encode()
    kept = {"content-type": CONTENT_TYPE, "x-request-id": request_id, **(headers or {})}
    await respond(send, problem.status, body, kept)


async def respond(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    """Send a whole answer."""
    all_headers = {**headers, "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in all_headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that yields `body` in one piece, then later messages, such as the disconnect."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return waiting.pop() if waiting else await receive()

    return again
