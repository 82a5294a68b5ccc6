"""Functions with which ASGI applications send a complete HTTP response without Django."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from portal.http.errors import CONTENT_TYPE, document
from quota.vocabulary.errors import Rejected

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]


async def reject(
    send: Send, problem: Rejected, *, request_id: str = "", headers: Mapping[str, str] | None = None
) -> None:
    """Send the error `problem` as a problem document (RFC 9457). If `request_id` is empty, the request gets a new
    id.
    """
    request_id = request_id or uuid.uuid4().hex
    body = json.dumps(document(problem, request_id)).encode()
    all_headers = {"content-type": CONTENT_TYPE, "x-request-id": request_id, **(headers or {})}
    await respond(send, problem.status, body, all_headers)


async def respond(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send a complete HTTP response. The header Content-Length is added."""
    pairs = [(name.encode(), value.encode()) for name, value in {**headers, "content-length": str(len(body))}.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
