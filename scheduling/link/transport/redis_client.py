"""A connection to Redis, with its own asyncio tasks. Redis may be unreachable at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import msgspec
import redis.asyncio
import structlog
from redis.exceptions import RedisError

from scheduling.link.transport.owned_tasks import OwnedTasks
from serving import redis_clients

log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_SILENCE_S = 4.0


class RedisClient:
    """The base of classes that send to Redis and listen to its channels. `use`: a text for log lines that says what the
    connection is used for.
    """

    def __init__(self, url: str, *, use: str) -> None:
        self._redis: redis.asyncio.Redis = redis_clients.async_client(
            url, socket_timeout=5.0, socket_connect_timeout=1.0, retry=None
        )
        self._tasks = OwnedTasks()
        self._use = use
        self._away = False

    async def stop(self) -> None:
        await self._tasks.end()
        await self._redis.aclose()

    async def _listen_forever(self, *channels: str) -> None:
        """Call `_take` with each message that arrives on one of the channels. A channel may be a pattern such as
        `borg:*`.
        """
        while True:
            pubsub = self._redis.pubsub()
            try:
                await pubsub.psubscribe(*channels)
                self._subscribed()
                async for message in _messages(pubsub):
                    await self._read(message["channel"].decode(), message["data"])
            except (RedisError, OSError) as error:
                self._note(error)
            except Exception:
                log.exception("cannot handle a message from Redis; the connection is opened again", use=self._use)
            finally:
                await self._attempt(pubsub.aclose())  # type: ignore[no-untyped-call]
            await asyncio.sleep(_RETRY_S)

    async def _read(self, channel: str, data: bytes) -> None:
        try:
            await self._take(channel, data)
        except msgspec.MsgspecError as error:
            log.warning("cannot read a message from Redis; it is ignored", channel=channel, error=str(error))

    def _subscribed(self) -> None:
        """Do nothing. Subclasses may override this method, which is called when the client has subscribed to its
        channels.
        """

    async def _take(self, channel: str, data: bytes) -> None:
        """Handle the message `data`, which arrived on the Redis channel `channel`. Each subclass implements this
        method.
        """
        raise NotImplementedError

    async def _attempt(self, work: Awaitable[Any]) -> Any:
        """Return the result of `work` (a command to Redis), or None if Redis is unreachable."""
        try:
            return await work
        except (RedisError, OSError) as error:
            self._note(error)

    def _note(self, error: Exception | None) -> None:
        """Log when Redis becomes unreachable or reachable. `error`: the error of the last command, or None."""
        if error is not None and not self._away:
            log.warning("Redis is unreachable", use=self._use, error=str(error))
        elif error is None and self._away:
            log.info("Redis is back", use=self._use)
        self._away = error is not None


async def _messages(pubsub: redis.asyncio.client.PubSub) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of the channels. Raises `ConnectionError` if Redis does not answer for twice `_SILENCE_S`.

    Silence is followed by a ping. This also finds a connection that the kernel has given up (`ETIMEDOUT`): the library
    takes this error for the end of the timeout, and returns None at once, again and again.
    """
    pinged = False
    while True:
        message = await pubsub.get_message(timeout=_SILENCE_S)
        if message is not None:
            pinged = False
            if message["type"] == "pmessage":
                yield message
        elif pinged:
            raise ConnectionError(f"Redis did not answer a ping within {_SILENCE_S:g} s")
        else:
            await pubsub.ping()
            pinged = True
