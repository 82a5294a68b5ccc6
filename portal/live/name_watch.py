"""The WebSocket of a watched name (§2.6). It sends the complete state, then changes, at most four times per second.

    {"type": "state", "revision": R, "state": the answer of GET /bns/…}     first, and again after lost messages
    {"type": "change", "revision": R, "facts": the state without endpoints, "changed": [endpoints], "gone": [names]}
    {"type": "alive", "revision": R}                                        after 15 seconds without a message
    {"type": "gone", "revision": R}                                         last, because the name does not exist

`facts` replaces the earlier facts. Each endpoint in `changed` replaces the earlier endpoint with the same name. `gone`
lists the names of removed endpoints. A client that is too slow loses messages, and gets the complete state instead. If
the caller is rejected, the WebSocket closes with the code 4000 + the HTTP status, for example 4404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from channels.db import DatabaseSyncToAsync

from naming.table.names import PREFIX, InvalidName, JobName, ServiceName, TaskName, parse_path
from portal.live.callers import principal_of
from portal.live.consumers import NOT_FOUND, Watcher
from portal.live.hub import Viewer
from portal.live.watch_limits import watch_begin
from portal.live.watched_names import NamesMessages, Watchable, WatchedName, names_hub, watched
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal

ALIVE_S = 15.0
# The start of a watch queries the database. Four threads use at most four connections of the process at once.
_threads = ThreadPoolExecutor(4, thread_name_prefix="names")
# Answers have their own thread, so that they do not wait for the starts of watches.
_answers = ThreadPoolExecutor(1, thread_name_prefix="names-answers")


def in_thread(function: Callable[..., Any]) -> DatabaseSyncToAsync:  # type: ignore[type-arg]
    """Return an async function that runs `function` in a thread, because `function` queries the database."""
    return DatabaseSyncToAsync(function, thread_sensitive=False, executor=_threads)


async def body_of(names: WatchedName) -> tuple[int, int, bytes | None]:
    """Return three values: the version of the name's state (a counter of its updates in this process), the newest
    journal revision that this process has read, and the answer to `GET /bns/…` at this revision as JSON. The answer is
    None if the name does not exist.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_answers, names.body, names_hub.revision(names))


def watchable(path: str) -> Watchable:
    """Return the job, task or service whose path is `<cell>/<tenant>/<job>[/<index>]` or
    `<cell>/<tenant>/service/<name>`. Raises `Rejected` for any other path.
    """
    try:
        name = parse_path(PREFIX + path)
    except InvalidName as error:
        raise Rejected("invalid-name", str(error), fields={error.field: error.detail}) from error
    if not isinstance(name, JobName | TaskName | ServiceName):
        detail = f"{name.path} is a machine, and machines cannot be watched; give the name of a job, task or service"
        raise Rejected("not-found", detail, status=404, fields={"name": "give the name of a job, task or service"})
    return name


def join(principal: Principal, name: Watchable, loop: asyncio.AbstractEventLoop) -> Viewer:
    """Read the name from the database and return a new viewer of it.

    The caller must later pass the viewer to `names_hub.leave`. Raises `Rejected` if the caller may not see the name or
    has too many watches.
    """
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
    """Return the name that the viewer watches. All viewers of a name share one `WatchedName` object."""
    assert isinstance(viewer.topic, WatchedName)
    return viewer.topic


class NamesWatch(Watcher):
    """The WebSocket of one client that watches a name. The client gets the complete state, then each update."""

    hub = names_hub
    threads = _threads
    version = -1

    async def connect(self) -> None:
        await self.accept()
        self.viewer = await self.found_or_closed(partial(self._begin, asyncio.get_running_loop()))
        if self.viewer is None:
            return
        try:
            more = await self._send_state()
        except BaseException:  # the client has left, and Channels does not call `disconnect`
            names_hub.leave(self.viewer)
            raise
        if more:
            self.tasks = (asyncio.create_task(self._pump()), asyncio.create_task(self.recheck()))

    def _begin(self, loop: asyncio.AbstractEventLoop) -> Viewer | None:
        principal = principal_of(self.scope)
        return None if principal is None else join(principal, self._name(), loop)

    def find(self) -> WatchedName | None:
        principal = principal_of(self.scope)
        return None if principal is None else watched(principal, self._name())

    def _name(self) -> Watchable:
        """Return the name in the URL. Raises `Rejected` if it is not a name of a job, task or service."""
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
        """Send an update to the client. Return whether more updates can follow."""
        update: NamesMessages = message["names"]
        if update.version <= self.version:  # the client already has a state that includes this update
            return True
        self.version = update.version
        if update.visible:
            await self.send(message["text"])
        if update.facts is None:
            await self.close(NOT_FOUND, reason="the name no longer exists")
        return update.facts is not None

    async def _send_state(self) -> bool:
        """Send the complete state to the client. If the name no longer exists, close the connection and return False,
        because no updates can follow.
        """
        assert self.viewer is not None
        names = names_of(self.viewer)
        self.version, revision, body = await body_of(names)
        if body is None:
            await self.send(f'{{"type":"gone","revision":{revision}}}')
            await self.close(NOT_FOUND, reason="the name no longer exists")
            return False
        await self.send(f'{{"type":"state","revision":{revision},"state":{body.decode()}}}')
        return True
