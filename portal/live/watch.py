"""A name watched over a WebSocket: first its complete state, then changes, a few times per second at most (§2.6).

    {"type": "state", "revision": R, "state": what GET /bns/… answers}      first, and again after lost messages
    {"type": "change", "revision": R, "facts": the state without endpoints, "changed": [endpoints], "gone": [names]}
    {"type": "alive", "revision": R}                                        if nothing else was sent for a while
    {"type": "gone", "revision": R}                                         the end, with 4404: the name is gone

`facts` and the endpoints in `changed` replace those with the same name. A client that is too slow loses messages and
gets the state instead. A rejection closes with 4000 + the HTTP status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from channels.db import DatabaseSyncToAsync
from django.db import DatabaseError

from naming.table.names import PREFIX, InvalidName, JobName, ServiceName, TaskName, parse_path
from portal.live.callers import principal_of, reason_of
from portal.live.consumers import NOT_FOUND, SIGN_IN, Watcher
from portal.live.hub import Viewer
from portal.live.names import NamesMessages, Watchable, WatchedName, names_hub, watched
from portal.live.watches import watch_begin
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Principal

log = structlog.get_logger(__name__)

ALIVE_S = 15.0
# The start of a watch queries the database. This limits how many of the process's connections they use at once.
_threads = ThreadPoolExecutor(4, thread_name_prefix="names")
# Answers do not wait behind the starts of watches.
_answers = ThreadPoolExecutor(1, thread_name_prefix="names-answers")


def in_thread(function: Callable[..., Any]) -> DatabaseSyncToAsync:  # type: ignore[type-arg]
    """Run a function that queries the database in a thread."""
    return DatabaseSyncToAsync(function, thread_sensitive=False, executor=_threads)


async def body_of(names: WatchedName) -> tuple[int, int, bytes | None]:
    """Return `WatchedName.body` at the hub's revision. It may have to wait for the hub."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_answers, names.body, names_hub.revision(names))


def watchable(path: str) -> Watchable:
    """Parse `<cell>/<tenant>/<job>[/<index>]` or `<cell>/<tenant>/service/<name>`. Raises `Rejected`."""
    try:
        name = parse_path(PREFIX + path)
    except InvalidName as error:
        raise Rejected("invalid-name", str(error), fields={error.field: error.detail}) from error
    if not isinstance(name, JobName | TaskName | ServiceName):
        raise NotFound("name that can be watched", name.path)
    return name


def join(principal: Principal, name: Watchable, loop: asyncio.AbstractEventLoop) -> Viewer:
    """Read the name and return a viewer, which must leave. Queries the database. Raises `Rejected`."""
    names = watched(principal, name)
    viewer = Viewer(names, loop, watch_begin(principal))
    try:
        names_hub.watch(viewer, revision=0)
        names_of(viewer).begin()
    except BaseException:
        names_hub.leave(viewer)
        raise
    return viewer


def names_of(viewer: Viewer) -> WatchedName:
    """Return the name that it watches. All viewers of a name share it."""
    assert isinstance(viewer.topic, WatchedName)
    return viewer.topic


class NamesWatch(Watcher):
    """The WebSocket of one watcher of one name."""

    hub = names_hub
    version = -1

    async def connect(self) -> None:
        await self.accept()
        loop = asyncio.get_running_loop()
        try:
            self.viewer = await in_thread(self._begin)(loop)
        except Rejected as problem:
            await self.close(4000 + problem.status, reason=reason_of(problem))
            return
        if self.viewer is None:
            await self.close(SIGN_IN, reason="sign in first, or give a token that is valid")
            return
        try:
            more = await self._send_state()
        except BaseException:  # the client is gone, and `disconnect` is not called
            names_hub.leave(self.viewer)
            raise
        if more:
            self.tasks = (asyncio.create_task(self._pump()), asyncio.create_task(self._recheck()))

    def _begin(self, loop: asyncio.AbstractEventLoop) -> Viewer | None:
        principal = principal_of(self.scope)
        return join(principal, self._name(), loop) if principal is not None else None

    def _allowed(self) -> WatchedName | None:
        """Check the caller in the database again. None: not signed in. Raises `Rejected`."""
        principal = principal_of(self.scope)
        return watched(principal, self._name()) if principal is not None else None

    def _name(self) -> Watchable:
        """Parse the name in the URL. Raises `Rejected`."""
        return watchable(self.scope["url_route"]["kwargs"]["name"].strip("/"))

    async def _pump(self) -> None:
        assert self.viewer is not None
        while True:
            try:
                message = await asyncio.wait_for(self.viewer.outbox.get(), ALIVE_S)
            except TimeoutError:
                await self.send(f'{{"type":"alive","revision":{names_hub.revision(self.viewer.topic)}}}')
                continue
            if not await (self._send_state() if message["resync"] else self._send_update(message)):
                return

    async def _send_update(self, message: dict[str, Any]) -> bool:
        """Send an update and return whether more can follow."""
        update: NamesMessages = message["names"]
        if update.version <= self.version:  # the state that was sent includes it
            return True
        self.version = update.version
        if update.visible:
            await self.send(message["text"])
        if update.facts is None:
            await self.close(NOT_FOUND, reason="the name no longer exists")
        return update.facts is not None

    async def _send_state(self) -> bool:
        """Send the complete state and return whether updates can follow."""
        assert self.viewer is not None
        names = names_of(self.viewer)
        self.version, revision, body = await body_of(names)
        if body is None:
            await self.send(f'{{"type":"gone","revision":{revision}}}')
            await self.close(NOT_FOUND, reason="the name no longer exists")
            return False
        await self.send(f'{{"type":"state","revision":{revision},"state":{body.decode()}}}')
        return True

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(self.recheck_s)
            try:
                if await in_thread(self._allowed)() is None:
                    await self.close(SIGN_IN, reason="the session or token ended")
                    return
            except DatabaseError as error:
                log.info("rights to watch a name could not be checked, trying again later", error=str(error))
            except Rejected as problem:
                await self.close(4000 + problem.status, reason=reason_of(problem))
                return
