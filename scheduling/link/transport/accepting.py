"""Accept connections of machines only as fast as the shard can handle them, and measure delays of its event loop.

    kernel's queue (BACKLOG) ── accept ──► a slot of HANDSHAKES_AT_ONCE ── TLS handshake ──► the protocol
                                              └── no free slot: connections wait in the kernel's queue

If the shard accepted all connections at once, each handshake would take so long that machines would give up and connect
again. So it accepts only some of them, and the others wait in the kernel.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

import structlog

from scheduling.link.transport.owned_tasks import OwnedTasks

log = structlog.get_logger(__name__)
T = TypeVar("T")

HANDSHAKES_AT_ONCE = 64
# At 50 handshakes per second, which a busy host still reaches, the last machine in the queue waits for five seconds.
BACKLOG = 256
HANDSHAKE_WITHIN_S = 20.0
# The kernel delivers a connection when its first bytes have arrived, so that a silent client takes no slot.
_FIRST_BYTES_WITHIN_S = 10
_ACCEPT_AGAIN_S = 0.2
_TICK_S = 0.1
# A shard counts as overloaded for this time after it had no free slot, or after its loop lagged by more than `LAG_S`.
OVERLOADED_FOR_S = 10.0
LAG_S = 1.0


class LoopProgress:
    """A clock that does not count the time in which the event loop is blocked.

    `seconds`: the time on this clock. `lag_s`: how many seconds the loop was late at the last measurement. While
    `overloaded` is true, the master marks no machine as down, because machines may be waiting for this shard.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lag_s = 0.0
        self._busy_until = 0.0
        self._ticks: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticks = asyncio.create_task(self._tick_forever())

    async def stop(self) -> None:
        if self._ticks is not None:
            self._ticks.cancel()
            await asyncio.gather(self._ticks, return_exceptions=True)

    @property
    def overloaded(self) -> bool:
        return asyncio.get_running_loop().time() < self._busy_until

    def note_busy(self) -> None:
        """Mark the shard as overloaded for some time. Call this method if all slots for handshakes are in use or the
        event loop is late.
        """
        self._busy_until = asyncio.get_running_loop().time() + OVERLOADED_FOR_S

    async def within(self, seconds: float, wait: Callable[[], Coroutine[None, None, T]]) -> T:
        """Return the result of `wait()`. Raises `TimeoutError` after `seconds` on this clock, which stands still while
        the event loop is blocked.

        If the loop was blocked and `wait()` times out too early, `wait()` is called again for the rest of `seconds`.
        """
        left_s = seconds
        while True:
            began_s = self.seconds
            try:
                async with asyncio.timeout(left_s):
                    return await wait()
            except TimeoutError:
                left_s -= self.seconds - began_s
                if left_s < 2 * _TICK_S:
                    raise

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(_TICK_S)
            took = loop.time() - began
            self.lag_s = max(0.0, took - _TICK_S)
            self.seconds += min(took, 2 * _TICK_S)
            if self.lag_s > LAG_S:
                self.note_busy()


class Acceptor:
    """Accepts connections on listening sockets. uvicorn can use it like an asyncio server."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        *,
        context: ssl.SSLContext | None,
        progress: LoopProgress,
        at_once: int = HANDSHAKES_AT_ONCE,
    ) -> None:
        self.sockets = tuple(sockets)
        self._make_protocol, self._context, self._progress = make_protocol, context, progress
        self._free = asyncio.Semaphore(at_once)
        self._tasks = OwnedTasks()
        self.closing = False

    def start(self) -> None:
        for listener in self.sockets:
            self._tasks.begin(self._accept_forever(listener))

    def close(self) -> None:
        self.closing = True
        self._tasks.cancel()
        for listener in self.sockets:
            listener.close()

    async def wait_closed(self) -> None:
        await self._tasks.end()

    async def _accept_forever(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if self._free.locked():
                self._progress.note_busy()
            await self._free.acquire()
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as error:  # for example without a free file descriptor; the next attempt may succeed
                self._free.release()
                log.warning("cannot accept a connection", error=str(error), again_s=_ACCEPT_AGAIN_S)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            except BaseException:
                self._free.release()
                raise
            self._tasks.begin(self._open(accepted))

    async def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            accepted.setblocking(False)
            within_s = HANDSHAKE_WITHIN_S if self._context is not None else None
            await loop.connect_accepted_socket(
                self._make_protocol, accepted, ssl=self._context, ssl_handshake_timeout=within_s
            )
        except (OSError, ssl.SSLError, TimeoutError) as error:
            log.debug("a handshake failed", error=str(error) or type(error).__name__)
            accepted.close()
        finally:
            self._free.release()


def listening(host: str, port: int, *, shared: bool) -> list[socket.socket]:
    """Return one listening socket for each address of `host`. Child processes do not inherit these sockets.

    `shared`: whether other shards on this host listen on the same port. The kernel then distributes the connections.
    Raises `OSError` if the port cannot be used.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            made.append(socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=shared))
            made[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _FIRST_BYTES_WITHIN_S)
            made[-1].setblocking(False)
    except OSError:
        for one in made:
            one.close()
        raise
    return made
