"""WebSockets of live pages, with checks of the users' rights. If a user is rejected, the WebSocket closes with a code:
4000 + the HTTP status.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.db import DatabaseSyncToAsync, database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from naming.table.names import ServiceName
from portal.live.callers import principal_of_session, shortened
from portal.live.hub import Hub, Viewer, hub
from portal.live.map_changes import MapTopic
from portal.live.page_changes import Behind, MachinesTopic, TasksTopic, Topic
from portal.live.watch_limits import watch_begin
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cell_named
from scheduling.cell_map.kept_maps import maps
from scheduling.cell_map.scopes import scope_of, shown_job
from scheduling.services.selectors import service_named

log = structlog.get_logger(__name__)

# Rights and sessions may end while a page is open, so they are checked at this interval.
RECHECK_S = 60.0
SIGN_IN, NOT_FOUND = 4401, 4404


class Watcher(AsyncWebsocketConsumer):
    """A WebSocket that sends the messages of `hub` to its client.

    `tasks`: asyncio tasks that run until the client disconnects. `threads`: the thread pool for functions that query
    the database; None means the thread of Channels.
    """

    hub: Hub
    threads: Executor | None = None
    viewer: Viewer | None = None
    tasks: tuple[asyncio.Task[None], ...] = ()
    recheck_s = RECHECK_S

    def find(self) -> Any:
        """Return the page or the name that this WebSocket watches. Return None if the user is not signed in. Raises
        `Rejected` if the user may not see it.
        """
        raise NotImplementedError

    async def found_or_closed(self, find: Callable[[], Any]) -> Any:
        """Run `find` in a thread and return its result. If `find` raises `Rejected` or returns None, close the
        WebSocket and return None.
        """
        try:
            found = await DatabaseSyncToAsync(find, thread_sensitive=self.threads is None, executor=self.threads)()
        except Rejected as problem:
            await self.close(4000 + problem.status, reason=shortened(problem.detail))
            return None
        if found is None:
            await self.close(SIGN_IN, reason="sign in, or give a valid token")
        return found

    async def recheck(self) -> None:
        """Check the rights of the user every `recheck_s` seconds. Close the WebSocket when the user has lost the
        rights.
        """
        while True:
            await asyncio.sleep(self.recheck_s)
            try:
                if await self.found_or_closed(self.find) is None:
                    return
            except DatabaseError as error:
                log.info(
                    "the portal cannot check whether a user may still watch a live page; it tries again later",
                    error=str(error),
                )

    async def disconnect(self, code: int) -> None:
        for task in self.tasks:
            task.cancel()
        if self.viewer is not None:
            self.hub.leave(self.viewer)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore all messages from the client."""


class LivePage(Watcher):
    """The WebSocket of a live page. It sends the changes of the page to one browser."""

    hub = hub

    def topic(self, principal: Principal, **names: str) -> Topic:
        """Return the topic of the page, which selects the changes to send. `names`: the names in the URL. Raises
        `Rejected` if the user may not see the page.
        """
        raise NotImplementedError

    def find(self) -> tuple[Principal, Topic] | None:
        principal = principal_of_session(self.scope)
        if principal is None:
            return None
        return principal, self.topic(principal, **self.scope["url_route"]["kwargs"])

    async def connect(self) -> None:
        await self.accept()
        found = await self.found_or_closed(self.find)
        if found is None:
            return
        principal, topic = found
        try:
            watch = watch_begin(principal)
        except Rejected as problem:
            await self.close(4000 + problem.status, reason=shortened(problem.detail))
            return
        self.viewer = Viewer(topic, asyncio.get_running_loop(), watch)
        try:
            hello = await database_sync_to_async(hub.watch)(self.viewer, revision=self._revision())
            await self.send(json.dumps(hello))
        except BaseException:  # the client has left, and Channels does not call `disconnect`
            hub.leave(self.viewer)
            raise
        self.tasks = (asyncio.create_task(self._pump()), asyncio.create_task(self.recheck()))

    async def _pump(self) -> None:
        assert self.viewer is not None
        while True:
            await self.send(json.dumps(await self.viewer.outbox.get()))

    def _revision(self) -> int:
        given = self._query("revision")
        return int(given) if given.isdigit() and len(given) < 19 else 0

    def _query(self, name: str) -> str:
        values: dict[str, list[Any]] = parse_qs(self.scope["query_string"].decode("latin-1"))
        return str(values.get(name, [""])[0])


class MachinesPage(LivePage):
    """The WebSocket of the page that shows the machines of a cell."""

    def topic(self, principal: Principal, **names: str) -> Topic:
        return MachinesTopic(cell_named(principal, names["cell"]).id)


class MapPage(LivePage):
    """The WebSocket of the map of a cell. If the rights of the user change, it closes, because its messages show what
    the user could see when the page was opened.
    """

    def topic(self, principal: Principal, **names: str) -> Topic:
        cell = cell_named(principal, names["cell"])
        job = shown_job(principal, cell, self._query("job"))
        topic = MapTopic(cell.id, scope_of(principal, cell), job.id if job is not None else None)
        if self.viewer is None:
            maps.read(cell)  # the thread of the hub then reads only changes
        elif isinstance(shown := self.viewer.topic, MapTopic) and shown != topic:
            what = "your rights have changed" if shown.scope != topic.scope else "the job was submitted again"
            raise Rejected("map-changed", f"{what}; reload the page", status=403)
        return topic


class TasksPage(LivePage):
    """The WebSocket of the page that shows a job."""

    def topic(self, principal: Principal, **names: str) -> Topic:
        job = job_named(principal, names["cell"], names["tenant"], names["job"], uid=self._query("uid"))
        return TasksTopic(job.cell_id, job.id)


class ServicePage(LivePage):
    """The WebSocket of the page that shows the jobs of a service."""

    def topic(self, principal: Principal, **names: str) -> Topic:
        cell = cell_named(principal, names["cell"])
        service_named(principal, cell, names["tenant"], names["service"])
        return Behind(cell.id, ServiceName(names["cell"], names["tenant"], names["service"]))


class Nowhere(AsyncWebsocketConsumer):
    """The WebSocket for all unknown URLs. The portal closes it immediately."""

    async def connect(self) -> None:
        await self.accept()
        await self.close(NOT_FOUND, reason="there is no live page at this address")
