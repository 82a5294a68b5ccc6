"""Long polls of names. `GET /bns/…?after=REVISION&wait_s=SECONDS` waits until the name changes after the revision, at
most for the given seconds.

This module receives requests before Django, because a request that waits in Django holds a thread. Here a waiting
request needs only an asyncio task. All requests for the same name share the database queries. Django still answers the
other requests: those that do not wait, those of rejected callers, and those for which this module has no answer.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qs

import structlog
from channels.auth import AuthMiddlewareStack
from django.db import DatabaseError

from naming.api.bns import MOST_WAIT_S
from naming.api.changes import in_journal
from portal.http.asgi_responses import Application, Receive, Send, reject, respond
from portal.live.callers import principal_of
from portal.live.hub import Viewer
from portal.live.name_watch import body_of, in_thread, join, names_of, watchable
from portal.live.watch_limits import RETRY_AFTER_S, TooManyWatches
from portal.live.watched_names import WatchedName, names_hub
from quota.vocabulary.errors import Rejected
from scheduling.journal import journal

log = structlog.get_logger(__name__)

_PATH = re.compile(r"/bns/([^/]+/[^/]+/[^/]+(?:/[^/]+)?)/?")
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_SECONDS = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parameters of a long poll.

    `after`: the revision that the caller already has. `history`: the number of the journal's history to which `after`
    belongs, or None if the caller did not give it. After a restore from a backup, a cell starts a new history.
    """

    path: str
    after: int
    wait_s: float
    history: int | None


class NamePolls:
    """An ASGI application that answers the long polls of names, and passes all other requests to `inner`."""

    def __init__(self, inner: Application) -> None:
        self._inner = inner
        self._with_session = AuthMiddlewareStack(self._hold)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if _asked(scope) is None:
            await self._inner(scope, receive, send)
        elif any(name == b"authorization" for name, _ in scope["headers"]):
            await self._hold(scope, receive, send)
        else:
            await self._with_session(scope, receive, send)

    async def _hold(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        asked = _asked(scope)
        assert asked is not None
        body = _Body(await receive(), receive)
        try:
            answer = await self._news(scope, asked, body)
        except TooManyWatches as problem:
            await reject(send, problem, headers={"retry-after": str(RETRY_AFTER_S)})
            return
        except (Rejected, DatabaseError) as problem:
            log.info(
                "a request cannot wait for a change of a DNS name, so Django answers it at once",
                path=asked.path,
                why=str(problem),
            )
            answer = None
        if body.left:
            return
        if answer is None:
            await self._inner(scope, body.again, send)
        else:
            headers = {"content-type": "application/json", "cache-control": "no-store"}
            await respond(send, 200, answer, {**headers, "x-request-id": uuid.uuid4().hex})

    async def _news(self, scope: dict[str, Any], asked: _Asked, body: _Body) -> bytes | None:
        """Wait until the name changes, and return the answer as JSON. Return None if Django must answer.

        Raises `Rejected` if the caller may not watch the name, and `DatabaseError` if the database fails.
        """
        begun = await in_thread(_begin)(scope, asked, asyncio.get_running_loop())
        if begun is None:
            return None
        viewer, changed = begun
        names = names_of(viewer)
        names.pollers += 1
        try:
            if not changed and (answer := await self._wait(viewer, names, asked, body)):
                return answer
            _, revision, answer = await body_of(names)
            return answer if revision >= asked.after else None
        finally:
            names.pollers -= 1
            names_hub.leave(viewer)

    async def _wait(self, viewer: Viewer, names: WatchedName, asked: _Asked, body: _Body) -> bytes | None:
        """Wait until the name changes, and return the answer as JSON.

        Return None if the waiting time ends, the caller disconnects, or this process cannot give the answer.
        """
        history, caller_left = names.history, asyncio.ensure_future(body.until_left())
        try:
            async with asyncio.timeout(asked.wait_s):
                while True:
                    next_message = asyncio.ensure_future(viewer.outbox.get())
                    try:
                        await asyncio.wait((next_message, caller_left), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        next_message.cancel()
                    if caller_left.done():
                        return None
                    message = next_message.result()
                    news = message.get("names")
                    if news is None:  # the outbox was full, and lost its messages
                        if names.changed_at > asked.after or names.history != history:
                            return None
                    elif news.changed_at > asked.after or news.history != history:
                        return cast("bytes | None", news.body)
        except TimeoutError:
            return None
        finally:
            caller_left.cancel()


def _begin(scope: dict[str, Any], asked: _Asked, loop: asyncio.AbstractEventLoop) -> tuple[Viewer, bool] | None:
    """Return a viewer of the name, and whether the name has already changed; None if the caller is not signed in.

    Raises `Rejected` if the caller may not watch the name, and `DatabaseError` if the database fails.
    """
    principal = principal_of(scope)
    if principal is None:
        return None
    viewer = join(principal, watchable(asked.path), loop)
    try:
        return viewer, _changed(names_of(viewer), asked)
    except BaseException:
        names_hub.leave(viewer)
        raise


def _changed(names: WatchedName, asked: _Asked) -> bool:
    """Return whether the name may differ from the state that the caller already has."""
    if asked.history not in (None, names.history) or names.changed_since(asked.after):
        return True
    # The caller has a later revision than the cell, so that revision belongs to a history that was lost.
    seen = max(names_hub.revision(names), names.revision)
    if asked.after > seen and asked.after > journal.newest(names.cell_id):
        return True
    # A revision without an event belongs to a lost history too: restores leave a gap (`cell_new_history`).
    restored = asked.history is None and names.history > 1
    return restored and not in_journal(names.cell_id, asked.after)


class _Body:
    """The ASGI messages of a request without a body. `first`: the first message, which was already received. `left`:
    whether the client has disconnected.
    """

    def __init__(self, first: dict[str, Any], receive: Receive) -> None:
        self._unread, self._receive = [first], receive
        self.left = first["type"] == "http.disconnect"

    async def until_left(self) -> None:
        """Wait until the client disconnects."""
        while not self.left:
            self.left = (await self._receive())["type"] == "http.disconnect"

    async def again(self) -> dict[str, Any]:
        """Return the next message of the request. The first call returns `first`, which was received before."""
        return self._unread.pop() if self._unread else await self._receive()


def _asked(scope: dict[str, Any]) -> _Asked | None:
    """Return the parameters of a long poll. Return None for a request that does not wait or is not valid. Django
    answers such a request.
    """
    path = _PATH.fullmatch(scope["path"]) if scope["method"] == "GET" else None
    if path is None or not scope["query_string"]:
        return None
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        return None
    given = parse_qs(scope["query_string"].decode("latin-1"))
    if any(len(values) > 1 for values in given.values()):
        return None
    after, wait_s, history = (given.get(name, [""])[0] for name in ("after", "wait_s", "history"))
    if not (_NUMBER.fullmatch(after) and _SECONDS.fullmatch(wait_s) and 0 < float(wait_s) <= MOST_WAIT_S):
        return None
    if history and not _NUMBER.fullmatch(history):
        return None
    return _Asked(path[1], int(after), float(wait_s), int(history) if history else None)
