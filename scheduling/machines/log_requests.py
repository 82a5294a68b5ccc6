"""Requests for parts of a task's log. The shard that is connected to the machine passes them on to the machine.

    web process ── publish ──► shard ── Poll.logs ──► Borglet
        ▲── publish ────────── shard ◄── Report.logs ──┘

Each `publish` goes through a channel of Redis. A shard has one channel for requests, and each request has its own
channel for the answer. Redis does not store published messages. So the output of tasks, which may contain secrets, is
stored only on their machine.
"""

from __future__ import annotations

import time
import uuid
from typing import Self

import msgspec
import redis

from borglet.messages import LogChunk, LogRequest, TaskKey
from quota.vocabulary.errors import Rejected
from scheduling.journal import wakeups
from scheduling.machines import last_contact
from scheduling.models import Machine

MAX_BYTES = 2**20


class LogUnavailable(Rejected):
    """Raised if the machine that has the log is not connected or does not answer in time."""

    status = 503


class RoutedLogRequest(msgspec.Struct, frozen=True):
    """A log request that a web process sends to a shard. `machine_id`: the machine that has the log."""

    machine_id: int
    request: LogRequest


def fetch(
    machine: Machine,
    key: TaskKey,
    *,
    stream: str = "stdout",
    offset: int = -65536,
    limit_bytes: int = 65536,
    search: str = "",
    ignore_case: bool = False,
    since: float = 0.0,
    limit_lines: int = 1000,
    timeout_s: float = 10.0,
) -> LogChunk:
    """Return part of a task's log: at most `limit_bytes` bytes from byte `offset` on. A negative `offset` counts from
    the end. If the Borglet cannot read the log, the chunk's `error` says why.

    `search`: return at most `limit_lines` lines that contain this text. `since`: only output of this time or later, in
    seconds since the epoch. Raises `LogUnavailable` if the machine does not answer within `timeout_s` seconds.
    """
    request = LogRequest(uuid.uuid4().hex, key, stream, offset, limit_bytes, search, ignore_case, since, limit_lines)
    try:
        with _Listener(request.request_id, timeout_s) as listener:
            holder = last_contact.holder_of(machine.cell_id, machine.id)
            asked = msgspec.json.encode(RoutedLogRequest(machine.id, request))
            if holder is None or not wakeups.client().publish(channel(holder), asked):
                raise LogUnavailable(
                    "machine-not-connected",
                    f"machine {machine.hostname} is not connected to a link shard; try again when it is connected",
                    fields={"machine": machine.hostname},
                )
            answer = listener.wait()
    except redis.RedisError as error:
        raise LogUnavailable(
            "redis-away", f"cannot read the log, because Redis does not answer; try again later: {error}"
        ) from error
    if answer is None:
        raise LogUnavailable(
            "log-timeout",
            f"machine {machine.hostname} did not answer within {timeout_s:g} s; try again",
            fields={"machine": machine.hostname},
            status=504,
        )
    return msgspec.json.decode(answer, type=LogChunk)


def channel(shard: str) -> str:
    return f"borg:link:{shard}"


def answer_channel(request_id: str) -> str:
    return f"borg:log:{request_id}"


async def answer(connection: redis.asyncio.Redis, chunk: LogChunk) -> None:
    """Send the part of a log to the process that requested it. Raises `redis.RedisError` if Redis cannot be reached."""
    await connection.publish(answer_channel(chunk.request_id), msgspec.json.encode(chunk))


def not_connected(request: LogRequest) -> LogChunk:
    """Return the answer that a shard sends if the machine with the requested log has just disconnected."""
    return LogChunk(request.request_id, 0, 0, "", error="the machine has just disconnected; try again")


class _Listener:
    """A context manager that waits for the answer to one request. It subscribes on entry, so enter it before you send
    the request. The entry raises `redis.RedisError` if Redis cannot be reached.
    """

    def __init__(self, request_id: str, timeout_s: float) -> None:
        self._channel, self._timeout_s = answer_channel(request_id), timeout_s
        # The answer may take longer than the timeout of the shared connections.
        pool = wakeups.client().connection_pool
        options = {**pool.connection_kwargs, "socket_timeout": timeout_s + 5.0}
        self._pool = redis.ConnectionPool(connection_class=pool.connection_class, **options)

    def __enter__(self) -> Self:
        self._pubsub = redis.Redis(connection_pool=self._pool).pubsub()  # type: ignore[no-untyped-call]
        try:
            self._pubsub.subscribe(self._channel)
            if self._pubsub.get_message(timeout=self._timeout_s) is None:
                raise redis.TimeoutError(
                    f"Redis did not confirm the subscription to the machine's answer within {self._timeout_s:g} s;"
                    " check the Redis server"
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._pubsub.close()
        self._pool.disconnect()

    def wait(self) -> bytes | None:
        """Return the machine's answer, or None if none came in time."""
        deadline = time.monotonic() + self._timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=left_s)
            if message is not None:
                data: bytes = message["data"]
                return data
        return None
