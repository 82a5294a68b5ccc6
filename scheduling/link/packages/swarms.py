"""Announcements between link shards: which machines have which packages. They are sent through Redis.

    borg:packages                    channel: `Have`, `PeerGone`, `Left`, as they happen
    borg:packages:<cell>:<digest>    hash: machine id -> `Peer`; read by a shard that has found no machine with the
                                     package

If messages are lost, machines can still use the package store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from redis.exceptions import RedisError

from scheduling.link.packages.tracker import MAX_HOLDERS, Peer
from scheduling.link.transport.redis_client import RedisClient

_CHANNEL = "borg:packages"
# A key expires when no machine has reported the package for this time.
_KEPT_S = 3600


class Have(msgspec.Struct, frozen=True, tag="have"):
    """The announcement that a machine has a package."""

    cell_id: int
    digest: str
    peer: Peer


class PeerGone(msgspec.Struct, frozen=True, tag="gone"):
    """The announcement that a machine no longer serves a package."""

    cell_id: int
    digest: str
    machine_id: int


class Left(msgspec.Struct, frozen=True, tag="left"):
    """The announcement to all shards that the connection of a machine has ended."""

    cell_id: int
    machine_id: int


Announcement = Have | PeerGone | Left
_decoder = msgspec.msgpack.Decoder(list[Announcement])
_peer = msgspec.msgpack.Decoder(Peer)


class SwarmExchange(RedisClient):
    """Sends announcements about packages to all shards through Redis. Calls `receive` with each announcement that any
    shard sends, including this one.
    """

    def __init__(self, url: str, receive: Callable[[Announcement], None]) -> None:
        super().__init__(url, use="share which machines have which packages")
        self._receive = receive
        self._waiting: list[Announcement] = []
        self._wake = asyncio.Event()

    def start(self) -> None:
        self._tasks.begin(self._announce_forever())
        self._tasks.begin(self._listen_forever(_CHANNEL))

    def announce(self, news: Announcement) -> None:
        """Queue an announcement. It is sent soon, in one message with the other announcements in the queue."""
        self._waiting.append(news)
        self._wake.set()

    async def holders(self, cell_id: int, digest: str) -> list[Peer]:
        """Return at most `MAX_HOLDERS` random machines that have the package. Return an empty list if Redis is
        unreachable.
        """
        found = await self._attempt(self._redis.hrandfield(_key(cell_id, digest), MAX_HOLDERS, withvalues=True))
        return [_peer.decode(value) for value in (found or [])[1::2]]

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

    async def _take(self, channel: str, data: bytes) -> None:
        for one in _decoder.decode(data):
            self._receive(one)


def _keep(pipe: Any, one: Announcement) -> None:
    if isinstance(one, Have) and one.peer.port:
        key = _key(one.cell_id, one.digest)
        pipe.hset(key, str(one.peer.machine_id), msgspec.msgpack.encode(one.peer))
        pipe.expire(key, _KEPT_S)
    elif isinstance(one, PeerGone):
        pipe.hdel(_key(one.cell_id, one.digest), str(one.machine_id))


def _key(cell_id: int, digest: str) -> str:
    return f"borg:packages:{cell_id}:{digest}"
