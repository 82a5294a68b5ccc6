"""The time of each machine's last report, in Redis and not in the database (§3.3). All times are seconds by Redis'
clock.

    borg:contact:<cell>     sorted set: machine id by time of its last report
    borg:holder:<cell>      hash: machine id -> shard that holds its connection
    borg:shards:<cell>      sorted set: shard by time of its last heartbeat
    borg:overloaded:<cell>  sorted set: overloaded shard by time of its last heartbeat

Once per second, a shard writes its heartbeat and the report times of its machines in one transaction. So a reader that
sees a new heartbeat also sees the report times. If Redis loses these keys, `scheduling.machines.silent_machines` starts
from scratch to wait for reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import redis
import redis.asyncio
import structlog

from scheduling.journal import wakeups

log = structlog.get_logger(__name__)

# A shard is alive while its last heartbeat is younger than this. It sends one per second.
SHARD_TTL_S = 5.0
# A machine that reported within this time is alive, and no other machine may join with its hostname.
LIVE_S = 12.0
_FORGET_SHARD_S = 3600.0


@dataclass(frozen=True, slots=True)
class Contacts:
    """The last reports of a cell's machines, read at the time `now`. `last`: machine id -> time of its last report.
    `shards`: the number of live shards.

    `beats`: shard -> time of its last heartbeat. `overloaded`: the shards that report that they are overloaded.
    """

    now: float
    last: Mapping[int, float]
    shards: int
    beats: Mapping[str, float] = field(default_factory=dict)
    overloaded: frozenset[str] = frozenset()


def key(kind: str, cell_id: int) -> str:
    """Return the Redis key of one kind of data of a cell. `kind`: contact, holder, shards or overloaded."""
    return f"borg:{kind}:{cell_id}"


async def beat(
    connection: redis.asyncio.Redis,
    shard: str,
    cells: Iterable[int],
    ages: Mapping[int, Mapping[int, float]],
    held: Mapping[int, Iterable[int]],
    *,
    overloaded: bool = False,
) -> float:
    """Write a heartbeat of the shard, and return the time of the heartbeat. Raises `redis.RedisError` if Redis cannot
    be reached.

    `ages`: cell id -> machine id -> seconds since the machine's last report. `held`: cell id -> machines that have
    connected to this shard since its last heartbeat.
    """
    seconds, micros = await connection.time()
    now = seconds + micros / 1e6
    pipe = connection.pipeline(transaction=True)
    for cell in cells:
        pipe.zadd(key("shards", cell), {shard: now})
        pipe.zremrangebyscore(key("shards", cell), "-inf", now - _FORGET_SHARD_S)
        if overloaded:
            pipe.zadd(key("overloaded", cell), {shard: now})
        pipe.zremrangebyscore(key("overloaded", cell), "-inf", now - SHARD_TTL_S)
        if fresh := ages.get(cell):
            pipe.zadd(key("contact", cell), {str(machine): now - age for machine, age in fresh.items()}, gt=True)
        if taken := list(held.get(cell, ())):
            if rescued := await _rescued(connection, cell, shard, taken, now):
                pipe.zadd(key("contact", cell), dict.fromkeys(rescued, now), gt=True)
            pipe.hset(key("holder", cell), mapping={str(machine): shard for machine in taken})
    await pipe.execute()
    return now


async def _rescued(
    connection: redis.asyncio.Redis, cell: int, shard: str, taken: Sequence[int], now: float
) -> list[str]:
    """Return those of the machines in `taken` whose former shard is dead. `taken`: the machines that have just
    connected to this shard.

    The caller stores the present time as the last report of each returned machine. Otherwise a machine that had no
    shard for a long time would be marked down before it can report to the new shard.
    """
    names = [str(machine) for machine in taken]
    former = await connection.hmget(key("holder", cell), names)
    beats = dict(await connection.zrange(key("shards", cell), 0, -1, withscores=True))  # type: ignore[arg-type]
    return [
        name
        for name, held in zip(names, former, strict=True)
        if held is not None and held.decode() != shard and now - beats.get(held, 0.0) > SHARD_TTL_S  # type: ignore[union-attr]
    ]


def read(cell_id: int) -> Contacts:
    """Return when each machine and each shard of a cell last reported. Raises `redis.RedisError` if Redis cannot be
    reached.
    """
    connection = wakeups.client()
    pipe = connection.pipeline(transaction=True)
    pipe.time()
    pipe.zrange(key("contact", cell_id), 0, -1, withscores=True)
    pipe.zrange(key("shards", cell_id), 0, -1, withscores=True)
    pipe.zrange(key("overloaded", cell_id), 0, -1, withscores=True)
    (seconds, micros), last, shards, overloaded = pipe.execute()
    now = seconds + micros / 1e6
    return Contacts(
        now=now,
        last={int(machine): score for machine, score in last},
        shards=sum(now - score <= SHARD_TTL_S for _, score in shards),
        beats={name.decode(): score for name, score in shards},
        overloaded=frozenset(name.decode() for name, score in overloaded if now - score <= SHARD_TTL_S),
    )


@dataclass(frozen=True, slots=True)
class Connections:
    """How many machines of a cell reported in the last `LIVE_S` seconds, and how many live shards serve the cell."""

    machines: int
    shards: int


def connections_of(cell_ids: Iterable[int]) -> dict[int, Connections]:
    """Return the connections of each cell, by cell id. Sends two requests to Redis, which counts the machines. Raises
    `redis.RedisError` if Redis cannot be reached.
    """
    ids = list(cell_ids)
    if not ids:
        return {}
    connection = wakeups.client()
    seconds, micros = connection.time()
    now = seconds + micros / 1e6
    pipe = connection.pipeline(transaction=False)
    for cell_id in ids:
        pipe.zcount(key("contact", cell_id), now - LIVE_S, "+inf")
        pipe.zcount(key("shards", cell_id), now - SHARD_TTL_S, "+inf")
    numbers = pipe.execute()
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return {cell_id: Connections(*pair) for cell_id, pair in zip(ids, pairs, strict=True)}


def holders(cell_id: int) -> dict[int, str]:
    """Return by machine id the name of the shard to which the machine connected last. Raises `redis.RedisError` if
    Redis cannot be reached.
    """
    return {
        int(machine): name.decode()  # type: ignore[union-attr]
        for machine, name in wakeups.client().hgetall(key("holder", cell_id)).items()
    }


def holder_of(cell_id: int, machine_id: int) -> str | None:
    """Return the name of the shard to which the machine connected last, or None if it is not known. Raises
    `redis.RedisError` if Redis cannot be reached.
    """
    name = wakeups.client().hget(key("holder", cell_id), str(machine_id))
    return name.decode() if name is not None else None  # type: ignore[union-attr]


def forget(cell_id: int, machine_ids: Iterable[int]) -> None:
    """Delete what Redis stores about these machines: the time of the last report, and the shard. Do nothing if Redis
    cannot be reached.
    """
    names = [str(machine) for machine in machine_ids]
    try:
        wakeups.client().zrem(key("contact", cell_id), *names)
        wakeups.client().hdel(key("holder", cell_id), *names)
    except redis.RedisError as error:
        log.warning("cannot delete the times at which machines last reported", machines=len(names), error=str(error))


def forget_cell(cell_id: int) -> None:
    """Delete what Redis stores about the machines and the shards of a cell. Do nothing if Redis cannot be reached."""
    try:
        wakeups.client().delete(*(key(kind, cell_id) for kind in ("contact", "holder", "shards", "overloaded")))
    except redis.RedisError as error:
        log.warning(
            "cannot delete the times at which machines of a deleted cell last reported",
            cell_id=cell_id,
            error=str(error),
        )


def heard_within(cell_id: int, machine_ids: Iterable[int], *, seconds: float = LIVE_S) -> set[int]:
    """Return the ids of those machines that reported in the last `seconds` seconds. Return an empty set if Redis
    cannot be reached.
    """
    ids = list(machine_ids)
    if not ids:
        return set()
    try:
        contacts = read(cell_id)
    except redis.RedisError as error:
        log.warning("cannot read when machines last reported", error=str(error))
        return set()
    return {machine for machine in ids if contacts.now - contacts.last.get(machine, 0.0) < seconds}


def silent_machines(contacts: Contacts, since: Mapping[int, float], *, after_s: float) -> list[int]:
    """Return the ids of the machines that have not reported for more than `after_s` seconds. `since`: machine id ->
    the time when this process began to watch the machine. Times before this do not count.
    """
    return sorted(
        machine
        for machine, began in since.items()
        if contacts.now - max(began, contacts.last.get(machine, 0.0)) > after_s
    )
