"""The outermost ASGI application of a web process: liveness, deadlines, limits, and answers during outages.

* It answers `GET /healthz` in the event loop, without a thread, Django or the database. The answer shows that the
  process is alive.
* Each request has a deadline, which starts when the portal has read its body. Database calls end before the deadline
  (`portal.database`). A request that takes longer for another reason gets 503, and its thread ends without an answer.
* At most `most` requests run at the same time, including those that exceeded their deadline. Further requests get 503
  immediately. This limit does not apply to long polls of names, which hold no thread (`portal.live.watches` limits
  them).
* Errors in front of Django become problem documents, and errors of WebSockets become close codes.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import structlog

from naming.api.bns import MOST_WAIT_S
from portal.database import end_at
from portal.http.answers import Application, Message, Receive, Send, respond
from portal.http.errors import unavailable
from portal.http.outages import LATE, Outage, outage_of

log = structlog.get_logger(__name__)

# The deadline of uploads of packages and bulk submissions, which may take long. `borgctl` waits for the same time.
LONG_S = 900.0
_LONG = re.compile(r"PUT /api/v1/cells/[^/]+/packages/.*|POST /api/v1/cells/[^/]+/jobs:bulk/?")
# Database calls fail at the deadline, and their error becomes the answer. This is the extra time for the answer.
GRACE_S = 2.0
MOST_REQUESTS = 500
# WebSockets close with 4000 + the HTTP status.
AWAY = 4503
_ALIVE = b'{"status": "ok"}'


class Front:
    """The ASGI application of a web process. It limits the time and the number of HTTP requests, and passes HTTP
    requests and WebSockets on to Django and Channels.

    `deadline_s`: how many seconds a request may take after its body has arrived. `most`: the largest number of requests
    that run at the same time.
    """

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
            await respond(send, 200, _ALIVE, {"content-type": "application/json", "cache-control": "no-store"})
        elif len(self._under_way) >= self._most and not _waits(scope):
            detail = f"This process already answers {self._most} requests, which is its limit. Try again in 5 seconds."
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
            await task  # the answer began before the deadline, so it may finish
        elif not task.done():
            reply.over = True
            task.cancel()
            log.warning("a request exceeded its deadline", method=scope["method"], path=scope["path"])
            await _answer(send, scope, LATE, close=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # mark the error as read, because asyncio logs unread errors

    async def _failed(self, scope: dict[str, Any], reply: _Reply, error: BaseException) -> None:
        found = outage_of(error)
        if reply.begun or found is None:
            raise error
        log.warning("a request failed in an outage", path=scope["path"], code=found.code, error=str(error))
        await _answer(reply, scope, found)

    async def _socket(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        state = {"accepted": False, "closed": False}

        async def send_and_note(message: Message) -> None:
            state["accepted"] |= message["type"] == "websocket.accept"
            state["closed"] |= message["type"] == "websocket.close"
            await send(message)

        try:
            await self._websocket(scope, receive, send_and_note)
        except Exception as error:
            found = outage_of(error)
            if found is None or state["closed"]:
                raise
            log.warning("a WebSocket failed in an outage", path=scope["path"], code=found.code, error=str(error))
            if not state["accepted"]:  # a browser sees the code and the reason only after the accept
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": AWAY, "reason": found.code})


class _Reply:
    """The send function of a request, which can be cut off when the request takes too long.

    `begun`: the first message of the answer was sent. `over`: the answer has ended, and further messages are dropped.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = self.over = False

    async def __call__(self, message: Message) -> None:
        if self.over:
            return
        self.begun = True
        await self._send(message)


class _Reading:
    """The receive function of a request, which starts the request's deadline. The deadline starts only when the whole
    body has arrived, so the time of a slow upload does not count.

    `late`: a future that is done when the deadline and `GRACE_S` have passed.
    """

    def __init__(self, receive: Receive, deadline_s: float, late: asyncio.Future[None]) -> None:
        self._receive, self._deadline_s, self._late = receive, deadline_s, late
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self) -> Message:
        message = await self._receive()
        if self._timer is None and message["type"] == "http.request" and not message.get("more_body"):
            end_at(time.monotonic() + self._deadline_s)  # applies to the task that reads, and to all its threads
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._deadline_s + GRACE_S, self._over)
        return message

    def end(self) -> None:
        """Cancel the deadline."""
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
    """Return whether the request waits for a change of a name (`portal.live.polls`)."""
    return scope["path"].startswith("/bns/") and b"wait_s=" in scope["query_string"]


async def _answer(send: Send, scope: dict[str, Any], outage: Outage, *, close: bool = False) -> None:
    response = unavailable(outage, path=scope["path"], request_id=uuid.uuid4().hex)
    headers = {name.lower(): value for name, value in response.items()}
    if close:
        headers["connection"] = "close"
    await respond(send, response.status_code, response.content, headers)
