"""Token buckets that several processes share through Redis.

    request ─► take a token of the own bucket (no waiting) ─► answer
                     every 0.1 s: tokens taken since then ─► Redis ─► the state of the bucket over all processes

A request never waits for Redis. Between two exchanges, a process does not count the requests that others accept, so
together they may accept a few more than the limit: the number that they can answer within 0.1 s. While Redis does not
answer, each process applies the limit alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import redis
import structlog

from serving import redis_clients
from serving.buckets import WINDOW_S, Bucket, Rate

log = structlog.get_logger(__name__)

_EXCHANGE_S = 0.1
_REDIS_WITHIN_S = 1.0
# After an error of Redis, the buckets are not exchanged for this time.
_PAUSE_S = 2.0
# The largest number of buckets that a command of Redis exchanges, so that other clients of Redis do not wait long.
_AT_ONCE = 500
# A process remembers the buckets of at least the last 50,000 callers. A forgotten bucket is full.
_MOST = 50_000

# Processes may have taken more tokens than there are, and then no token may be taken for some time. This time has a
# limit, because the clock of Redis may have been set back.
_LONGEST_S = 2 * WINDOW_S
# The value of a key is the time when its bucket is full, on the clock of Redis.
_EXCHANGE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local longest = tonumber(ARGV[#ARGV])
local missing = {}
for i, key in ipairs(KEYS) do
  local taken = tonumber(ARGV[i])
  local full_at = math.min(math.max(tonumber(redis.call('GET', key) or 0), now) + taken, now + longest)
  if taken > 0 then
    redis.call('SET', key, string.format('%.6f', full_at), 'PX', math.ceil((full_at - now) * 1000) + 1)
  end
  missing[i] = string.format('%.6f', full_at - now)
end
return missing
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a request for tokens. `rejected_by`: the bucket without a token, or None if the request may run.
    `wait_s`: the seconds until that bucket has a token. `buckets`: all buckets of the request. `now`: the time of the
    request.
    """

    buckets: Sequence[Bucket]
    now: float
    rejected_by: Bucket | None = None
    wait_s: float = 0.0


class SharedBuckets:
    """The token buckets of a process. Its methods may be called only in one event loop.

    `url`: the URL of Redis. `clock`: returns the time in seconds, and never goes back.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._clock = url, clock
        self._redis: redis.asyncio.Redis | None = None
        self._young: dict[str, Bucket] = {}
        self._old: dict[str, Bucket] = {}
        self._used: dict[str, Bucket] = {}  # since the last exchange
        self._exchange: asyncio.Task[None] | None = None
        self._paused_until = 0.0

    def take(self, callers: Iterable[tuple[Rate, str]]) -> Taken:
        """Take one token of each caller's bucket, or no token if one of the buckets is empty. `callers`: rates and
        names of callers.
        """
        now = self._clock()
        buckets = [self._bucket(rate, f"borg:rate:{rate.name}:{name}", now) for rate, name in callers]
        if buckets and self._exchange is None:
            self._exchange = asyncio.get_running_loop().create_task(self._exchange_later())
        waits = [(bucket.wait_s(now), bucket) for bucket in buckets]
        wait_s, slowest = max(waits, key=lambda pair: pair[0], default=(0.0, None))
        if wait_s:
            return Taken(buckets, now, slowest, wait_s)
        for bucket in buckets:
            bucket.take(now)
        return Taken(buckets, now)

    async def close(self) -> None:
        """Stop the exchange, and close the connection to Redis."""
        if self._exchange is not None:
            self._exchange.cancel()
            await asyncio.gather(self._exchange, return_exceptions=True)
        if self._redis is not None:
            await self._redis.aclose()

    def _bucket(self, rate: Rate, key: str, now: float) -> Bucket:
        """Return the bucket with this key. Callers that send no requests for long are forgotten, without a search."""
        found = self._young.get(key)
        if found is None:
            if len(self._young) >= _MOST:
                self._young, self._old = {}, self._young
            found = self._young[key] = self._old.pop(key) if key in self._old else Bucket(rate, now)
        self._used[key] = found
        return found

    async def _exchange_later(self) -> None:
        """Exchange the used buckets with Redis every 0.1 s until no bucket is used."""
        try:
            while self._used:
                await asyncio.sleep(_EXCHANGE_S)
                await self._share_all()
        finally:
            self._exchange = None

    async def _share_all(self) -> None:
        """Exchange all used buckets. During a pause, forget what was taken from them."""
        used = list(self._used.items())
        self._used = {}
        taken_s = [bucket.unshared_s for _, bucket in used]
        for _, bucket in used:
            bucket.unshared_s = 0.0
        if self._clock() < self._paused_until:
            return
        try:
            for first in range(0, len(used), _AT_ONCE):
                part = slice(first, first + _AT_ONCE)
                await self._share(used[part], taken_s[part])
        except (redis.RedisError, OSError) as error:
            self._paused_until = self._clock() + _PAUSE_S
            log.warning("rates are limited per process, because Redis does not answer", error=str(error))

    async def _share(self, used: Sequence[tuple[str, Bucket]], taken_s: Sequence[float]) -> None:
        """Add the tokens that this process has taken to the shared buckets, and read their state."""
        arguments = [*(key for key, _ in used), *map(repr, taken_s), str(_LONGEST_S)]
        command: Any = self._client().eval(_EXCHANGE, len(used), *arguments)
        missing = await command
        now = self._clock()
        for (_, bucket), missing_s in zip(used, missing, strict=True):
            bucket.full_at = now + float(missing_s) + bucket.unshared_s

    def _client(self) -> redis.asyncio.Redis:
        if self._redis is None:
            limits = {"socket_timeout": _REDIS_WITHIN_S, "socket_connect_timeout": _REDIS_WITHIN_S}
            self._redis = redis_clients.async_client(self._url, **limits, retry=None)
        return self._redis
