"""Requests that wait for locks: `GET …/files/NAME/?after=N&wait_s=S`, and `POST …/acquire/NAME/?wait_s=S`.

This module receives requests before Django, because a request that waits in Django holds a thread. It lets a request
wait until its lock has changed or is free, or the time is over. Then Django answers it, as if it came only now.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.auth import AuthMiddlewareStack
from django.conf import settings
from django.db import DatabaseError

from portal.http.asgi_responses import Application, Receive, Send, reject
from portal.live.callers import principal_of
from portal.live.name_watch import in_thread
from portal.live.watch_limits import RETRY_AFTER_S, OpenWatch, TooManyWatches, watch_begin
from quota import selectors as tenants
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action
from scheduling.access import selectors
from scheduling.link.transport.redis_client import RedisClient
from scheduling.locks import locks, notices, user_locks
from scheduling.locks.lock_rules import MOST_WAIT_S, check_name
from scheduling.locks.locks import Held, Lock
from scheduling.locks.notices import LockKey
from scheduling.locks.sessions import Space
from scheduling.locks.waiting import LockWaits

log = structlog.get_logger(__name__)

PATH = re.compile(r"/api/v1/cells/([^/]+)/locks/([^/]+)/(files|acquire)/(.+[^/])/?")
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?", re.ASCII)
# The body of a request to acquire a lock with a content.
_MOST_BYTES = 512 * 1024
_BODY_WITHIN_S = 5.0  # a slower request does not wait


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that waits. `after`: a sequence number for a watch; None: the request acquires the lock."""

    cell: str
    tenant: str
    name: str
    after: int | None
    wait_s: float


class LockPolls:
    """An ASGI application that lets requests wait for locks, and passes all requests to `inner`."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._with_session = AuthMiddlewareStack(self._hold)
        self._waits = LockWaits(self._read)
        self._notices: _Notices | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if _asked(scope) is None:
            await self._inner(scope, receive, send)
        elif any(name == b"authorization" for name, _ in scope["headers"]):
            await self._hold(scope, receive, send)
        else:
            await self._with_session(scope, receive, send)

    async def stop(self) -> None:
        """End the connection to Redis."""
        if self._notices is not None:
            await self._notices.stop()

    async def _hold(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        asked = _asked(scope)
        assert asked is not None
        request = _Buffered(receive)
        try:
            await self._wait(scope, asked, request)
        except TooManyWatches as problem:
            await reject(send, problem, headers={"retry-after": str(RETRY_AFTER_S)})
            return
        except (Rejected, DatabaseError) as problem:
            log.info(
                "a request cannot wait until a lock is free, so Django answers it at once",
                lock=asked.name,
                why=str(problem),
            )
        if not request.left:
            await self._inner(scope, request.again, send)

    async def _wait(self, scope: dict[str, Any], asked: _Asked, request: _Buffered) -> None:
        """Wait until the request can be answered, the time is over or the client has left. Raises `Rejected` and
        `DatabaseError` if the request cannot wait.
        """
        begun = await in_thread(_begin)(scope, asked)
        if begun is None:
            return
        key, watch = begun
        try:
            if await request.read():
                await self._wait_for(key, asked, request)
        finally:
            watch.end()

    async def _wait_for(self, key: LockKey, asked: _Asked, request: _Buffered) -> None:
        if self._notices is None:
            self._notices = _Notices(self._waits)
            self._notices.start()
        waiting = asyncio.ensure_future(self._until_ready(key, asked, request.session))
        left = asyncio.ensure_future(request.until_left())
        try:
            await asyncio.wait((waiting, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not waiting.done():
                waiting.cancel()
        if waiting.done() and not waiting.cancelled():
            waiting.result()

    async def _until_ready(self, key: LockKey, asked: _Asked, session: str) -> None:
        if asked.after is not None:
            await self._waits.watch(key, asked.after, asked.wait_s)
            return

        async def look() -> None:
            lock = await self._read(key)
            if lock is not None and lock.holder is not None and str(lock.session) != session:
                raise Held(lock.name, lock.holder, lock.left_s)

        try:
            await self._waits.acquire(key, asked.wait_s, look)
        except Held:
            return  # Django answers with the holder

    async def _read(self, key: LockKey) -> Lock | None:
        found: Lock | None = await in_thread(locks.find)(Space(key.cell_id, key.tenant_id), key.name)
        return found


class _Notices(RedisClient):
    """Receives the notices of changed locks."""

    def __init__(self, waits: LockWaits) -> None:
        super().__init__(settings.BORG_REDIS_URL, use="notices of locks")
        self._waits = waits

    def start(self) -> None:
        self._tasks.begin(self._listen_forever(notices.CHANNEL))

    def _subscribed(self) -> None:
        self._note(None)
        self._waits.all_changed()

    async def _take(self, channel: str, data: bytes) -> None:
        for key in notices.read(data):
            self._waits.changed(key)


class _Buffered:
    """The ASGI messages of a request, whose body is read before the wait."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._messages: list[dict[str, Any]] = []
        self.left = False
        self.session = ""  # the session for which the request acquires a lock

    async def read(self) -> bool:
        """Read the body. Return whether it is complete, so that the request can wait."""
        size, deadline = 0, asyncio.get_running_loop().time() + _BODY_WITHIN_S
        while size <= _MOST_BYTES and asyncio.get_running_loop().time() < deadline:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.left = True
                return False
            self._messages.append(message)
            size += len(message.get("body", b""))
            if not message.get("more_body"):
                self.session = _session_in(b"".join(one.get("body", b"") for one in self._messages))
                return True
        return False

    async def until_left(self) -> None:
        """Wait until the client disconnects."""
        while not self.left:
            self.left = (await self._receive())["type"] == "http.disconnect"

    async def again(self) -> dict[str, Any]:
        """Return the next message of the request, from its beginning."""
        return self._messages.pop(0) if self._messages else await self._receive()


def _begin(scope: dict[str, Any], asked: _Asked) -> tuple[LockKey, OpenWatch] | None:
    """Return the lock, and the watch that counts for its caller; None if the caller is not signed in. Raises `Rejected`
    if the caller may not do this.
    """
    check_name(asked.name)
    principal = principal_of(scope)
    if principal is None:
        return None
    cell, tenant = selectors.cell_named(principal, asked.cell), tenants.tenant_named(principal, asked.tenant)
    action = Action.LOCK_VIEW if asked.after is not None else Action.LOCK_WRITE
    space = user_locks.space_of(principal, action, cell, tenant)
    return LockKey(space.cell_id, space.tenant_id, asked.name), watch_begin(principal)


def _session_in(body: bytes) -> str:
    """Return the id of the session in a body, in its usual form; "" if there is none."""
    try:
        return str(uuid.UUID(json.loads(body)["session"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def _asked(scope: dict[str, Any]) -> _Asked | None:
    """Return what a request waits for. Return None for a request that does not wait or is not valid."""
    path = PATH.fullmatch(scope["path"])
    if path is None or b"wait_s=" not in scope["query_string"]:
        return None
    cell, tenant, kind, name = path.groups()
    given = parse_qs(scope["query_string"].decode("latin-1"))
    wait_s, after = (given.get(field, [""])[0] for field in ("wait_s", "after"))
    if not _SECONDS.fullmatch(wait_s) or not 0 < float(wait_s) <= MOST_WAIT_S:
        return None
    if kind == "acquire" and scope["method"] == "POST":
        return _Asked(cell, tenant, name, None, float(wait_s))
    if kind == "files" and scope["method"] == "GET" and _NUMBER.fullmatch(after):
        return _Asked(cell, tenant, name, int(after), float(wait_s))
    return None
