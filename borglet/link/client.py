"""The Borglet's end of the link: connect to a shard, send a hello, and answer polls from then on (§3.3).

    connect ─► Hello ─► Welcome ─► Poll ─► Report ─► Poll …
       ▲                   │ Refusal, silence, an invalid message
       └──── jittered pause ◄─┘

The Borglet answers a poll when it has a change to report, or at the latest after the poll's `hold_s` seconds. One
answer contains all changes within `COALESCE_S`. When a newer poll arrives, the Borglet answers the held one first.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import urllib.parse
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.frames import CloseCode

from borglet.agent import Agent
from borglet.backoff import Backoff
from borglet.identity.credentials import Credentials
from borglet.link.websocket import ClientSocket, dial
from borglet.machine_specs import link_address
from borglet.messages import (
    LOCKS_SINCE,
    MAX_FRAME_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL,
    Hello,
    LockAnswer,
    LocksRenewed,
    LogChunk,
    MalformedMessage,
    Poll,
    Refusal,
    ToBorglet,
    Welcome,
    decode_to_borglet,
    encode,
)

if TYPE_CHECKING:
    from borglet.link.shells import Shells
    from borglet.locks.keeper import LockKeeper

log = logging.getLogger(__name__)

COALESCE_S = 0.02
CLOSE_REASON_BYTES = 120


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Time limits of a Borglet: for an answer when it connects to a shard, and for the next poll."""

    connect_timeout_s: float = 20.0  # long, because a shard accepts machines at its own rate
    silence_s: float = 30.0  # a shard counts as gone if it sends no poll for this long after the last hold


@dataclass(frozen=True, slots=True)
class Introduction:
    """The facts about this machine that the Borglet sends to a shard in the message `Hello`."""

    boot_id: str
    software: str
    attributes: dict[str, str]
    capacity: dict[str, int]


class _Redial(Exception):
    """Raised if the Borglet must connect to the link again immediately, with its other stored secret."""


class LinkRejected(Exception):
    """The error if the shard rejected this connection. `retry`: whether a new attempt may succeed soon."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"{refusal.code} ({refusal.field or 'no field'}): {refusal.detail}")
        self.retry = refusal.retry


@dataclass(slots=True)
class _Session:
    """One connection of a Borglet after the shard's message `Welcome`. `held`: the poll that the Borglet has not
    answered yet.
    """

    socket: ClientSocket
    number: int
    protocol: int
    reported_version: int = -1
    held: Poll | None = None
    held_until: float = 0.0
    release: asyncio.Handle | None = None
    release_at: float = 0.0  # uvloop's handle of an immediate call does not contain its time


class Link:
    """The connection of one machine to its cell. `run` keeps the machine connected until the asyncio task of this call
    is cancelled.
    """

    def __init__(
        self,
        agent: Agent,
        credentials: Credentials,
        url: str,
        introduction: Introduction,
        *,
        rng: random.Random,
        settings: LinkSettings = LinkSettings(),
        admission: AbstractAsyncContextManager[None] | None = None,
        welcomed: Callable[[], None] | None = None,
        shells: Shells | None = None,
        locks: LockKeeper | None = None,
    ) -> None:
        """Set up the link. `url`: `https://host:port`. `admission`: a context manager that can limit simultaneous
        attempts to connect. The link enters it before each attempt, and leaves it when a shard has welcomed the machine
        or the attempt has failed. `welcomed`: called after each welcome. `shells`: opens the shells that polls grant.
        `locks`: passes on requests of tasks about locks. Raises `BadMachine` if `url` has another form.
        """
        self._agent, self._credentials = agent, credentials
        self._url = link_url(url)
        self._introduction, self._settings = introduction, settings
        self._backoff = Backoff(rng)
        self._admission = admission if admission is not None else nullcontext()
        self._welcomed = welcomed
        self._shells, self._locks = shells, locks
        self._session: _Session | None = None
        agent.subscribe(self._on_change)

    @property
    def connected(self) -> bool:
        return self._session is not None

    def drop(self) -> None:
        """Break the connection without closing it, as a failing network does."""
        if self._session is not None:
            self._session.socket.abort()

    async def run(self) -> None:
        while True:
            hopeless = False
            try:
                await self._connect_and_serve()
            except LinkRejected as error:
                hopeless = not error.retry
                log.warning("the shard rejected this machine: %s", error)
            except _Redial:
                continue
            except InvalidStatus as error:
                if error.response.status_code == HTTPStatus.UNAUTHORIZED and self._credentials.refused():
                    log.warning("the cell rejected this machine's newest secret; the Borglet tries the other one")
                    continue
                hopeless = error.response.status_code in (401, 403)
                log.warning("the shard rejected the connection: %s", _format_status(error))
            except ssl.SSLCertVerificationError as error:
                log.warning("%s has no certificate of this machine's cell: %s", self._url, error.verify_message)
            except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
                log.info("the connection to %s is down: %s", self._url, error or type(error).__name__)
            await asyncio.sleep(self._backoff.next_s(hopeless=hopeless))

    async def _connect_and_serve(self) -> None:
        async with self._admission, AsyncExitStack() as failed:
            socket = await dial(
                self._url,
                self._credentials.context,
                {"Authorization": self._credentials.authorization()},
                within_s=self._settings.connect_timeout_s,
                most_bytes=MAX_FRAME_BYTES,
            )
            failed.callback(socket.close, CloseCode.NORMAL_CLOSURE)
            self._credentials.admitted()
            session = _Session(socket, *await self._greet(socket))
            failed.pop_all()
        try:
            self._backoff.succeeded()
            log.info("connected to %s, session %d", self._url, session.number)
            self._session = session
            if self._welcomed is not None:
                self._welcomed()
            if self._locks is not None and session.protocol >= LOCKS_SINCE:
                self._locks.connected(lambda message: socket.send(encode(message)))
            try:
                await self._serve(session)
            finally:
                self._session = None
                if self._locks is not None:
                    self._locks.disconnected()
                if session.release is not None:
                    session.release.cancel()
        finally:
            socket.close(CloseCode.NORMAL_CLOSURE)

    async def _greet(self, socket: ClientSocket) -> tuple[int, int]:
        """Send the message `Hello`. Return two numbers from the shard's answer: the session and the protocol version.
        Raises `LinkRejected` if the shard rejects the message or chooses an unknown version.
        """
        introduction = self._introduction
        hello = Hello(
            protocol=OLDEST_PROTOCOL,
            newest=PROTOCOL,
            hostname=self._credentials.hostname,
            boot_id=introduction.boot_id,
            software=introduction.software,
            history_id=self._agent.state.history_id,
            attributes=introduction.attributes,
            capacity=introduction.capacity,
            authority=self._credentials.authority,
        )
        socket.send(encode(hello))
        message = await self._receive(socket, self._settings.silence_s)
        if isinstance(message, Refusal):
            raise LinkRejected(message)
        if not isinstance(message, Welcome):
            self._hang_up(socket, "type: expected welcome or refusal after hello, got poll")
        if not OLDEST_PROTOCOL <= message.protocol <= PROTOCOL:
            detail = (
                f"the link server uses protocol {message.protocol}, but this Borglet supports only {OLDEST_PROTOCOL} to"
                f" {PROTOCOL}; upgrade the older of the two"
            )
            raise LinkRejected(Refusal("protocol", "protocol", detail, retry=False))
        self._credentials.apply_welcome(authority=message.authority, api_url=message.api_url)
        self._agent.runtime.api_url = self._credentials.api_url
        return message.session, message.protocol

    async def _receive(self, socket: ClientSocket, timeout_s: float) -> ToBorglet:
        """Return the next message. After an invalid frame, close the connection and raise `LinkRejected`."""
        frame = await socket.receive(timeout_s)
        try:
            return decode_to_borglet(frame)
        except MalformedMessage as error:
            self._hang_up(socket, str(error))

    def _hang_up(self, socket: ClientSocket, reason: str) -> NoReturn:
        """Send the reason to the shard, close the connection, and raise `LinkRejected`."""
        short = reason.encode()[:CLOSE_REASON_BYTES].decode(errors="ignore")
        socket.close(CloseCode.INVALID_DATA, short)
        detail = f"the link server sent a message that is not valid: {reason}; the Borglet connects again"
        raise LinkRejected(Refusal("malformed", "", detail))

    # -- polls

    async def _serve(self, session: _Session) -> None:
        loop = asyncio.get_running_loop()
        while True:
            silence_s = max(0.0, session.held_until - loop.time()) + self._settings.silence_s
            message = await self._receive(session.socket, silence_s)
            if isinstance(message, Refusal):
                raise LinkRejected(message)
            if isinstance(message, Welcome):
                self._hang_up(session.socket, "type: expected poll or refusal, got a second welcome")
            if isinstance(message, LockAnswer | LocksRenewed):
                if self._locks is not None:
                    self._locks.take(message)
                continue
            self._release(session)
            if message.identities:
                self._agent.identified(message.identities)
            self._agent.polled(session.number, message)
            if message.shells and self._shells is not None:
                self._shells.offer(message.shells)
            redial = bool(message.accepted) and self._credentials.accepted(message.accepted)
            if redial or message.hold_s <= 0 or message.logs or message.rotate:
                logs = await self._agent.read_logs(message) if message.logs else []
                self._answer(session, message, logs)
                if redial:
                    raise _Redial
                continue
            session.held, session.held_until = message, loop.time() + message.hold_s
            changed = self._agent.state.version != session.reported_version
            self._release_after(session, COALESCE_S if changed else message.hold_s)

    def _on_change(self) -> None:
        session = self._session
        if session is not None and session.held is not None:
            self._release_after(session, COALESCE_S)

    def _release_after(self, session: _Session, delay_s: float) -> None:
        """After `delay_s` seconds, answer the poll that `session` has not answered yet. Change nothing if an earlier
        answer is already planned.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if session.release is not None:
            if session.release_at <= at:
                return
            session.release.cancel()
        session.release_at = at
        session.release = loop.call_at(at, self._release, session)

    def _release(self, session: _Session) -> None:
        """If `session` has a poll without an answer, answer this poll now."""
        poll, session.held, session.held_until = session.held, None, 0.0
        if session.release is not None:
            session.release.cancel()
            session.release = None
        if poll is not None:
            self._answer(session, poll, [])

    def _answer(self, session: _Session, poll: Poll, logs: list[LogChunk]) -> None:
        """Answer `poll` with a report that contains `logs`. If the connection has ended, nothing is sent, and the next
        `receive` raises an error.
        """
        session.reported_version = self._agent.state.version
        report = self._agent.report(logs, session.number, poll, protocol=session.protocol)
        if poll.rotate:
            report = msgspec.structs.replace(report, offer=self._credentials.offer())
        session.socket.send(encode(report))


def link_url(url: str, path: str = "/link") -> str:
    """Return the address of the WebSocket at `path` of the link server `https://host:port`. Raises `BadMachine` if
    `url` has another form.
    """
    link_address(url)
    return f"wss://{urllib.parse.urlsplit(url).netloc}{path}"


def _format_status(error: InvalidStatus) -> str:
    body = bytes(error.response.body or b"")[:500].decode(errors="replace").strip()
    return f"HTTP {error.response.status_code} {body}".strip()
