"""Django's ASGI application, changed so that one thread does the whole work of a request.

Django's own version starts a thread for each request, and switches about twenty times between this thread and the event
loop. Here the threads are used again for later requests, and all middlewares and the view of a request run in the same
thread. There are four pools of threads, so that slow work does not delay quick work:

    GET, HEAD ──────────────────────────► reads  ─┐
    POST, PUT, PATCH, DELETE ───────────► writes ─┼─► one thread ─► middlewares ─► view ─► response
    bulk submissions ───────────────────► bulk   ─┤
    feeds, logs, past moments, … ───────► long   ─┘

If no thread is free for some time, a request gets 503 with `Retry-After`. `portal.http.thread_pools` decides which
request this is.

The handler reads the whole body first and then passes it to Django with its length. It rejects a body of more than
`most_bytes`. Without this, Django REST framework would ignore a body of unknown length (`Transfer-Encoding: chunked`).
For example, a kill with the body `{"indexes": [1]}` would kill the whole job.
"""

from __future__ import annotations

import os
import re
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from django.urls import set_script_prefix

from portal.http.asgi_responses import Receive, Send, reject
from portal.http.errors import FOR_PROGRAMS
from portal.http.outages import Overloaded
from portal.http.thread_pools import Answer, Queues, Rank, Threads
from quota.vocabulary.errors import Rejected

READS, WRITES, BULK, LONG = 4, 8, 2, 4
# The share of a request's deadline that it may wait for a thread.
WAIT_SHARE = 0.2
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_HEALTH = frozenset({"/readyz", "/metrics"})
_BULK = re.compile(r"/api/v1/cells/[^/]+/jobs:bulk/?")
# Requests that change nothing, although their method is POST.
_QUERY = re.compile(r"/api/v1/cells/[^/]+/(sql|jobs/[^/]+/[^/]+/plan)/?|/v3/.*")
_SUBMISSION = re.compile(r"/api/v1/cells/[^/]+/jobs(:bulk)?/?")
_LONG = re.compile(
    r"/metrics|/api/v1/(schema/|feeds/.*|studies/.*|cells/[^/]+/(checkpoints:(restore|moment)|packages/.*|jobs/.*/logs/.*))"
    r"|/cells/[^/]+/at/|/admin/moments/|(/api/v1/cells/[^/]+)?/services/[^/]+/[^/]+(/[^/]+)?/(plan|stop|start|restart)/?"
)


class ThreadedHandler(ASGIHandler):
    """Django's ASGI application, with separate pools of threads for reads, writes and long requests.

    `deadline_s`: within how many seconds a request must be answered. `most_bytes`: the largest size of a request body.
    """

    def __init__(self, *, deadline_s: float, most_bytes: int) -> None:
        BaseHandler.__init__(self)
        self.most_bytes = most_bytes
        self.load_middleware(is_async=False)
        wait_s = deadline_s * WAIT_SHARE
        queues = Queues()
        self._reads = Threads("reads", READS, longest_wait_s=wait_s, queues=queues)
        self._writes = Threads("writes", WRITES, longest_wait_s=wait_s, queues=queues)
        self._bulk = Threads("bulk submissions", BULK, longest_wait_s=wait_s, queues=queues)
        self._long = Threads("long requests", LONG, longest_wait_s=wait_s, queues=queues)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answer(scope, receive, send, most_bytes=self.most_bytes)

    async def answer(self, scope: dict[str, Any], receive: Receive, send: Send, *, most_bytes: int) -> None:
        """Answer a request. If its body has more than `most_bytes` bytes, the response is 413."""
        headers = dict(scope["headers"])
        try:
            if int(headers.get(b"content-length", b"0")) > most_bytes:  # the server has checked that it is a number
                raise _too_large(most_bytes)
            body = await _read(receive, most_bytes)
        except Rejected as problem:
            return await reject(send, problem)
        if body is None:
            return None
        if b"transfer-encoding" in headers:
            known = [pair for pair in scope["headers"] if pair[0] != b"transfer-encoding"]
            scope = {**scope, "headers": [*known, (b"content-length", str(body.seek(0, os.SEEK_END)).encode())]}
        body.seek(0)
        try:
            start, content = await self._threads(scope).run(lambda: self._respond(scope, body), rank_of(scope))
        except Overloaded:
            body.close()
            raise
        await send(start)
        await send({"type": "http.response.body", "body": content})
        return None

    def _threads(self, scope: dict[str, Any]) -> Threads:
        if _BULK.fullmatch(scope["path"]):
            return self._bulk
        if _LONG.fullmatch(scope["path"]):
            return self._long
        return self._reads if scope["method"] in _SAFE else self._writes

    def _respond(self, scope: dict[str, Any], body: IO[bytes]) -> Answer:
        """Run Django. Return the ASGI message that starts the response, and the complete content of the response."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        with body:
            request, unreadable = self.create_request(scope, body)
            response = unreadable if request is None else self.get_response(request)
            assert response is not None
            try:
                return _start(response), b"".join(response)
            finally:
                response.close()  # sends `request_finished`, which returns the connection to the pool


def rank_of(scope: dict[str, Any]) -> Rank:
    """Return how important a request is while the process has too many requests."""
    if scope["path"] in _HEALTH and scope["method"] in ("GET", "HEAD") and not has_body(scope):
        return Rank.HEALTH
    if scope["path"].startswith(FOR_PROGRAMS):
        if scope["method"] in _SAFE or _QUERY.fullmatch(scope["path"]):
            return Rank.API_READ
        return Rank.SUBMISSION if _SUBMISSION.fullmatch(scope["path"]) else Rank.API_WRITE
    return Rank.PAGE_READ if scope["method"] in _SAFE else Rank.PAGE_WRITE


def has_body(scope: dict[str, Any], more_than: int = 0) -> bool:
    """Return whether a request has a body of more than `more_than` bytes, or of unknown length."""
    headers = dict(scope["headers"])
    return b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > more_than


async def _read(receive: Receive, most_bytes: int) -> IO[bytes] | None:
    """Return the whole request body. Return None if the client disconnected. Raises `Rejected` if the body has more
    than `most_bytes` bytes.
    """
    body = SpooledTemporaryFile(max_size=settings.FILE_UPLOAD_MAX_MEMORY_SIZE)  # noqa: SIM115 - closed after the request
    while True:
        message = await receive()
        body.write(message.get("body", b""))
        if message["type"] == "http.disconnect":
            body.close()
            return None
        if body.tell() > most_bytes:
            body.close()
            raise _too_large(most_bytes)
        if not message.get("more_body"):
            return body


def _too_large(most_bytes: int) -> Rejected:
    detail = f"The request body is larger than the {most_bytes} bytes that this server accepts. Send a smaller body."
    return Rejected("too-large", detail, status=413)


def _start(response: HttpResponseBase) -> dict[str, Any]:
    headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in response.items()]
    headers += [
        (b"Set-Cookie", cookie.output(header="").strip().encode("ascii")) for cookie in response.cookies.values()
    ]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}
