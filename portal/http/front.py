"""What stands in front of everything else in a web process: liveness, deadlines, bounds, and answers during outages.

* `GET /healthz` is answered here, in the loop: no thread, no Django, no database. It says that the process lives.
* Each request has a deadline, which begins when its body has been read. The database gives up by itself before
  (`portal.database`); whatever else takes too long is answered with 503 here and left to end alone.
* At most `most` requests are under way, those included that were left alone: more are answered with 503 at once. Long
  polls of names are not counted: they hold no thread, and have a bound of their own (`portal.live.watches`).
* Errors of what lies in front of Django become problem documents, and those of WebSockets become close codes.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from typing import Any

import structlog

from naming.api.bns import MOST_WAIT_S
from portal.database import end_at
from portal.http.bodies import Application, Message, Receive, Send
from portal.http.errors import unavailable
from portal.http.outages import LATE, Outage, outage_of

log = structlog.get_logger(__name__)

# What may take long for good reason: uploads of packages and bulk submissions. As long as `borgctl` waits for them.
LONG_S = 900.0
_LONG = re.compile(r"PUT /api/v1/cells/[^/]+/packages/.*|POST /api/v1/cells/[^/]+/jobs:bulk/?")
# The database gives up at the deadline and its error becomes an answer; this much later nobody waits for that any more.
GRACE_S = 2.0
MOST_REQUESTS = 500
# WebSockets close with 4000 + the HTTP status.
AWAY = 4503
_ALIVE = json.dumps({"status": "ok"}).encode()


class Front:
    """The ASGI application of the process: `http` and `websocket` behind these bounds, `lifespan` as it is."""

    def __init__(
        self,
        *,
        http: Application,
        websocket: Application,
        lifespan: Application,
        deadline_s: float,
        most: int = MOST_REQUESTS,
    ) -> None:
        self._http, self._websocket, self._lifespan = http, websocket, lifespan
        self._deadline_s, self._most = deadline_s, most
        self._under_way: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif scope["type"] != "http":
            await self._lifespan(scope, receive, send)
        elif scope["path"] == "/healthz":
            await _respond(
                send, 200, _ALIVE, {"content-type": "application/json", "cache-control": "no-store"}
            )
        elif len(self._under_way) >= self._most and not _waits(scope):
            detail = f"This process has {self._most} requests under way, the most it takes. Try again in 5 seconds."
            await _answer(send, scope, Outage("overloaded", detail), close=True)
        else:
            await self._request(scope, receive, send)

    async def _request(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        reply = _Reply(send)
        late = asyncio.get_running_loop().create_future()
        reading = _Reading(receive, _deadline_s(scope, self._deadline_s), late)
        task = asyncio.ensure_future(self._http(scope, reading, reply))
        if not _waits(scope):
            self._under_way.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait((task, late), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the server stops
            task.cancel()
            raise
        finally:
            reading.end()
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            await self._failed(scope, reply, error)
        elif not task.done() and reply.begun:
            await task  # a body that is being sent has begun in time
        elif not task.done():
            reply.over = True
            task.cancel()
            log.warning("a request was given up", method=scope["method"], path=scope["path"])
            await _answer(send, scope, LATE, close=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # read, or the loop complains

    async def _failed(self, scope: dict[str, Any], reply: _Reply, error: BaseException) -> None:
        found = outage_of(error)
        if reply.begun or found is None:
            raise error
        log.warning("a request met an outage", path=scope["path"], code=found.code, error=str(error))
        await _answer(reply, scope, found)

    async def _socket(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        state = {"accepted": False, "closed": False}

        async def noting(message: Message) -> None:
            state["accepted"] |= message["type"] == "websocket.accept"
            state["closed"] |= message["type"] == "websocket.close"
            await send(message)

        try:
            await self._websocket(scope, receive, noting)
        except Exception as error:
            found = outage_of(error)
            if found is None or state["closed"]:
                raise
            log.warning("a WebSocket met an outage", path=scope["path"], code=found.code, error=str(error))
            if not state["accepted"]:  # else the browser sees neither code nor reason
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": AWAY, "reason": found.code})


class _Reply:
    """`begun`: the answer's head was sent. Once `over`, what else comes is dropped."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.over = False

    async def __call__(self, message: Message) -> None:
        if self.over:
            return
        self.begun = True
        await self._send(message)


class _Reading:
    """Receives the body, and lets the deadline begin at its end: slow senders are not slow requests.

    `late` is done when the deadline and the grace are over.
    """

    def __init__(self, receive: Receive, deadline_s: float, late: asyncio.Future[None]) -> None:
        self._receive, self._deadline_s, self._late = receive, deadline_s, late
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        if self._timer is None and message["type"] == "http.request" and not message.get("more_body"):
            end_at(
                time.monotonic() + self._deadline_s
            )  # for the task that reads, and so for all of its threads
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._deadline_s + GRACE_S, self._over)
        return message

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _over(self) -> None:
        if not self._late.done():
            self._late.set_result(None)


def _deadline_s(scope: dict[str, Any], usual_s: float) -> float:
    if _LONG.fullmatch(f"{scope['method']} {scope['path']}"):
        return max(LONG_S, usual_s)
    return usual_s + MOST_WAIT_S if _waits(scope) else usual_s


def _waits(scope: dict[str, Any]) -> bool:
    """Whether the caller wants to wait for a name to change (`portal.live.polls`)."""
    return scope["path"].startswith("/bns/") and b"wait_s=" in scope["query_string"]


async def _answer(send: Send, scope: dict[str, Any], outage: Outage, *, close: bool = False) -> None:
    response = unavailable(outage, path=scope["path"], request_id=uuid.uuid4().hex)
    headers = {name.lower(): value for name, value in response.items()}
    if close:
        headers["connection"] = "close"
    await _respond(send, response.status_code, response.content, headers)


async def _respond(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    told = {**headers, "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(name.encode(), value.encode()) for name, value in told.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})
