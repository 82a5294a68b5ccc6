"""Django behind ASGI, with one thread per request.

Django's own handler starts a thread for each request, and changes between it and the event loop about twenty times,
once for each middleware and signal. Here the middlewares and the view run in one thread from beginning to end, and the
threads are kept. Three pools keep slow work from delaying quick work:

    GET, HEAD ──────────────────────────► reads  ─┐
    POST, PUT, PATCH, DELETE ───────────► writes ─┼─► one thread ─► middlewares ─► view ─► answer
    whole cells, metrics, bulk, logs ───► long   ─┘

A request for which no thread is free waits for a bounded time, and then gets 503 with `Retry-After`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import IO, Any

from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from django.urls import set_script_prefix

from portal.http.outages import RETRY_AFTER_S, Overloaded

READS, WRITES, LONG = 4, 8, 4
# The share of a request's deadline that it may wait for a thread.
WAIT_SHARE = 0.2
_MOST_WAITING = 200
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_LONG = re.compile(r"/metrics|/api/v1/(schema/|feeds/.*|cells/[^/]+/(jobs:bulk/?|packages/.*|jobs/.*/logs/.*))")

_Answer = tuple[dict[str, Any], bytes]


class Threads:
    """A pool of threads for one kind of request. Its methods are called in the event loop."""

    def __init__(self, name: str, number: int, *, longest_wait_s: float, most_waiting: int = _MOST_WAITING) -> None:
        self._name, self._longest_wait_s, self._most_waiting = name, longest_wait_s, most_waiting
        self._free = asyncio.Semaphore(number)
        self._waiting = 0
        self._executor = ThreadPoolExecutor(number, thread_name_prefix=name)

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Return what `work` returns in a thread. Raises `Overloaded` if none is free in time."""
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

        # A cancelled request leaves its thread at work, so the end of the thread frees the place.
        running = self._executor.submit(copy_context().run, work)
        running.add_done_callback(ended)
        return await asyncio.wrap_future(running)

    def _overloaded(self) -> Overloaded:
        return Overloaded(
            f"All threads of this process for {self._name} are busy, and {self._waiting} requests wait for them. "
            f"Try again in {RETRY_AFTER_S} seconds."
        )


class ThreadedHandler(ASGIHandler):
    """Django's ASGI application. `deadline_s`: seconds within which a request is answered."""

    def __init__(self, *, deadline_s: float) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        wait_s = deadline_s * WAIT_SHARE
        self._reads = Threads("reads", READS, longest_wait_s=wait_s)
        self._writes = Threads("writes", WRITES, longest_wait_s=wait_s)
        self._long = Threads("long requests", LONG, longest_wait_s=wait_s)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        try:
            start, content = await self._threads(scope).run(lambda: self._respond(scope, body))
        except Overloaded:
            body.close()
            raise
        await send(start)
        await send({"type": "http.response.body", "body": content})

    def _threads(self, scope: dict[str, Any]) -> Threads:
        if _LONG.fullmatch(scope["path"]):
            return self._long
        return self._reads if scope["method"] in _SAFE else self._writes

    def _respond(self, scope: dict[str, Any], body: IO[bytes]) -> _Answer:
        """Return the first message of the answer and the whole content."""
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


def _start(response: HttpResponseBase) -> dict[str, Any]:
    headers = [(name.encode("ascii"), value.encode("latin-1")) for name, value in response.items()]
    headers += [
        (b"Set-Cookie", cookie.output(header="").strip().encode("ascii")) for cookie in response.cookies.values()
    ]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}
