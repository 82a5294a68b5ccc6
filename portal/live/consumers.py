"""WebSockets of live pages, and the checks of their callers. A rejection closes with 4000 + the HTTP status."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from naming.table.names import ServiceName
from portal.live.callers import principal_of_session, reason_of
from portal.live.hub import Hub, Viewer, hub
from portal.live.topics import Behind, MachinesTopic, TasksTopic, Topic
from portal.live.watches import watch_begin
from portal.sigma.reads.jobs import job_named
from portal.sigma.reads.names import service_named
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cell_named

log = structlog.get_logger(__name__)

# Rights and sessions may end while a page is open, so they are checked at this interval.
RECHECK_S = 60.0
SIGN_IN, FORBIDDEN, NOT_FOUND, TOO_MANY = 4401, 4403, 4404, 4429


class Watcher(AsyncWebsocketConsumer):
    """A WebSocket with a viewer of `hub`, and with the tasks that serve it until the client leaves."""

    hub: Hub
    viewer: Viewer | None = None
    tasks: tuple[asyncio.Task[None], ...] = ()
    recheck_s = RECHECK_S

    async def disconnect(self, code: int) -> None:
        for task in self.tasks:
            task.cancel()
        if self.viewer is not None:
            self.hub.leave(self.viewer)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore messages of clients."""


class LivePage(Watcher):
    """Send one browser the changes of its page. `topic` returns the page's topic and raises `Rejected`."""

    hub = hub

    def topic(self, principal: Principal, **names: str) -> Topic:
        raise NotImplementedError

    async def connect(self) -> None:
        await self.accept()
        found = await self._allowed()
        if found is None:
            return
        principal, topic = found
        try:
            watch = watch_begin(principal)
        except Rejected as problem:
            await self.close(TOO_MANY, reason=reason_of(problem))
            return
        self.viewer = Viewer(topic, asyncio.get_running_loop(), watch)
        try:
            hello = await database_sync_to_async(hub.watch)(self.viewer, revision=self._revision())
            await self.send(json.dumps(hello))
        except BaseException:  # the client is gone, and `disconnect` is not called
            hub.leave(self.viewer)
            raise
        self.tasks = (asyncio.create_task(self._pump()), asyncio.create_task(self._recheck()))

    async def _pump(self) -> None:
        assert self.viewer is not None
        while True:
            await self.send(json.dumps(await self.viewer.outbox.get()))

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(self.recheck_s)
            try:
                if await self._allowed() is None:
                    return
            except DatabaseError as error:
                log.info("rights to a live page could not be checked, trying again later", error=str(error))

    async def _allowed(self) -> tuple[Principal, Topic] | None:
        """Return the caller and the topic, or None after closing the socket with the reason."""
        try:
            found = await database_sync_to_async(self._find)()
        except Rejected as problem:
            await self.close(FORBIDDEN if problem.status == 403 else NOT_FOUND, reason=reason_of(problem))
            return None
        if found is None:
            await self.close(SIGN_IN, reason="sign in first")
        return found

    def _find(self) -> tuple[Principal, Topic] | None:
        """Check the caller in the database again. None: not signed in."""
        principal = principal_of_session(self.scope)
        if principal is None:
            return None
        return principal, self.topic(principal, **self.scope["url_route"]["kwargs"])

    def _revision(self) -> int:
        given = self._query("revision")
        return int(given) if given.isdigit() and len(given) < 19 else 0

    def _query(self, name: str) -> str:
        values: dict[str, list[Any]] = parse_qs(self.scope["query_string"].decode("latin-1"))
        return str(values.get(name, [""])[0])


class MachinesPage(LivePage):
    def topic(self, principal: Principal, **names: str) -> Topic:
        return MachinesTopic(cell_named(principal, names["cell"]).id)


class TasksPage(LivePage):
    def topic(self, principal: Principal, **names: str) -> Topic:
        job = job_named(principal, names["cell"], names["tenant"], names["job"], uid=self._query("uid"))
        return TasksTopic(job.cell_id, job.id)


class ServicePage(LivePage):
    def topic(self, principal: Principal, **names: str) -> Topic:
        cell = cell_named(principal, names["cell"])
        name = ServiceName(names["cell"], names["tenant"], names["service"])
        return Behind(cell.id, service_named(principal, name).name)


class Nowhere(AsyncWebsocketConsumer):
    async def connect(self) -> None:
        await self.accept()
        await self.close(NOT_FOUND, reason="there is no live page here")
