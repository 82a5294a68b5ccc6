"""The time of each machine's last report, in Redis, not in rows (§3.3). All times are Redis' clock, in seconds.

    borg:contact:<cell>   sorted set: machine id by time of its last report
    borg:holder:<cell>    hash: machine id -> shard that holds its connection
    borg:shards:<cell>    sorted set: shard by time of its last heartbeat
    borg:overloaded:<cell>  sorted set: shard by time of the last heartbeat that said it was overloaded

A shard writes once a second, heartbeat and contacts in one transaction: a reader that sees a new
heartbeat also sees that shard's contacts. If Redis loses all of it, counting starts from scratch
(`scheduling.machines.silence`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import redis
import redis.asyncio
import structlog

from scheduling.journal import wakeups

log = structlog.get_logger(__name__)

# A shard is alive while its heartbeat is younger; it beats once a second.
SHARD_TTL_S = 5.0
# A machine heard of within this is alive: its hostname can't be taken by another.
LIVE_S = 12.0
_FORGET_SHARD_S = 3600.0


@dataclass(frozen=True, slots=True)
class Contacts:
    """`last`: machine id -> time. `shards`: how many are alive. `beats`: shard -> time of its last heartbeat.

    `overloaded`: the shards that accept machines more slowly than these dial, or whose event loop lags.
    """

    now: float
    last: Mapping[int, float]
    shards: int
    beats: Mapping[str, float] = field(default_factory=dict)
    overloaded: frozenset[str] = frozenset()


def contact_key(cell_id: int) -> str:
    return f"borg:contact:{cell_id}"


def holder_key(cell_id: int) -> str:
    return f"borg:holder:{cell_id}"


def overloaded_key(cell_id: int) -> str:
    return f"borg:overloaded:{cell_id}"


def shards_key(cell_id: int) -> str:
    return f"borg:shards:{cell_id}"


async def beat(
    connection: redis.asyncio.Redis,
    shard: str,
    cells: Iterable[int],
    ages: Mapping[int, Mapping[int, float]],
    held: Mapping[int, Iterable[int]],
    *,
    overloaded: bool = False,
) -> float:
    """Write one heartbeat. `ages`: cell -> machine -> seconds since its last report; `held`: cell -> machines whose
    connection this shard has taken over. Returns the time of the beat. Raises `redis.RedisError`."""
    seconds, micros = await connection.time()
    now = seconds + micros / 1e6
    pipe = connection.pipeline(transaction=True)
    for cell in cells:
        pipe.zadd(shards_key(cell), {shard: now})
        pipe.zremrangebyscore(shards_key(cell), "-inf", now - _FORGET_SHARD_S)
        if overloaded:
            pipe.zadd(overloaded_key(cell), {shard: now})
        pipe.zremrangebyscore(overloaded_key(cell), "-inf", now - SHARD_TTL_S)
        if fresh := ages.get(cell):
            pipe.zadd(contact_key(cell), {str(machine): now - age for machine, age in fresh.items()}, gt=True)
        if taken := list(held.get(cell, ())):
            if rescued := await _rescued(connection, cell, shard, taken, now):
                pipe.zadd(contact_key(cell), dict.fromkeys(rescued, now), gt=True)
            pipe.hset(holder_key(cell), mapping={str(machine): shard for machine in taken})
    await pipe.execute()
    return now


async def _rescued(
    connection: redis.asyncio.Redis, cell: int, shard: str, taken: Sequence[int], now: float
) -> list[str]:
    """Return the machines that were taken over from a dead shard. Their hello counts before their first report.
    Else those that were long without a shard would count as silent of the one they have found."""
    names = [str(machine) for machine in taken]
    former = await connection.hmget(holder_key(cell), names)
    beats = dict(await connection.zrange(shards_key(cell), 0, -1, withscores=True))  # type: ignore[arg-type]
    return [
        name
        for name, held in zip(names, former, strict=True)
        if held is not None and held.decode() != shard and now - beats.get(held, 0.0) > SHARD_TTL_S  # type: ignore[union-attr]
    ]


def read(cell_id: int) -> Contacts:
    """Raises `redis.RedisError`."""
    connection = wakeups.client()
    pipe = connection.pipeline(transaction=True)
    pipe.time()
    pipe.zrange(contact_key(cell_id), 0, -1, withscores=True)
    pipe.zrange(shards_key(cell_id), 0, -1, withscores=True)
    pipe.zrange(overloaded_key(cell_id), 0, -1, withscores=True)
    (seconds, micros), last, shards, overloaded = pipe.execute()
    now = seconds + micros / 1e6
    return Contacts(
        now=now,
        last={int(machine): score for machine, score in last},
        shards=sum(now - score <= SHARD_TTL_S for _, score in shards),
        beats={name.decode(): score for name, score in shards},
        overloaded=frozenset(name.decode() for name, score in overloaded if now - score <= SHARD_TTL_S),
    )


def holders(cell_id: int) -> dict[int, str]:
    """Machine id -> the shard that took its connection last. Raises `redis.RedisError`."""
    return {
        int(machine): name.decode()  # type: ignore[union-attr]
        for machine, name in wakeups.client().hgetall(holder_key(cell_id)).items()
    }


def holder_of(cell_id: int, machine_id: int) -> str | None:
    """The shard that took the machine's connection last. Raises `redis.RedisError`."""
    name = wakeups.client().hget(holder_key(cell_id), str(machine_id))
    return name.decode() if name is not None else None  # type: ignore[union-attr]


def forget(cell_id: int, machine_ids: Iterable[int]) -> None:
    names = [str(machine) for machine in machine_ids]
    try:
        wakeups.client().zrem(contact_key(cell_id), *names)
        wakeups.client().hdel(holder_key(cell_id), *names)
    except redis.RedisError as error:
        log.warning("contact not forgotten", machines=len(names), error=str(error))


def heard_within(cell_id: int, machine_ids: Iterable[int], *, seconds: float = LIVE_S) -> set[int]:
    """Return those of the machines that reported in the last `seconds`; none while Redis is away."""
    ids = list(machine_ids)
    if not ids:
        return set()
    try:
        contacts = read(cell_id)
    except redis.RedisError as error:
        log.warning("contact unknown", error=str(error))
        return set()
    return {machine for machine in ids if contacts.now - contacts.last.get(machine, 0.0) < seconds}


def silent_machines(contacts: Contacts, since: Mapping[int, float], *, after_s: float) -> list[int]:
    """Return the machines that have not reported for more than `after_s`. `since`: machine -> when counting began for
    it. Pure.
    """
    return sorted(
        machine
        for machine, began in since.items()
        if contacts.now - max(began, contacts.last.get(machine, 0.0)) > after_s
    )
