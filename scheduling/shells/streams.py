"""Send the bytes of shells between the portal and tasks. Each session has two Redis streams of limited length.

    portal ── in ──► shard ── WebSocket /shell ──► Borglet ── terminal
           ◄─ out ──       ◄───────────────────────

The portal and the machine's shard need no direct connection. A sender may send at most one window of bytes
(`borglet.messages`) that the receiver has not read yet. A sender that sends more is disconnected. Entries of a stream
are deleted after the receiver has read them. An unused stream expires after `_TTL_S` seconds.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import msgspec
import redis
import redis.asyncio
import structlog

from borglet.messages import (
    SHELL_FRAME_BYTES,
    SHELL_LEAST_COST,
    SHELL_WINDOW_BYTES,
    MalformedMessage,
    ShellFrame,
    ShellGrant,
    shell_frame,
    shell_frame_of,
)
from quota.vocabulary.errors import Rejected
from scheduling.journal import wakeups
from scheduling.journal.sql import in_thread
from scheduling.machines import last_contact
from scheduling.shells.shells import shell_connected, shell_grant
from serving import redis_clients

log = structlog.get_logger(__name__)

# A window of the smallest frames, one more for each control frame in flight, and some reserve.
MAX_WAITING = SHELL_WINDOW_BYTES // SHELL_LEAST_COST * 2 + 256
TAKE_S = 5.0
_AT_ONCE = 32
_TTL_S = 120


class Overrun(Exception):
    """Raised if too many frames (byte strings) wait for a receiver that does not read them fast enough."""


class ShellUnavailable(Rejected):
    """Raised if no shell can be opened because the task's machine is not connected or Redis cannot be reached."""

    status = 503


class ShellRequest(msgspec.Struct, frozen=True):
    """The message that announces a new session to the shard of a machine. The shard then reads the database row of the
    session.
    """

    machine_id: int
    session: str


def channel(shard: str) -> str:
    return f"borg:link:{shard}:shells"


def ask(cell_id: int, machine_id: int, hostname: str, session: uuid.UUID) -> None:
    """Send the request for a shell to the shard to which the machine is connected. Raises `ShellUnavailable` if the
    machine is not connected or Redis cannot be reached.
    """
    try:
        holder = last_contact.holder_of(cell_id, machine_id)
        asked = msgspec.json.encode(ShellRequest(machine_id, session.hex))
        if holder is None or not wakeups.client().publish(channel(holder), asked):
            raise ShellUnavailable(
                "machine-not-connected",
                f"machine {hostname} is not connected to a link shard; try again when it is connected",
                fields={"machine": hostname},
            )
    except redis.RedisError as error:
        raise ShellUnavailable(
            "redis-away", f"cannot open a shell, because Redis does not answer; try again later: {error}"
        ) from error


def connect(url: str) -> redis.asyncio.Redis:
    """Return a Redis client for shells. Its timeout is long enough to wait `TAKE_S` seconds for input."""
    return redis_clients.async_client(url, socket_timeout=TAKE_S + 10.0, socket_connect_timeout=2.0, retry=None)


# Input and output may contain secrets, so they are not written to Redis' append-only file or to its replicas.
# Redis before 7 needs `replicate_commands` for that. KEYS: the stream. ARGV: seconds to keep it, then the frames.
_PUT = """
redis.replicate_commands()
redis.set_repl(redis.REPL_NONE)
for number = 2, #ARGV do redis.call('XADD', KEYS[1], '*', 'f', ARGV[number]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return redis.call('XLEN', KEYS[1])
"""


class ShellStream:
    """The frames (byte strings) of a shell session in one direction: `in` to the task, or `out` to the client. Only one
    process may read them.
    """

    def __init__(self, connection: redis.asyncio.Redis, session: str, direction: str) -> None:
        self._redis = connection
        self._key = f"borg:shell:{session}:{direction}"
        self._last = b"0"
        self._read: list[bytes] = []

    async def put(self, *frames: bytes) -> None:
        """Append frames to the stream. Raises `Overrun` if too many frames wait for the reader, and `redis.RedisError`
        if Redis cannot be reached.
        """
        waiting = await self._redis.eval(_PUT, 1, self._key, _TTL_S, *frames)
        if waiting > MAX_WAITING:
            raise Overrun(
                f"{waiting} frames of the shell are not yet read, and at most {MAX_WAITING} may wait; open a new shell"
            )

    async def take(self) -> list[bytes]:
        """Wait up to `TAKE_S` seconds for frames, and return them in order. Return an empty list if no frames came.
        Raises `redis.RedisError` if Redis cannot be reached.
        """
        if self._read:
            read, self._read = self._read, []
            await self._redis.xdel(self._key, *read)
        found = await self._redis.xread({self._key: self._last}, count=_AT_ONCE, block=int(TAKE_S * 1000))
        if not found:
            return []
        entries = found[0][1]  # type: ignore[index]
        self._read = [entry for entry, _ in entries]  # type: ignore[misc, str-unpack]
        self._last = self._read[-1]
        return [fields[b"f"] for _, fields in entries]  # type: ignore[call-overload, index, misc, str-unpack]

    async def drop(self) -> None:
        """Delete the stream. Raises `redis.RedisError` if Redis cannot be reached."""
        await self._redis.delete(self._key)


async def grant(asked: ShellRequest) -> ShellGrant:
    """Return the signed grant for a requested shell. Raises `Rejected` if the request is too old or the task no longer
    runs on the machine.
    """
    return await in_thread(shell_grant, uuid.UUID(asked.session), machine_id=asked.machine_id)


async def reject(connection: redis.asyncio.Redis, session: str, reason: str) -> None:
    """Send the client the reason why no shell was opened. Raises `redis.RedisError` if Redis cannot be reached."""
    await ShellStream(connection, session, "out").put(shell_frame(ShellFrame.FAILED, reason.encode()))


async def relay(
    pool: redis.asyncio.Redis,
    session: str,
    machine_id: int,
    receive: Callable[[], Awaitable[bytes | str]],
    send: Callable[[bytes], Awaitable[None]],
) -> str:
    """Pass frames between the WebSocket of a machine and the two streams of a session, until the socket or a stream
    ends.

    `receive`, `send`: receive from the socket and send to it; `receive` raises an exception if the socket is closed.
    Return why the session was ended, or "" if the machine ended it. Raises `Rejected` if the session was not granted
    to this machine.
    """
    try:
        number = uuid.UUID(session)
    except ValueError as error:
        detail = f"session: {session[:50]!r} is not the number of a shell; use the number that the link server sent"
        raise Rejected("not-found", detail, status=404) from error
    if not await in_thread(shell_connected, number, machine_id=machine_id):
        detail = (
            f"session: no shell {number.hex} waits for this machine; use the number that the link server sent, or"
            " request a new shell"
        )
        raise Rejected("not-found", detail, status=404)
    return await _Relay(ShellStream(pool, session, "in"), ShellStream(pool, session, "out"), receive, send).run()


class _Relay:
    def __init__(
        self,
        inward: ShellStream,
        outward: ShellStream,
        receive: Callable[[], Awaitable[bytes | str]],
        send: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._input, self._output, self._receive, self._send = inward, outward, receive, send
        self._last = ShellFrame.ALIVE  # kind of the last frame for the client

    async def run(self) -> str:
        work = [asyncio.ensure_future(self._to_client()), asyncio.ensure_future(self._to_machine())]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            if isinstance(_error_of(work[1]), OSError):
                # The machine closed the socket. Its last frames may not have been read yet.
                await asyncio.wait({work[0]}, timeout=TAKE_S)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        reason = ""
        for error in map(_error_of, work):
            if isinstance(error, Overrun | MalformedMessage | redis.RedisError):
                reason = reason or str(error) or type(error).__name__
        if self._last not in (ShellFrame.EXIT, ShellFrame.FAILED):
            detail = reason or "the machine closed the connection, because its Borglet ended"
            try:
                await self._output.put(shell_frame(ShellFrame.FAILED, detail.encode()))
            except (Overrun, redis.RedisError) as error:
                log.warning("cannot send the end of a shell to its client", error=str(error))
        return reason

    async def _to_machine(self) -> None:
        while True:
            for frame in await self._input.take():
                await self._send(frame)

    async def _to_client(self) -> None:
        while True:
            frame = await self._receive()
            raw = frame.encode() if isinstance(frame, str) else frame
            kind, payload = shell_frame_of(raw)
            if len(payload) > SHELL_FRAME_BYTES:
                raise MalformedMessage(
                    f"a frame of the shell has {len(payload)} bytes, and at most {SHELL_FRAME_BYTES} are allowed; send"
                    " smaller frames"
                )
            await self._output.put(raw)
            self._last = kind


def _error_of(task: asyncio.Future[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None
