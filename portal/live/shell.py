"""A shell in a task, for a terminal in a browser or for `borgctl ssh`. The WebSocket carries frames of
`borglet.messages`.

    browser: session cookie, origin checked ─┐
    borgctl: Authorization: Bearer borg_…  ──┴─► Shell ── in ──► Redis ──► shard ──► Borglet
                                                       ◄─ out ──

Every five seconds the portal checks that the client is still signed in and that the shell is still allowed. At the
end of a shell the portal writes one event, with the number of bytes in each direction. If the portal rejects the
client, it sends the rejection as the last frame. The code with which it closes the WebSocket depends on the
reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from redis import RedisError

from borglet.messages import SHELL_FRAME_BYTES, MalformedMessage, ShellFrame, shell_frame, shell_frame_of
from portal.live.callers import principal_of, shortened
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import task_at
from scheduling.models import ShellSession
from scheduling.shells import shells
from scheduling.shells import streams as link

log = structlog.get_logger(__name__)

# Time between two checks of the rights. After each check, the portal sends the machine a frame.
RECHECK_S = 5.0
# The machine sends a frame every few seconds. After this time without a frame, the portal closes the shell.
SILENCE_S = 30.0
SIGN_IN, FORBIDDEN, UNREADABLE, UNAVAILABLE = 4401, 4403, 4422, 4503
# The machine opens a shell, or reports why it cannot, within this time.
OPENED_WITHIN_S = 15.0
_FROM_CLIENT = frozenset({ShellFrame.DATA, ShellFrame.CONSUMED, ShellFrame.RESIZE, ShellFrame.END, ShellFrame.ALIVE})


class Shell(AsyncWebsocketConsumer):
    """The WebSocket of one client and its shell.

    `how`: the reason why the shell ended. `typed`: the number of bytes that the client has sent. `printed`: the number
    of bytes that the client has received.
    """

    session: ShellSession | None = None
    principal: Principal | None = None
    typed = printed = 0
    how = "the client closed the connection"
    over = False
    patience_s = OPENED_WITHIN_S

    async def connect(self) -> None:
        await self.accept()
        self.work: set[asyncio.Task[None]] = set()
        self.ending: asyncio.Task[None] | None = None
        self.pool = link.connect(settings.BORG_REDIS_URL)
        try:
            await self._ask()
        except Rejected as problem:
            await self._end(problem.detail, code=4000 + problem.status)
        except RedisError as error:
            await self._end(f"shells need Redis, which does not answer: {error}", code=UNAVAILABLE)

    async def _ask(self) -> None:
        self.principal, self.session = await database_sync_to_async(self._open)()
        if self.session is None:
            await self._end("sign in, or give a valid token", code=SIGN_IN)
            return
        number = self.session.id.hex
        self.inward = link.ShellStream(self.pool, number, "in")
        self.outward = link.ShellStream(self.pool, number, "out")
        self.loop = asyncio.get_running_loop()
        self.heard_at = self.loop.time()
        await database_sync_to_async(link.ask)(
            self.session.cell_id, self.session.machine_id, self.session.machine.hostname, self.session.id
        )
        self.work = {asyncio.create_task(each) for each in (self._print(), self._watch())}
        for task in self.work:
            task.add_done_callback(self._failed)

    def _open(self) -> tuple[Principal | None, ShellSession | None]:
        """Check the caller and request the shell. Return the caller and the shell's session, or (None, None) if the
        caller is not signed in. Raises `Rejected` if the caller may not open a shell in this task, or if the machine
        cannot be reached.
        """
        principal = principal_of(self.scope)
        if principal is None:
            return None, None
        names = self.scope["url_route"]["kwargs"]
        query = parse_qs(self.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        job = job_named(principal, names["cell"], names["tenant"], names["job"], uid=query.get("uid", [""])[0])
        shells.require_shell(principal, job)
        return principal, shells.shell_ask(
            principal=principal,
            job=job,
            task=task_at(job, int(names["index"])),
            command=query.get("command", []),
            rows=_whole(query, "rows", 24),
            cols=_whole(query, "cols", 80),
            plain=query.get("plain", [""])[0] == "1",
            peer=str((self.scope.get("client") or [""])[0]),
        )

    # -- bytes

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Send a frame of the client to the machine, and wait until Redis has stored the frame."""
        if self.session is None or self.over:
            return
        try:
            raw = bytes_data if bytes_data is not None else (text_data or "").encode()
            kind, payload = shell_frame_of(raw)
            if kind not in _FROM_CLIENT or len(payload) > SHELL_FRAME_BYTES:
                raise MalformedMessage(
                    f"the frame has kind {kind.value!r} and {len(payload)} bytes; send a frame of one of the kinds "
                    f"{', '.join(sorted(_FROM_CLIENT))}, with at most {SHELL_FRAME_BYTES} bytes"
                )
            if kind is ShellFrame.DATA:
                self.typed += len(payload)
            await self.inward.put(raw)
        except (MalformedMessage, link.Overrun) as error:
            await self._end(str(error), code=UNREADABLE)
        except RedisError as error:
            await self._end(f"shells need Redis, which does not answer: {error}", code=UNAVAILABLE)

    async def _print(self) -> None:
        while True:
            for frame in await self.outward.take():
                kind, payload = shell_frame_of(frame)
                self.heard_at, self.patience_s = self.loop.time(), SILENCE_S
                if kind is ShellFrame.DATA:
                    self.printed += len(payload)
                await self.send(bytes_data=frame)
                if kind in (ShellFrame.EXIT, ShellFrame.FAILED):
                    self.over, self.how = True, payload.decode(errors="replace")
                    if kind is ShellFrame.EXIT:
                        self.how = f"exited with {self.how}"
                    await self.close(1000)
                    return

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            if self.loop.time() - self.heard_at > self.patience_s:
                await self._end(f"the machine sent nothing for {self.patience_s:g} s", code=UNAVAILABLE)
                return
            if why := await database_sync_to_async(self._why_not)():
                await self._end(why, code=FORBIDDEN)
                return
            await self.inward.put(shell_frame(ShellFrame.ALIVE))

    def _why_not(self) -> str:
        """Return why the shell must end, or an empty string if it may continue."""
        principal = principal_of(self.scope)
        if principal is None:
            return "the session or token ended"
        assert self.session is not None
        return shells.shell_seen(self.session.id, principal=principal, typed=self.typed, printed=self.printed)

    def _failed(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, RedisError | MalformedMessage):
            log.error("a shell failed", exc_info=error)
        self.ending = asyncio.ensure_future(self._end(f"the connection to the shell failed: {error}", code=UNAVAILABLE))

    # -- the end

    async def _end(self, reason: str, *, code: int) -> None:
        """Send the client the reason, and close the WebSocket. Without more frames, the machine ends the shell."""
        if self.over:
            return
        self.over, self.how = True, reason
        await self.send(bytes_data=shell_frame(ShellFrame.FAILED, reason.encode()))
        await self.close(code, reason=shortened(reason))

    async def disconnect(self, code: int) -> None:
        for task in self.work:
            task.cancel()
        await asyncio.gather(*self.work, return_exceptions=True)
        if self.session is not None:
            assert self.principal is not None
            with contextlib.suppress(RedisError):
                await self.inward.put(shell_frame(ShellFrame.FAILED, self.how.encode()))
                await self.outward.drop()
            await database_sync_to_async(shells.shell_close)(
                self.session.id, principal=self.principal, how=self.how, typed=self.typed, printed=self.printed
            )
        await self.pool.aclose()


def _whole(query: dict[str, list[Any]], name: str, default: int) -> int:
    """Return the whole number in the URL parameter `name`. Return `default` if the parameter is missing or empty.
    Raises `Rejected` if it is not a whole number.
    """
    given = query.get(name, [""])[0]
    if not given:
        return default
    if not (given.isdecimal() and len(given) < 6):
        raise Rejected(
            "invalid",
            f"{name}: {given[:20]!r} is not a whole number; give a number from 0 to 99999",
            fields={name: "a whole number"},
        )
    return int(given)
