"""The endpoints of a link shard, as an ASGI application that does not use Channels or Django's requests.

    GET  /healthz        200 if the shard runs
    GET  /metrics        metrics for Prometheus; only for this host
    GET  /authority.pem  the authority's certificate; a machine compares it with the fingerprint in its join token
    POST /join           JoinRequest -> JoinAnswer
    POST /join:bulk      [JoinRequest] -> [JoinAnswer], all or none
    WS   /link           the messages between machine and shard (`borglet.messages`)
    POST /secrets        [TaskKey] -> [SecretValues]: the secrets and config files of incarnations that the machine
                         should run
    …    /packages/…     `scheduling.link.packages.package_endpoints`
    WS   /shell?session= the bytes of a shell that was granted to the machine

Every error names the wrong field. An HTTP error is a problem document (RFC 9457). On an open WebSocket, the shard sends
a `Refusal` and then closes the WebSocket.
"""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import parse_qs

import msgspec
import structlog

from borglet.messages import (
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL,
    Hello,
    JoinRequest,
    LockCall,
    MalformedMessage,
    Refusal,
    RenewLocks,
    TaskKey,
    WireReport,
    common_protocol,
    decode_to_shard,
    encode,
)
from quota.vocabulary.errors import Rejected, invalid
from scheduling.config_files import contents
from scheduling.identity import authority
from scheduling.journal.sql import in_thread
from scheduling.link.lock_relay import LockRelay
from scheduling.link.packages.package_endpoints import PackageDoors
from scheduling.link.shard import metrics
from scheduling.link.shard.connection import INVALID_DATA, POLICY_VIOLATION
from scheduling.link.shard.database import Database, DatabaseAway
from scheduling.link.shard.inbox import HelloRejected
from scheduling.link.shard.redis_bridge import RedisBridge
from scheduling.link.shard.shard import Shard
from scheduling.link.shard.writer import Known
from scheduling.link.transport.asgi import Message, Receive, Send, decoded_body, problem, respond, wrong_field
from scheduling.link.transport.websocket import Hangup, LinkSocket
from scheduling.machines import joining
from scheduling.secrets import delivery
from scheduling.shells import streams

log = structlog.get_logger(__name__)

HELLO_WITHIN_S = 10.0
MAX_KEYS_BYTES = 32 * 1024
MOST_ASKING = 100


class LinkApp:
    """The ASGI application of a shard. The lifespan events of ASGI start and stop the shard."""

    def __init__(self, shard: Shard, redis: RedisBridge, packages: PackageDoors) -> None:
        self.shard = shard
        self._redis = redis
        self._packages = packages
        # Starts of tasks do not wait for the reports of other machines, and use one connection to PostgreSQL.
        self._secrets_database = Database("link-secrets")
        self._asking = 0  # requests for secrets that are being answered
        self.locks = LockRelay(shard.figures)
        redis.on_lock_notice, redis.on_subscribed = self.locks.changed, self.locks.waits.all_changed

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
                    await send(
                        {
                            "type": "lifespan.startup.failed",
                            "message": f"the database is unreachable: {error}; start it first",
                        }
                    )
                    return
                self._redis.start()
                self._packages.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._packages.stop()
                await self.locks.stop()
                await self._secrets_database.close()
                await self._redis.stop()
                await self.shard.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return

    # -- HTTP

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        path, content_type = scope["path"], "application/json"
        try:
            match scope["method"], path:
                case "GET", "/healthz":
                    body = b'{"status":"ok"}'
                case "GET", "/metrics" if metrics.readable_from((scope.get("client") or ("", 0))[0]):
                    content_type, body = metrics.CONTENT_TYPE, self.shard.figures.exposition()
                case "GET", "/authority.pem":
                    content_type, body = "application/x-pem-file", authority.authority_pem().encode()
                case "POST", "/join" | "/join:bulk":
                    many = path == "/join:bulk"
                    kind = list[JoinRequest] if many else JoinRequest
                    request = await decoded_body(receive, kind, most_bytes=MAX_FRAME_BYTES)
                    # Joins are rare and may be large. They use a thread of their own, so that reports do not wait.
                    join = joining.machines_join if many else joining.machine_join
                    body = msgspec.json.encode(await in_thread(join, request))
                case "POST", "/secrets":
                    body = await self._secrets(scope, receive)
                case _ if path.startswith("/packages/"):
                    await self._packages.serve(scope, receive, send, self._admit)
                    return
                case method, _:
                    detail = f"this shard has no endpoint {method} {path}; connect to /link, or POST to /join"
                    raise Rejected("not-found", detail, status=404)
        except Rejected as error:
            await respond(send, error.status, *problem(error))
        except Hangup:
            return
        else:
            await respond(send, HTTPStatus.OK, {"content-type": content_type}, body)

    async def _secrets(self, scope: Message, receive: Receive) -> bytes:
        """Return the secrets and config files of incarnations that the calling machine should run. Raises `Rejected`
        if the machine is unknown, or if too many requests are being answered.
        """
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        machine = await self._admit(header.decode("latin-1"))
        keys = await decoded_body(receive, list[TaskKey], most_bytes=MAX_KEYS_BYTES)
        if len(keys) > delivery.MOST_KEYS:
            raise invalid("keys", f"the request has {len(keys)} keys; send at most {delivery.MOST_KEYS}")
        if self._asking >= MOST_ASKING:
            detail = f"this shard answers {MOST_ASKING} requests for secrets already; try again later"
            raise Rejected("secrets-busy", detail, status=503)
        self._asking += 1
        try:
            values = await self._secrets_database(contents.values_for, machine.machine_id, keys)
        except DatabaseAway as error:
            detail = "the cell's database is unreachable; try again later"
            raise Rejected("database-away", detail, status=503) from error
        finally:
            self._asking -= 1
        return msgspec.json.encode(values)

    # -- WebSockets

    async def _websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve a WebSocket for `/shell`. (`scheduling.link.transport.websocket` serves `/link`.)"""
        await receive()  # websocket.connect
        try:
            if scope["path"] != "/shell":
                detail = f"there is no WebSocket at {scope['path']}; connect to /link"
                raise Rejected("not-found", detail, status=404)
            header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            known = await self._admit(header.decode("latin-1"))
        except Rejected as error:
            await respond(send, error.status, *problem(error), kind="websocket.http.response")
            return
        try:
            await self._shell(known, scope, receive, send)
        except Hangup:
            return
        except OSError as error:
            log.info(
                "the connection of a shell was lost", machine=known.hostname, error=str(error) or type(error).__name__
            )

    async def _shell(self, known: Known, scope: Message, receive: Receive, send: Send) -> None:
        """Copy bytes in both directions between a shell on the machine and the person who uses the shell."""
        session = parse_qs(scope["query_string"].decode("latin-1")).get("session", [""])[0]

        async def pass_on(frame: bytes) -> None:
            await send({"type": "websocket.send", "bytes": frame})

        await send({"type": "websocket.accept"})
        try:
            reason = await streams.relay(
                self._redis.shells, session, known.machine_id, lambda: _frame(receive), pass_on
            )
        except Rejected as error:
            log.warning("a shell was rejected", machine=known.hostname, detail=error.detail)
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
            return
        if reason:
            log.warning(
                "the shard closed the connection of a shell because of an error",
                machine=known.hostname,
                session=session,
                reason=reason,
            )
            await send({"type": "websocket.close", "code": INVALID_DATA, "reason": reason[:100]})

    async def converse(self, socket: LinkSocket, authorization: str) -> None:
        """Serve one WebSocket of a machine until it is closed. `authorization`: the value of its `Authorization`
        header, which is checked first.
        """
        try:
            known = await self._admit(authorization)
        except Rejected as error:
            self.shard.figures.refusals[error.code] += 1
            headers, body = problem(error)
            socket.reject(error.status, HTTPStatus(error.status).phrase, headers, body)
            return
        socket.accept()
        self.shard.figures.handshakes += 1
        try:
            session, hello = await self._welcome(known, socket)
            self._serve(known, session, socket, hello)
        except HelloRejected as error:
            self.shard.figures.refusals[error.refusal.code] += 1
            _hang_up(socket, error.refusal, POLICY_VIOLATION)
        except MalformedMessage as error:
            _hang_up(socket, _malformed(error), INVALID_DATA)
        except Hangup:
            log.debug("a machine disconnected before it was served", machine=known.hostname)

    async def _admit(self, authorization: str) -> Known:
        """Return the machine whose hostname and secret are in `authorization` (the value of the `Authorization`
        header). Raises `Rejected` if they are wrong or the database cannot be reached.
        """
        scheme, _, credential = authorization.partition(" ")
        hostname, colon, secret = credential.strip().partition(":")
        if scheme.lower() != "bearer" or not colon or not hostname or not secret:
            detail = (
                "the request has no credentials; send the header Authorization: Bearer <hostname>:<secret>,"
                " with the secret from the join answer"
            )
            raise Rejected("unauthorized", detail, fields={"Authorization": detail}, status=401)
        try:
            known = await self.shard.authenticate(hostname, secret)
        except DatabaseAway as error:
            raise Rejected(
                "database-away", "the cell's database is unreachable; try again later", status=503
            ) from error
        if known is None:
            detail = f"there is no machine {hostname[:63]!r} with this secret; join the cell with a new token"
            raise Rejected("unauthorized", detail, fields={"Authorization": detail}, status=401)
        return known

    def _serve(self, known: Known, session: int, socket: LinkSocket, hello: Hello) -> None:
        """Attach the open connection of the machine `known` to the shard, and serve it. `session`: the number of the
        machine's session. `hello`: its first message. Raises `Hangup` if the connection is already closed.
        """
        held = self.shard.attach(known, session, socket, hello)

        def receive(content: bytes) -> None:
            if held.closing:
                return
            try:
                message = decode_to_shard(content)
                if isinstance(message, WireReport):
                    self.shard.heard(held, message)
                    return
                if isinstance(message, LockCall):
                    self.locks.call(held, message)
                    return
                if isinstance(message, RenewLocks):
                    self.locks.renew(held, message)
                    return
            except MalformedMessage as error:
                held.reject(_malformed(error), INVALID_DATA)
                return
            held.reject(Refusal("unexpected", "type", "this is a second hello; send a report"))

        def hangup() -> None:
            held.closing = True
            self.locks.left(held)
            if self.shard.connections.get(held.machine_id) is held:
                self._packages.left(held.cell_id, held.machine_id)
            self.shard.detach(held)

        try:
            socket.serve(receive, hangup)
        except Hangup:
            hangup()
            raise

    async def _welcome(self, known: Known, socket: LinkSocket) -> tuple[int, Hello]:
        """Wait for the hello (first message) of a machine. Return the number of the new session, and the hello.

        Raises `HelloRejected` if the hello is missing or not accepted, or if the database cannot be reached. Raises
        `MalformedMessage` if the message cannot be read, and `Hangup` if the machine closes the connection.
        """
        try:
            content = await self.shard.progress.within(HELLO_WITHIN_S, socket.message)
            message = decode_to_shard(content)
        except TimeoutError as error:
            raise HelloRejected(
                Refusal("no-hello", "type", f"the machine sent no hello within {HELLO_WITHIN_S:g} s; connect again")
            ) from error
        if not isinstance(message, Hello):
            raise HelloRejected(
                Refusal("no-hello", "type", "the first message is not a hello; send a hello message first")
            )
        if common_protocol(message) is None:
            detail = (
                f"this link shard supports the protocol versions {OLDEST_PROTOCOL} to {PROTOCOL}, and the Borglet uses"
                f" version {message.protocol}; upgrade the older of the two"
            )
            raise HelloRejected(Refusal("protocol", "protocol", detail, retry=False))
        if message.hostname != known.hostname:
            detail = (
                f"the credentials belong to {known.hostname}, but the hello message has hostname"
                f" {message.hostname[:80]!r}; send the hostname of the credentials"
            )
            raise HelloRejected(Refusal("other-machine", "hostname", detail, retry=False))
        try:
            return await self.shard.greet(known, message), message
        except DatabaseAway as error:
            detail = "the cell's database is unreachable; try again later"
            raise HelloRejected(Refusal("database-away", "", detail)) from error


def _malformed(error: MalformedMessage) -> Refusal:
    field, what = wrong_field(error)
    return Refusal("malformed", field or "message", what)


def _hang_up(socket: LinkSocket, refusal: Refusal, code: int) -> None:
    log.warning(
        "a machine was rejected; its connection is closed",
        code=refusal.code,
        field=refusal.field,
        detail=refusal.detail,
    )
    socket.send(encode(refusal))
    socket.close(code, refusal.code)


async def _frame(receive: Receive) -> bytes | str:
    message = await receive()
    if message["type"] == "websocket.disconnect":
        raise Hangup
    frame: bytes | str | None = message.get("text")
    return frame if frame is not None else message["bytes"]
