"""Machines that have packages, announced between shards through Redis. Messages may be lost: the store has all
packages.

borg:packages                    channel: `Have`, `PeerGone`, `Left`, as they happen
borg:packages:<cell>:<digest>    hash: machine id -> `Peer`; for a shard without data about the package
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from scheduling.link.packages.tracker import MAX_HOLDERS, Peer
from scheduling.link.transport.owned_tasks import OwnedTasks

log = structlog.get_logger(__name__)

_CHANNEL = "borg:packages"
_RETRY_S = 1.0
# Keys expire when no machine has reported the package for this time.
_KEPT_S = 3600


class Have(msgspec.Struct, frozen=True, tag="have"):
    cell_id: int
    digest: str
    peer: Peer


class PeerGone(msgspec.Struct, frozen=True, tag="gone"):
    cell_id: int
    digest: str
    machine_id: int


class Left(msgspec.Struct, frozen=True, tag="left"):
    cell_id: int
    machine_id: int


Told = Have | PeerGone | Left
_decoder = msgspec.msgpack.Decoder(list[Told])
_peer = msgspec.msgpack.Decoder(Peer)


class SwarmExchange:
    """The exchange between shards. The event loop calls `hear` with announcements of all shards, including this one."""

    def __init__(self, url: str, hear: Callable[[Told], None]) -> None:
        self._redis: redis.asyncio.Redis = redis.asyncio.Redis.from_url(
            url, socket_timeout=5.0, socket_connect_timeout=1.0, retry=None
        )
        self._hear = hear
        self._waiting: list[Told] = []
        self._wake = asyncio.Event()
        self._errands = OwnedTasks()
        self._away = False

    def start(self) -> None:
        self._errands.begin(self._announce_forever())
        self._errands.begin(self._listen_forever())

    async def stop(self) -> None:
        await self._errands.end()
        await self._redis.aclose()

    def announce(self, news: Told) -> None:
        """Send `news` soon, together with other announcements of this turn of the loop."""
        self._waiting.append(news)
        self._wake.set()

    async def holders(self, cell_id: int, digest: str) -> list[Peer]:
        """Return some machines that have the package, none while Redis is away."""
        try:
            found = await self._redis.hrandfield(_key(cell_id, digest), MAX_HOLDERS, withvalues=True)
        except (RedisError, OSError) as error:
            self._note(error)
            return []
        return [_peer.decode(value) for value in (found or [])[1::2]]  # type: ignore[arg-type]

    async def _announce_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            news, self._waiting = self._waiting, []
            try:
                pipe = self._redis.pipeline(transaction=False)
                for one in news:
                    _keep(pipe, one)
                pipe.publish(_CHANNEL, msgspec.msgpack.encode(news))
                await pipe.execute()
                self._note(None)
            except (RedisError, OSError) as error:
                self._note(error)  # the announcement is lost; machines repeat it when they reconnect

    async def _listen_forever(self) -> None:
        while True:
            pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(_CHANNEL)
                while True:
                    # A read without a timeout would not detect that Redis is unreachable.
                    message = await pubsub.get_message(timeout=4.0)
                    if message is not None:
                        for one in _decoder.decode(message["data"]):
                            self._hear(one)
            except (RedisError, OSError) as error:
                self._note(error)
            except msgspec.MsgspecError as error:
                log.warning("cannot read a Redis message about packages", error=str(error))
            finally:
                await self._close(pubsub)
            await asyncio.sleep(_RETRY_S)

    async def _close(self, pubsub: Any) -> None:
        try:
            await pubsub.aclose()
        except (RedisError, OSError) as error:
            self._note(error)

    def _note(self, error: Exception | None) -> None:
        if error is not None and not self._away:
            log.warning(
                "Redis is unreachable: shards cannot share which machines have which packages", error=str(error)
            )
        self._away = error is not None


def _keep(pipe: Any, one: Told) -> None:
    if isinstance(one, Have) and one.peer.port:
        key = _key(one.cell_id, one.digest)
        pipe.hset(key, str(one.peer.machine_id), msgspec.msgpack.encode(one.peer))
        pipe.expire(key, _KEPT_S)
    elif isinstance(one, PeerGone):
        pipe.hdel(_key(one.cell_id, one.digest), str(one.machine_id))


def _key(cell_id: int, digest: str) -> str:
    return f"borg:packages:{cell_id}:{digest}"
