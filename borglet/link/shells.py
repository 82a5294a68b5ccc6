"""Shells in tasks of this machine. Each shell has its own connection to the link, so that polls never wait for data of
a shell.

    Poll.shells ─► Grants.take ─► dial /shell?session=… ─► runtime.open_shell ─► Pty
                                        ▲                                        │
                     client ◄── frames, at most a window unconsumed ──► bridge ◄─┘

A shell ends when its program, task, client or Borglet ends, or when the shell reaches a time limit. The client receives
the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from borglet.agent import Agent
from borglet.identity.credentials import Credentials
from borglet.link.shell_grants import GrantRefused, Grants
from borglet.messages import (
    SHELL_FRAME_BYTES,
    SHELL_WINDOW_BYTES,
    MalformedMessage,
    ShellClaims,
    ShellFrame,
    ShellGrant,
    shell_cost,
    shell_frame,
    shell_frame_of,
)
from borglet.runtimes.supervisor.ptys import Pty, ShellRefused
from borglet.state.phases import WITH_PROCESSES

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """Limits of all shells on this machine. The limits of a single shell are in its grant."""

    at_once: int = 50  # the most shells at the same time
    alive_s: float = 5.0  # interval between two ALIVE frames
    silence_s: float = 30.0  # a client counts as gone if it sends no frame for this long
    connect_timeout_s: float = 10.0
    last_words_s: float = 5.0  # time for the client to consume the last output


class Shells:
    """All shells of one machine. Pass the grants in polls (signed permissions to open a shell) to `offer`. Call `close`
    before `Agent.close`.
    """

    def __init__(
        self,
        agent: Agent,
        credentials: Credentials,
        url: str,
        authority: Callable[[], str],
        *,
        settings: ShellSettings = ShellSettings(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Set up shells. `url`: `wss://host:port/shell`. `authority` returns the present certificates of the cell's
        authorities (PEM). `clock` returns seconds since the epoch."""
        self._agent, self._credentials, self._url = agent, credentials, url
        self._grants = Grants(authority, credentials.hostname)
        self._settings, self._clock = settings, clock
        self._work: set[asyncio.Task[None]] = set()

    def offer(self, grants: list[ShellGrant]) -> None:
        """Open a shell for each valid grant. A grant is a signed permission to open one shell. If a grant is not valid,
        the client of the shell receives the reason.
        """
        for grant in grants:
            try:
                claims = self._grants.take(grant, now=self._clock())
            except GrantRefused as refused:
                log.warning("rejected a shell: %s", refused)
                if refused.session:
                    self._spawn(self._decline(refused.session, str(refused)))
                continue
            self._spawn(self._serve(claims))

    async def close(self) -> None:
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a shell ended because of an error in the Borglet", exc_info=error)

    async def _decline(self, session: str, reason: str) -> None:
        with contextlib.suppress(OSError, TimeoutError, InvalidHandshake, ConnectionClosed):
            async with self._dial(session) as socket:
                await socket.send(shell_frame(ShellFrame.FAILED, reason.encode()))

    async def _serve(self, claims: ShellClaims) -> None:
        who = f"{claims.user} in task {claims.key}, session {claims.session}"
        if len(self._work) > self._settings.at_once:
            await self._decline(
                claims.session,
                f"{self._settings.at_once} shells are open on this machine, which is the limit; close one of them",
            )
            return
        try:
            async with self._dial(claims.session) as socket:
                try:
                    pty = await self._open(claims)
                except ShellRefused as refused:
                    log.info("cannot open a shell for %s: %s", who, refused)
                    await socket.send(shell_frame(ShellFrame.FAILED, str(refused).encode()))
                    return
                log.info("opened a shell for %s", who)
                ended = "the Borglet is shutting down"  # unless the bridge returns another reason
                try:
                    ended = await _Bridge(socket, pty, claims, self._settings, self._lives).run()
                finally:
                    await pty.close()
                    log.info("the shell of %s ended: %s", who, ended)
        except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed) as error:
            log.info("the shell of %s lost its connection: %s", who, error or type(error).__name__)

    async def _open(self, claims: ShellClaims) -> Pty:
        if not self._lives(claims):
            raise ShellRefused(
                f"task {claims.key} is not running on this machine now; open the shell when the task runs"
            )
        return await self._agent.runtime.open_shell(claims)

    def _lives(self, claims: ShellClaims) -> bool:
        return any(inc.key == claims.key and inc.phase in WITH_PROCESSES for inc in self._agent.state.incarnations())

    def _dial(self, session: str) -> connect:
        return connect(
            f"{self._url}?{urllib.parse.urlencode({'session': session})}",
            ssl=self._credentials.context,
            additional_headers={"Authorization": self._credentials.bearer()},
            compression=None,
            max_size=SHELL_FRAME_BYTES + 1,
            max_queue=16,
            open_timeout=self._settings.connect_timeout_s,
            ping_interval=None,  # ALIVE frames between client and shell replace pings
            close_timeout=1.0,
            proxy=None,
            user_agent_header=None,
        )


class _Over(Exception):
    """Raised to end a shell. The message is the reason, which the client receives."""


class _Bridge:
    """Copies data between the terminal of one shell and the socket to its client, until one of them ends."""

    def __init__(
        self,
        socket: ClientConnection,
        pty: Pty,
        claims: ShellClaims,
        settings: ShellSettings,
        lives: Callable[[ShellClaims], bool],
    ) -> None:
        self._socket, self._pty, self._claims = socket, pty, claims
        self._settings, self._lives = settings, lives
        self._loop = asyncio.get_running_loop()
        self._began = self._heard_at = self._used_at = self._loop.time()
        self._unconsumed = 0  # cost of the output that the client has not consumed
        self._consumed = asyncio.Event()
        self._typed: asyncio.Queue[bytes | None] = asyncio.Queue()  # None: the end of input
        self._typed_cost = 0
        self._reading = False  # `_print` waits for the terminal, and all earlier output is sent

    async def run(self) -> str:
        """Copy data between terminal and socket until the shell ends. Return the reason of the end, for the log."""
        await self._socket.send(shell_frame(ShellFrame.OPENED))
        printing = self._loop.create_task(self._print())
        others = [self._loop.create_task(work) for work in (self._listen(), self._type(), self._watch())]
        exited = self._loop.create_task(self._pty.exited())
        everything: set[asyncio.Task[None] | asyncio.Task[int]] = {*others, exited, printing}
        try:
            # Processes may close the terminal before the program ends, or hold it open afterwards.
            await asyncio.wait({*others, exited}, return_when=asyncio.FIRST_COMPLETED)
            for task in others:
                if task.done():
                    task.result()
            await self._last_words(printing)
            status = exited.result()
            detail = f"status {status}" if status >= 0 else f"signal {-status}"
            await self._socket.send(shell_frame(ShellFrame.EXIT, detail.encode()))
        except _Over as over:
            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(shell_frame(ShellFrame.FAILED, str(over).encode()))
            return str(over)
        except ConnectionClosed:
            return "the client closed the connection"
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._socket.send(shell_frame(ShellFrame.FAILED, b"the machine's Borglet restarts"))
            raise
        finally:
            for work in everything:
                work.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
        return detail

    async def _print(self) -> None:
        while True:
            self._reading = True
            data = await self._pty.read(SHELL_FRAME_BYTES)
            self._reading = False
            if not data:
                return
            await self._send_output(data)

    async def _send_output(self, data: bytes) -> None:
        while self._unconsumed >= SHELL_WINDOW_BYTES:
            self._consumed.clear()
            await self._consumed.wait()
        self._unconsumed += shell_cost(len(data))
        self._used_at = self._loop.time()
        await self._socket.send(shell_frame(ShellFrame.DATA, data))

    async def _last_words(self, printing: asyncio.Task[None]) -> None:
        """Wait until the last output of the program is sent to the client, but at most `last_words_s` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.last_words_s):
                while not printing.done():
                    await asyncio.wait({printing}, timeout=0.05)
                    if self._reading:  # no output is left
                        return

    async def _listen(self) -> None:
        """Read frames from the client until the connection ends. Input for the terminal goes into a queue. If the
        client sends more than the flow-control window allows, the shell ends.
        """
        while True:
            try:
                kind, payload = shell_frame_of(await self._socket.recv())
            except MalformedMessage as error:
                raise _Over(str(error)) from error
            self._heard_at = self._loop.time()
            if kind is ShellFrame.DATA:
                self._used_at = self._heard_at
                self._typed_cost += shell_cost(len(payload))
                if self._typed_cost > SHELL_WINDOW_BYTES + SHELL_FRAME_BYTES:
                    raise _Over(
                        f"the client sent more than {SHELL_WINDOW_BYTES} bytes that the shell has not read yet; open"
                        " another shell, and send input more slowly"
                    )
                self._typed.put_nowait(payload)
            elif kind is ShellFrame.CONSUMED:
                self._unconsumed = max(0, self._unconsumed - number_of(payload))
                self._consumed.set()
            elif kind is ShellFrame.RESIZE:
                self._resize(payload)
            elif kind is ShellFrame.END:
                self._typed.put_nowait(None)
            elif kind is ShellFrame.FAILED:
                raise _Over(payload.decode(errors="replace"))

    def _resize(self, payload: bytes) -> None:
        rows, _, cols = payload.partition(b" ")
        height, width = number_of(rows), number_of(cols)
        if 1 <= height <= 1000 and 1 <= width <= 1000:
            self._pty.resize(height, width)

    async def _type(self) -> None:
        while True:
            data = await self._typed.get()
            if data is None:
                self._pty.end_of_input()
                continue
            await self._pty.write(data)
            self._typed_cost -= shell_cost(len(data))
            consumed = str(shell_cost(len(data))).encode()
            await self._socket.send(shell_frame(ShellFrame.CONSUMED, consumed))

    async def _watch(self) -> None:
        alive_at = self._loop.time()  # the time of the last ALIVE frame
        while True:
            await asyncio.sleep(min(0.5, self._settings.alive_s))
            now, claims = self._loop.time(), self._claims
            if not self._lives(claims):
                raise _Over("the task ended")
            if now - self._began > claims.longest_s:
                raise _Over(f"the shell reached its longest duration of {claims.longest_s:g} s; open another one")
            if now - self._used_at > claims.idle_s:
                raise _Over(f"the shell had no input and no output for {claims.idle_s:g} s; open another one")
            if now - self._heard_at > self._settings.silence_s:
                raise _Over(
                    f"the shell's client sent nothing for {self._settings.silence_s:g} s; check the network, and open"
                    " another shell"
                )
            if now - alive_at > self._settings.alive_s:
                alive_at = now
                await self._socket.send(shell_frame(ShellFrame.ALIVE))


def number_of(payload: bytes) -> int:
    """Return the number in a text. Return 0 if the text is not a number or has more than nine digits."""
    return int(payload) if payload.isdigit() and len(payload) < 10 else 0
