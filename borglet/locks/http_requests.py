"""A small part of HTTP/1.1, for requests of programs on the same machine: methods, paths, bodies with a known length,
and connections that stay open.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from http import HTTPStatus

MAX_HEAD_BYTES = 16 * 1024
# The content of a lock has at most 64 KiB. In JSON it may be six times as long.
MAX_BODY_BYTES = 512 * 1024


class BadRequest(Exception):
    """The error if a request cannot be read. The connection is closed after the answer. `status`: of the answer."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `target`: path and query. `stays_open`: the client may send another request on the connection."""

    method: str
    target: str
    body: str
    stays_open: bool


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> HttpRequest | None:
    """Return the next request of a connection, or None if the client has closed it. Raises `BadRequest`."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise BadRequest(400, "the request ends in its header; send a complete one") from None
        return None
    except asyncio.LimitOverrunError:
        raise BadRequest(431, f"the header has more than {MAX_HEAD_BYTES} bytes; send a shorter one") from None
    first, *lines = head.decode("latin-1").strip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or words[2] not in ("HTTP/1.1", "HTTP/1.0") or not words[1].startswith("/"):
        raise BadRequest(400, "this is not a request of HTTP/1.1; use a client such as curl --unix-socket")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "transfer-encoding" in headers:
        raise BadRequest(411, "the request has a body of unknown length; send the header Content-Length")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadRequest(400, "the header Content-Length is not a number; correct it")
    if int(text) > MAX_BODY_BYTES:
        raise BadRequest(413, f"the body has {text} bytes; send at most {MAX_BODY_BYTES}")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    try:
        body = (await reader.readexactly(int(text))).decode()
    except asyncio.IncompleteReadError:
        raise BadRequest(400, "the body is shorter than the header Content-Length; send a complete one") from None
    except UnicodeDecodeError:
        raise BadRequest(400, "the body is not UTF-8; send JSON") from None
    kept = headers.get("connection", "").lower() != "close" and words[2] == "HTTP/1.1"
    return HttpRequest(words[0], words[1], body, kept)


def response(status: int, body: str, *, stays_open: bool) -> bytes:
    """Return the bytes of an answer with JSON."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Status"
    content = body.encode() + b"\n"
    kind = "application/json" if status < 400 else "application/problem+json"
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n"
        f"connection: {'keep-alive' if stays_open else 'close'}\r\n\r\n"
    )
    return head.encode() + content


def problem(status: int, code: str, detail: str, **more: object) -> str:
    """Return the body of an error answer, as the REST API sends it."""
    return json.dumps({"type": f"urn:borg:{code}", "status": status, "code": code, "detail": detail, **more})
