"""Parts of a task's log, fetched from its machine through the shard that holds the connection.

    web process ── publish ──► shard ── Poll.logs ──► Borglet
        ▲── list, with a time limit ── shard ◄── Report.logs ──┘

Both hops are Redis: requests on the shard's channel, the answer in a list of the request's own.
"""

from __future__ import annotations

import uuid

import msgspec
import redis

from borglet.messages import LogChunk, LogRequest, TaskKey
from quota.errors import Refused
from scheduling import notices
from scheduling.link import contact
from scheduling.models import Machine

MAX_BYTES = 2**20
_ANSWER_TTL_S = 60


class LogUnavailable(Refused):
    """The machine can't be asked now: it is not connected, or does not answer in time."""

    status = 503


class Asked(msgspec.Struct, frozen=True):
    """What travels to the shard."""

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
    """Part of a log, or lines of it (see `LogRequest`). The Borglet's own complaint, such as a task it doesn't know, is
    in the chunk's `error`.

    Raises `Refused` for what can't be asked, `LogUnavailable` when nobody answers within `timeout_s`.
    """
    problems = {}
    if stream not in ("stdout", "stderr"):
        problems["stream"] = f"{stream[:40]!r}: one of stdout, stderr"
    if not 1 <= limit_bytes <= MAX_BYTES:
        problems["limit_bytes"] = f"{limit_bytes}: give 1 to {MAX_BYTES}"
    if problems:
        detail = "; ".join(f"{name}: {what}" for name, what in problems.items())
        raise Refused("invalid", detail, fields=problems)
    request = LogRequest(
        uuid.uuid4().hex, key, stream, offset, limit_bytes, search, ignore_case, since, limit_lines
    )
    try:
        holder = contact.holder_of(machine.cell_id, machine.id)
        asked = msgspec.json.encode(Asked(machine.id, request))
        if holder is None or not notices.client().publish(channel(holder), asked):
            raise LogUnavailable(
                "machine-not-connected",
                f"machine {machine.hostname} is connected to no link shard now; its logs can be read once it is back",
                fields={"machine": machine.hostname},
            )
        answer = _wait(request.request_id, timeout_s)
    except redis.RedisError as error:
        raise LogUnavailable(
            "redis-away", f"logs travel through Redis, which does not answer: {error}"
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


def answer_key(request_id: str) -> str:
    return f"borg:log:{request_id}"


async def answer(connection: redis.asyncio.Redis, chunk: LogChunk) -> None:
    """Raises `redis.RedisError`."""
    pipe = connection.pipeline(transaction=True)
    pipe.rpush(answer_key(chunk.request_id), msgspec.json.encode(chunk))
    pipe.expire(answer_key(chunk.request_id), _ANSWER_TTL_S)
    await pipe.execute()


def not_connected(request: LogRequest) -> LogChunk:
    """A shard's answer for a machine that has left it."""
    return LogChunk(request.request_id, 0, 0, "", error="the machine has just disconnected; try again")


def _wait(request_id: str, timeout_s: float) -> bytes | None:
    # A connection of its own: the shared ones give up sooner than this may take.
    pool = notices.client().connection_pool
    options = {**pool.connection_kwargs, "socket_timeout": timeout_s + 5.0}
    own = redis.ConnectionPool(connection_class=pool.connection_class, **options)
    try:
        found = redis.Redis(connection_pool=own).blpop([answer_key(request_id)], timeout=timeout_s)
    finally:
        own.disconnect()
    return found[1] if found is not None else None
