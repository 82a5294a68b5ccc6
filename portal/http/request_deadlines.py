"""The first ASGI application of a web process, which gets all requests before Django does.

* It answers `GET /healthz` itself, without Django or the database. This response shows that the process is alive.
* It limits the rate of requests per token, tenant and address (`portal.http.rate_limits`). Further requests get 429.
  Checks of health have no rate (`portal.http.thread_pools` limits them).
* It sets a deadline for each request, which starts when the portal has read the body. Database calls end before the
  deadline (`portal.database_time_limits`). If a request takes longer for another reason, the client gets 503.
* It limits how many requests run at the same time. Further requests get 503 immediately. Long polls of names have their
  own limit (`portal.live.watch_limits`).
* It converts errors that Django did not handle to problem documents, or to close codes of WebSockets.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any

import structlog

from naming.api.bns import MOST_WAIT_S
from portal.database_time_limits import end_at
from portal.http.asgi_responses import Application, Message, Receive, Send, respond
from portal.http.errors import unavailable
from portal.http.handler import has_body, rank_of
from portal.http.metrics import rejected_requests
from portal.http.outages import LATE, Outage, Overloaded, outage_of
from portal.http.rate_limits import Headers, RequestRates, headers_of, rejection
from portal.http.thread_pools import Rank

log = structlog.get_logger(__name__)

# The deadline of requests that may take long: uploads of packages, bulk submissions, verbs of services, restores in
# place, and the creation and deletion of study cells. `borgctl` waits for uploads for the same time.
LONG_S = 900.0
_LONG = re.compile(
    r"PUT /api/v1/cells/[^/]+/packages/.*|POST /api/v1/cells/[^/]+/(jobs:bulk|checkpoints:restore(-in-place)?)/?"
    r"|(PUT|DELETE) /api/v1/studies/.*|POST /api/v1/cells/[^/]+/services/[^/]+/[^/]+/(plan|stop|start|restart)/?"
    r"|(GET|POST) /services/[^/]+/[^/]+/[^/]+/(stop|start|restart)/"
)
# These requests are long polls if they have the parameter `wait_s`.
_WAITING = re.compile(
    r"[A-Z]+ /bns/.*|GET /api/v1/cells/[^/]+/locks/[^/]+/files/.+|POST /api/v1/cells/[^/]+/locks/[^/]+/acquire/.+"
)
# Database calls fail at the deadline, and their error becomes the answer. This is the extra time for the answer.
GRACE_S = 2.0
MOST_REQUESTS = 500
# A larger body takes longer to read than a new connection takes to open.
_SMALL_BODY = 65_536
# WebSockets close with 4000 + the HTTP status.
AWAY = 4503
_ALIVE = b'{"status": "ok"}'


class Front:
    """The first ASGI application of a web process. It limits the time and the number of HTTP requests. It passes HTTP
    requests on to Django, and WebSockets to Channels.

    `deadline_s`: how many seconds a request may take after its body has arrived. `most`: how many requests may run at
    the same time. `rates`: the limits on the rates of callers; None means no limits.
    """

    def __init__(
        self,
        *,
        http: Application,
        websocket: Application,
        lifespan: Application,
        deadline_s: float,
        most: int = MOST_REQUESTS,
        rates: RequestRates | None = None,
    ) -> None:
        self._http, self._websocket, self._lifespan = http, websocket, lifespan
        self._deadline_s, self._most, self._rates = deadline_s, most, rates
        self._under_way: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif scope["type"] != "http":
            await self._lifespan(scope, receive, send)
        elif scope["path"] == "/healthz":
            await respond(send, 200, _ALIVE, {"content-type": "application/json", "cache-control": "no-store"})
        else:
            await self._limited(scope, receive, send)

    async def _limited(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request if the limits allow it."""
        rank = rank_of(scope)
        taken = self._rates.take(scope) if self._rates and rank is not Rank.HEALTH else None
        reply = _Reply(send, headers_of(taken, scope["path"]) if taken else [])
        if taken and taken.rejected_by is not None:
            rejected_requests.labels(f"rate-of-{taken.rejected_by.rate.name}", rank.label).inc()
            large = has_body(scope, more_than=_SMALL_BODY)
            await _answer(reply, scope, rejection(taken.rejected_by, taken.wait_s), close=large)
        elif len(self._under_way) >= self._most and not _waits(scope) and rank is not Rank.HEALTH:
            rejected_requests.labels("requests-at-once", rank.label).inc()
            error = Overloaded(f"This web process already answers {self._most} requests, which is its limit.")
            await _answer(reply, scope, error.outage, close=True)
        else:
            await self._request(scope, receive, reply)

    async def _request(self, scope: dict[str, Any], receive: Receive, reply: _Reply) -> None:
        """Answer a request within its deadline."""
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
            await _answer(_Reply(reply.send, reply.headers), scope, LATE, close=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # mark the error as read, because asyncio logs unread errors

    async def _failed(self, scope: dict[str, Any], reply: _Reply, error: BaseException) -> None:
        found = outage_of(error)
        if reply.begun or found is None:
            raise error
        if not isinstance(error, Overloaded):  # these are counted, and a line for each would be more load
            log.warning(
                "a request failed, because a service that it needs is unreachable, full or busy",
                path=scope["path"],
                code=found.code,
                error=str(error),
            )
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
            log.warning(
                "the portal closed a WebSocket, because a service that it needs is unreachable, full or busy",
                path=scope["path"],
                code=found.code,
                error=str(error),
            )
            if not state["accepted"]:  # a browser sees the code and the reason only after the accept
                await send({"type": "websocket.accept"})
            await send({"type": "websocket.close", "code": AWAY, "reason": found.code})


class _Reply:
    """The function with which Django sends the response to a request. If the request takes too long, further messages
    are dropped.

    `headers`: added to the response. `begun`: whether the first message of the response was sent. `over`: whether
    further messages are dropped.
    """

    def __init__(self, send: Send, headers: Headers) -> None:
        self.send = send
        self.begun = self.over = False
        self.headers = headers

    async def __call__(self, message: Message) -> None:
        if self.over:
            return
        self.begun = True
        if self.headers and message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *self.headers]}
        await self.send(message)


class _Reading:
    """The function with which Django receives a request. It starts the deadline of the request when the whole body has
    arrived, so the time of a slow upload does not count.

    `late`: a future that is set when the deadline and `GRACE_S` more seconds have passed.
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
        """Cancel the deadline of the request."""
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
    """Return whether the request is a long poll, which waits for a change of a name (`portal.live.long_polls`) or for a
    lock (`portal.live.lock_polls`).
    """
    return b"wait_s=" in scope["query_string"] and _WAITING.fullmatch(f"{scope['method']} {scope['path']}") is not None


async def _answer(send: Send, scope: dict[str, Any], outage: Outage, *, close: bool = False) -> None:
    response = unavailable(outage, path=scope["path"], request_id=uuid.uuid4().hex)
    headers = {name.lower(): value for name, value in response.items()}
    if close:
        headers["connection"] = "close"
    await respond(send, response.status_code, response.content, headers)
