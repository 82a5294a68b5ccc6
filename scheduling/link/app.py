"""The endpoints of a link shard, as a plain ASGI application without Channels and without Django requests.

    GET  /healthz        200 if the shard runs
    GET  /metrics        metrics for Prometheus; only for this host
    GET  /authority.pem  the authority's certificate; a machine compares it with its join token's fingerprint
    POST /join           JoinRequest -> JoinAnswer
    POST /join:bulk      [JoinRequest] -> [JoinAnswer], all or none
    WS   /link           the conversation of `borglet.messages`
    …    /packages/…     `scheduling.link.packages.doors`
    WS   /shell?session= the bytes of a shell that was granted to the machine

Every error names the wrong field. It is a problem document (RFC 9457), or, if the WebSocket is open, a `Refusal`
followed by a close.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import msgspec
import structlog

from borglet.messages import (
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL,
    Hello,
    JoinRequest,
    MalformedMessage,
    Refusal,
    WireReport,
    common_protocol,
    decode_to_shard,
    encode,
)
from quota.vocabulary.errors import Rejected
from scheduling.identity import authority
from scheduling.journal.sql import in_thread
from scheduling.link.packages.doors import PackageDoors
from scheduling.link.shard import metrics
from scheduling.link.shard.connection import INVALID_DATA, POLICY_VIOLATION
from scheduling.link.shard.database import DatabaseAway
from scheduling.link.shard.inbox import Greeting
from scheduling.link.shard.redis_bridge import RedisBridge
from scheduling.link.shard.shard import Shard
from scheduling.link.shard.writer import Known
from scheduling.link.transport.websocket import Hangup, LinkSocket
from scheduling.machines import joining
from scheduling.shells import streams

log = structlog.get_logger(__name__)
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HELLO_WITHIN_S = 10.0
_PATH = re.compile(r" - at `\$\.?([^`]*)`")
_join_one = msgspec.json.Decoder(JoinRequest)
_join_many = msgspec.json.Decoder(list[JoinRequest])


class LinkApp:
    """The ASGI application of a shard. Lifespan events start and stop the shard."""

    def __init__(self, shard: Shard, courier: RedisBridge, packages: PackageDoors) -> None:
        self.shard = shard
        self._courier = courier
        self._packages = packages

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.shard.start()
                except DatabaseAway as error:
                    await send({"type": "lifespan.startup.failed", "message": f"database away: {error}"})
                    return
                self._courier.start()
                self._packages.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._packages.stop()
                await self._courier.stop()
                await self.shard.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- HTTP

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        try:
            if (method, path) == ("GET", "/healthz"):
                answer = (200, "application/json", b'{"status":"ok"}')
            elif (method, path) == ("GET", "/metrics") and _from_here(scope):
                answer = (200, metrics.CONTENT_TYPE, self.shard.figures.exposition())
            elif (method, path) == ("GET", "/authority.pem"):
                answer = (200, "application/x-pem-file", authority.authority_pem().encode())
            elif (method, path) == ("POST", "/join"):
                # Joining is rare and may be large: not on the shard's thread, so that reports do not wait for it.
                request = _decoded(_join_one, await _body(receive))
                answer = _json(await in_thread(joining.machine_join, request))
            elif (method, path) == ("POST", "/join:bulk"):
                requests = _decoded(_join_many, await _body(receive))
                answer = _json(await in_thread(joining.machines_join, requests))
            elif path.startswith("/packages/"):
                await self._packages.serve(scope, receive, send, self._admit)
                return
            else:
                answer = problem(Rejected("not-found", f"there is no {method} {path} here", status=404))
        except Rejected as error:
            answer = problem(error)
        except Hangup:
            return
        status, content_type, body = answer
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    # -- WebSockets

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve `/shell`. `scheduling.link.transport.websocket` serves `/link`."""
        await receive()  # websocket.connect
        try:
            if scope["path"] != "/shell":
                detail = f"there is no WebSocket at {scope['path']}; connect to /link"
                raise Rejected("not-found", detail, status=404)
            header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            known = await self._admit(header.decode("latin-1"))
        except Rejected as error:
            status, headers, body = _refusal(error)
            pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "websocket.http.response.start", "status": status, "headers": pairs})
            await send({"type": "websocket.http.response.body", "body": body})
            return
        try:
            await self._shell(known, scope, receive, send)
        except Hangup:
            return
        except OSError as error:
            log.info("connection lost", machine=known.hostname, error=str(error) or type(error).__name__)

    async def _shell(self, known: Known, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on what a shell on the machine and its client say to each other."""
        session = parse_qs(scope["query_string"].decode("latin-1")).get("session", [""])[0]

        async def pass_on(frame: bytes) -> None:
            await send({"type": "websocket.send", "bytes": frame})

        await send({"type": "websocket.accept"})
        try:
            reason = await streams.relay(
                self._courier.shells, session, known.machine_id, lambda: _frame(receive), pass_on
            )
        except Rejected as error:
            log.warning("shell rejected", machine=known.hostname, detail=error.detail)
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
            return
        if reason:
            log.warning("shell cut off", machine=known.hostname, session=session, reason=reason)
            await send({"type": "websocket.close", "code": INVALID_DATA, "reason": reason[:100]})

    async def converse(self, socket: LinkSocket, authorization: str) -> None:
        """Handle one WebSocket: check its `Authorization` header, then serve its machine until it closes."""
        try:
            known = await self._admit(authorization)
        except Rejected as error:
            self.shard.figures.refusals[error.code] += 1
            _reject(socket, error)
            return
        socket.accept()
        self.shard.figures.handshakes += 1
        try:
            session, hello = await self._welcome(known, socket)
            self._serve(known, session, socket, hello)
        except Greeting as error:
            self.shard.figures.refusals[error.refusal.code] += 1
            _hang_up(socket, error.refusal, POLICY_VIOLATION)
        except MalformedMessage as error:
            _hang_up(socket, malformed(error), INVALID_DATA)
        except Hangup:
            log.debug("disconnected before it was served", machine=known.hostname)

    async def _admit(self, authorization: str) -> Known:
        """Return the machine that connects. Raises `Rejected`."""
        scheme, _, credential = authorization.partition(" ")
        hostname, colon, secret = credential.strip().partition(":")
        if scheme.lower() != "bearer" or not colon or not hostname or not secret:
            detail = "no credentials; send the header Authorization: Bearer <hostname>:<secret>, as in the join answer"
            raise Rejected("unauthorized", detail, fields={"Authorization": detail}, status=401)
        try:
            known = await self.shard.authenticate(hostname, secret)
        except DatabaseAway as error:
            raise Rejected(
                "database-away", "the cell's database is unreachable; try again later", status=503
            ) from error
        if known is None:
            detail = f"no machine {hostname[:63]!r} with this secret; join the cell with a new token"
            raise Rejected("unauthorized", detail, fields={"Authorization": detail}, status=401)
        return known

    def _serve(self, known: Known, session: int, socket: LinkSocket, hello: Hello) -> None:
        """Hand the connection over to the shard. Raises `Hangup`."""
        held = self.shard.attach(known, session, socket, hello)

        def receive(content: bytes) -> None:
            if held.closing:
                return
            try:
                message = decode_to_shard(content)
                if isinstance(message, WireReport):
                    self.shard.heard(held, message)
                    return
            except MalformedMessage as error:
                held.refuse(malformed(error), INVALID_DATA)
                return
            held.refuse(Refusal("unexpected", "type", "a report is expected here, not a second hello"))

        def hangup() -> None:
            held.closing = True
            if self.shard.connections.get(held.machine_id) is held:
                self._packages.left(held.cell_id, held.machine_id)
            self.shard.detach(held)

        try:
            socket.serve(receive, hangup)
        except Hangup:
            hangup()
            raise

    async def _welcome(self, known: Known, socket: LinkSocket) -> tuple[int, Hello]:
        """Take the hello; the number of the session.

        Raises `Greeting`, `MalformedMessage`, `Hangup`."""
        try:
            content = await self.shard.progress.within(HELLO_WITHIN_S, socket.message)
            message = decode_to_shard(content)
        except TimeoutError as error:
            raise Greeting(
                Refusal("no-hello", "type", f"no hello within {HELLO_WITHIN_S:g} s after the handshake")
            ) from error
        if not isinstance(message, Hello):
            raise Greeting(Refusal("no-hello", "type", "the first message must be a hello"))
        if common_protocol(message) is None:
            detail = (
                f"this shard speaks protocol {OLDEST_PROTOCOL} to {PROTOCOL}, not {message.protocol}; "
                "upgrade the older side"
            )
            raise Greeting(Refusal("protocol", "protocol", detail, retry=False))
        if message.hostname != known.hostname:
            detail = f"authenticated as {known.hostname}, but the hello says {message.hostname[:80]!r}"
            raise Greeting(Refusal("other-machine", "hostname", detail, retry=False))
        try:
            return await self.shard.greet(known, message), message
        except DatabaseAway as error:
            detail = "the cell's database is unreachable; try again later"
            raise Greeting(Refusal("database-away", "", detail)) from error


def _from_here(scope: Message) -> bool:
    host = (scope.get("client") or ("", 0))[0]
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def malformed(error: MalformedMessage) -> Refusal:
    text = str(error)
    path = _PATH.search(text)
    return Refusal("malformed", path.group(1) if path else "message", _PATH.sub("", text))


def problem(error: Rejected) -> tuple[int, str, bytes]:
    """Return a problem document (RFC 9457), as REST does."""
    body: dict[str, Any] = {
        "type": f"urn:borg:{error.code}",
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
    }
    if error.fields:
        body["fields"] = error.fields
    if error.figures:
        body["figures"] = error.figures
    return error.status, "application/problem+json", msgspec.json.encode(body)


def _json(answer: Any) -> tuple[int, str, bytes]:
    return 200, "application/json", msgspec.json.encode(answer)


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = str(error)
        path = _PATH.search(text)
        field, what = (path.group(1) if path else "") or "body", _PATH.sub("", text)
        if missing := re.search(r"field `(\w+)`", what):
            field = missing.group(1) if field == "body" else f"{field}.{missing.group(1)}"
        raise Rejected("invalid", f"{field}: {what}", fields={field: what}) from error


async def _body(receive: Receive) -> bytes:
    parts = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Hangup
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_FRAME_BYTES:
            detail = f"the body has more than {MAX_FRAME_BYTES} bytes; join fewer machines per request"
            raise Rejected("too-large", detail, fields={"body": detail}, status=413)
        if not message.get("more_body", False):
            return b"".join(parts)


def _hang_up(socket: LinkSocket, refusal: Refusal, code: int) -> None:
    log.warning("rejected", code=refusal.code, field=refusal.field, detail=refusal.detail)
    socket.send(encode(refusal))
    socket.close(code, refusal.code)


def _reject(socket: LinkSocket, error: Rejected) -> None:
    """Reject the handshake with a problem document."""
    status, headers, body = _refusal(error)
    socket.reject(status, HTTPStatus(status).phrase, headers, body)


def _refusal(error: Rejected) -> tuple[int, dict[str, str], bytes]:
    status, content_type, body = problem(error)
    headers = {"Content-Type": content_type}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="borg"'
    return status, headers, body


async def _frame(receive: Receive) -> bytes | str:
    message = await receive()
    if message["type"] == "websocket.disconnect":
        raise Hangup
    frame: bytes | str | None = message.get("text")
    return frame if frame is not None else message["bytes"]
