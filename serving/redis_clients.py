"""Clients of Redis for the URL in BORG_REDIS_URL (`serving.redis_url`)."""

from __future__ import annotations

import time
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.asyncio.sentinel import SentinelConnectionPool as AsyncSentinelPool
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

from serving import redis_url
from serving.redis_url import read_sentinel_url

SILENT_S = 5.0


def _no_master(service_name: str) -> MasterNotFoundError:
    return MasterNotFoundError(
        f"no Redis Sentinel knows a master named {service_name!r}; check the name in BORG_REDIS_URL, and the Sentinels"
    )


class _Sentinel(Sentinel):
    """Asks a sentinel that did not answer only after `SILENT_S` again, as long as another one answers. Otherwise, a
    sentinel that is cut off would delay each attempt by the time limit of a connection, while the others elect a new
    master.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._silent: dict[Any, float] = {}  # when it did not answer, by the monotonic clock

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the master. Raises `MasterNotFoundError` if no sentinel knows one."""
        answered = False
        for sentinel in sorted(self.sentinels, key=self._silent.__contains__):
            if answered and self._silent.get(sentinel, -SILENT_S) + SILENT_S > time.monotonic():
                continue
            try:
                masters: Any = sentinel.sentinel_masters()
            except (redis.ConnectionError, redis.TimeoutError):
                self._silent[sentinel] = time.monotonic()
                continue
            answered, state = True, masters.get(service_name)
            self._silent.pop(sentinel, None)
            if state and self.check_master_state(state, service_name):  # type: ignore[no-untyped-call]
                return state["ip"], state["port"]
        raise _no_master(service_name)


class _AsyncSentinel(AsyncSentinel):
    """The same for asyncio."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._silent: dict[Any, float] = {}

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return the address of the master. Raises `MasterNotFoundError` if no sentinel knows one."""
        answered = False
        for sentinel in sorted(self.sentinels, key=self._silent.__contains__):
            if answered and self._silent.get(sentinel, -SILENT_S) + SILENT_S > time.monotonic():
                continue
            try:
                masters: Any = await sentinel.sentinel_masters()
            except (redis.ConnectionError, redis.TimeoutError):
                self._silent[sentinel] = time.monotonic()
                continue
            answered, state = True, masters.get(service_name)
            self._silent.pop(sentinel, None)
            if state and self.check_master_state(state, service_name):
                return state["ip"], state["port"]
        raise _no_master(service_name)


class _Pool(SentinelConnectionPool):
    """A pool that closes the connections to the sentinels together with those to the server."""

    def disconnect(self, *arguments: Any, **options: Any) -> None:
        super().disconnect(*arguments, **options)
        for sentinel in self.sentinel_manager.sentinels:
            sentinel.close()


class _AsyncPool(AsyncSentinelPool):
    """The same for asyncio."""

    async def disconnect(self, *arguments: Any, **options: Any) -> None:
        await super().disconnect(*arguments, **options)
        for sentinel in self.sentinel_manager.sentinels:
            await sentinel.aclose()


def client(url: str, **options: Any) -> redis.Redis:
    """Return a client for the URL. `options`: keyword arguments of `redis.Redis`, such as time limits in seconds. An
    attempt to connect ends after `redis_url.CONNECT_S`, unless `socket_connect_timeout` is given.
    """
    options = {"socket_connect_timeout": redis_url.CONNECT_S} | options
    found = read_sentinel_url(url)
    if found is None:
        return redis.Redis.from_url(url, **options)
    sentinel = _Sentinel(found.hosts, sentinel_kwargs=_for_sentinels(found.options | options))
    options |= {"db": found.database, "connection_pool_class": _Pool}
    made: redis.Redis = sentinel.master_for(found.name, **found.options, **options)  # type: ignore[no-untyped-call]
    return made


def async_client(url: str, **options: Any) -> redis.asyncio.Redis:
    """Return an asyncio client for the URL, with the same limit. `options`: keyword arguments of
    `redis.asyncio.Redis`.
    """
    options = {"socket_connect_timeout": redis_url.CONNECT_S} | options
    found = read_sentinel_url(url)
    if found is None:
        return redis.asyncio.Redis.from_url(url, **options)
    sentinel = _AsyncSentinel(found.hosts, sentinel_kwargs=_for_sentinels(found.options | options))
    options |= {"db": found.database, "connection_pool_class": _AsyncPool}
    made: redis.asyncio.Redis = sentinel.master_for(found.name, **found.options, **options)
    return made


def _for_sentinels(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the connections to the sentinels. They answer at once, so a client that waits long for its
    server, such as one that blocks in XREAD, does not wait as long for a sentinel.
    """
    limit_s = redis_url.CONNECT_S
    return options | {"socket_timeout": min(options.get("socket_timeout") or limit_s, limit_s)}
