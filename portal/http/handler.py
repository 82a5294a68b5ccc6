"""Django's ASGI application, changed so that one thread does the whole work of a request.

Django's own version starts a thread for each request, and switches about twenty times between this thread and the event
loop. Here the threads are used again for later requests, and all middlewares and the view of a request run in the same
thread. There are three pools of threads, so that slow work does not delay quick work:

    GET, HEAD ──────────────────────────► reads  ─┐
    POST, PUT, PATCH, DELETE ───────────► writes ─┼─► one thread ─► middlewares ─► view ─► response
    feeds, logs, past moments, … ───────► long   ─┘

If no thread is free for some time, a request gets 503 with `Retry-After`.

The handler reads the whole body first and then passes it to Django with its length. It rejects a body of more than
`most_bytes`. Without this, Django REST framework would ignore a body of unknown length (`Transfer-Encoding: chunked`).
For example, a kill with the body `{"indexes": [1]}` would kill the whole job.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from django.urls import set_script_prefix

from portal.http.answers import Receive, Send, reject
from portal.http.outages import RETRY_AFTER_S, Overloaded
from quota.vocabulary.errors import Rejected

READS, WRITES, LONG = 4, 8, 4
# The share of a request's deadline that it may wait for a thread.
WAIT_SHARE = 0.2
_MOST_WAITING = 200
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LONG = re.compile(
    r"/metrics|/api/v1/(schema/|feeds/.*|studies/.*"
    r"|cells/[^/]+/(jobs:bulk/?|checkpoints:(restore|moment)|packages/.*|jobs/.*/logs/.*))"
    r"|/cells/[^/]+/at/|/admin/moments/"
)

_Answer = tuple[dict[str, Any], bytes]


class Threads:
    """A pool of threads for one kind of request. Its methods may be called only in the event loop."""

    def __init__(self, name: str, number: int, *, longest_wait_s: float, most_waiting: int = _MOST_WAITING) -> None:
        self._name, self._longest_wait_s, self._most_waiting = name, longest_wait_s, most_waiting
        self._free = asyncio.Semaphore(number)
        self._waiting = 0
        self._executor = ThreadPoolExecutor(number, thread_name_prefix=name)

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Run `work` in a thread and return its result. Raises `Overloaded` if no thread becomes free in time."""
        if self._waiting >= self._most_waiting:
            raise self._overloaded()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._longest_wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise self._overloaded() from error
        finally:
            self._waiting -= 1
        loop = asyncio.get_running_loop()

        def ended(_: Future[_Answer]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._free.release)

        # The thread of a cancelled request still works, so the place is free only when the thread has ended.
        running = self._executor.submit(copy_context().run, work)
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"All threads of this process for {self._name} are busy, and {self._waiting} requests wait for them. "
            f"Try again in {RETRY_AFTER_S} seconds."
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
        self._reads = Threads("reads", READS, longest_wait_s=wait_s)
        self._writes = Threads("writes", WRITES, longest_wait_s=wait_s)
        self._long = Threads("long requests", LONG, longest_wait_s=wait_s)

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
            start, content = await self._threads(scope).run(lambda: self._respond(scope, body))
        except Overloaded:
            body.close()
            raise
        await send(start)
        await send({"type": "http.response.body", "body": content})
        return None

    def _threads(self, scope: dict[str, Any]) -> Threads:
        if _LONG.fullmatch(scope["path"]):
            return self._long
        return self._reads if scope["method"] in _SAFE else self._writes

    def _respond(self, scope: dict[str, Any], body: IO[bytes]) -> _Answer:
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
