"""Functions for the HTTP endpoints of a shard: read the body of a request, and send an answer (ASGI)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

import msgspec

from quota.vocabulary.errors import Rejected, invalid
from scheduling.link.transport.websocket import Hangup

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_PATH = re.compile(r" - at `\$\.?([^`]*)`")


async def decoded_body(receive: Receive, kind: Any, *, most_bytes: int) -> Any:
    """Return the JSON body of a request as an instance of `kind`.

    Raises `Rejected` if the body is wrong or longer than `most_bytes`. Raises `Hangup` if the client disconnects
    before the end of the body.
    """
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Hangup
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > most_bytes:
            detail = f"the body has more than {most_bytes} bytes; send a smaller one"
            raise Rejected("too-large", detail, fields={"body": detail}, status=413)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        field, what = wrong_field(error)
        if missing := re.search(r"field `(\w+)`", what):
            field = f"{field}.{missing.group(1)}" if field else missing.group(1)
        raise invalid(field or "body", what) from error


def wrong_field(error: Exception) -> tuple[str, str]:
    """Return two parts of a decoding error of msgspec: the path of the wrong field (or ""), and the text without this
    path.
    """
    text = str(error)
    path = _PATH.search(text)
    return path.group(1) if path else "", _PATH.sub("", text)


def problem(error: Rejected) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of an error answer: a problem document (RFC 9457), as the REST API sends it."""
    body: dict[str, Any] = {
        "type": f"urn:borg:{error.code}",
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
    }
    body |= {name: value for name in ("fields", "figures") if (value := getattr(error, name))}
    headers = {"content-type": "application/problem+json"}
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="borg"'
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["retry-after"] = "1"
    return headers, msgspec.json.encode(body)


async def respond(
    send: Send, status: int, headers: dict[str, str], body: bytes = b"", *, kind: str = "http.response"
) -> None:
    """Send a complete answer. `kind`: the start of the `type` of its two ASGI messages."""
    await begin(send, status, headers | {"content-length": str(len(body))}, kind=kind)
    await send({"type": f"{kind}.body", "body": body})


async def begin(send: Send, status: int, headers: dict[str, str], *, kind: str = "http.response") -> None:
    """Send the status and the headers of an answer. `kind`: the start of the `type` of the ASGI message."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{kind}.start", "status": status, "headers": pairs})
