"""Parse the HTTP request with which a Borglet asks to open a WebSocket (RFC 6455, §4.2). Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import NamedTuple

PATH = b"/link"
_BEGINS, _ENDS = b"GET " + PATH + b" HTTP/1.1\r\n", b"\r\n\r\n"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_KEY_BYTES = 16


class Upgrade(NamedTuple):
    """A valid request to open a WebSocket. `authorization`: the value of the request's Authorization header, or an
    empty text. `answer`: the bytes of the response that accepts the request.
    """

    authorization: str
    answer: bytes


def read_upgrade(data: bytes) -> Upgrade | None:
    """Return the request if `data` is exactly one valid WebSocket request for `PATH` in the usual form, else None.

    This function is faster than a library. The caller gives all other data to a library.
    """
    if not data.startswith(_BEGINS) or not data.endswith(_ENDS):
        return None
    headers: dict[bytes, bytes] = {}
    for line in data[len(_BEGINS) : -len(_ENDS)].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or name in headers or not name.replace(b"-", b"").isalnum():
            return None
        headers[name] = value.strip(b" \t")
    key = headers.get(b"sec-websocket-key", b"")
    if (
        b"host" not in headers
        or headers.get(b"upgrade", b"").lower() != b"websocket"
        or headers.get(b"connection", b"").lower() != b"upgrade"
        or headers.get(b"sec-websocket-version") != b"13"
        or not _is_key(key)
        or b"content-length" in headers
        or b"transfer-encoding" in headers
    ):
        return None
    accept = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    answer = (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + accept + _ENDS
    )
    return Upgrade(headers.get(b"authorization", b"").decode("latin-1"), answer)


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False
