"""Wake-ups: the message "cell N reached revision R", sent through Redis after a commit.

A lost wake-up does no harm, because each reader also reads the journal every `POLL_S` seconds. If Redis is unreachable,
writers continue without wake-ups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import redis
import structlog
from django.conf import settings

from serving import redis_clients

log = structlog.get_logger(__name__)

POLL_S = 1.0
_CHANNEL = "borg:cell:%d"
_RETRY_S = 2.0
# What a writer waits for a Redis that stands still: a lost notice costs its readers `POLL_S` at most.
HURRY_S = 0.2

_client: redis.Redis | None = None
_sender: Sender | None = None


def client() -> redis.Redis:
    """Return a client of this process's connection pool to Redis."""
    global _client
    if _client is None:
        _client = redis_clients.client(
            settings.BORG_REDIS_URL, socket_timeout=2.0, socket_connect_timeout=0.5, retry=None
        )
    return _client


def publish(cell_id: int, revision: int) -> None:
    """Notify the readers of a cell that its journal has a new revision. Call this function after the commit."""
    send("notice", lambda redis: redis.publish(channel(cell_id), revision))


def send(what: str, command: Callable[[redis.Redis], object]) -> bool:
    """Call `command`, which sends a command to Redis. Return False if Redis does not answer; the command is then
    lost. `what`: the name of the command in log lines.
    """
    global _sender
    if _sender is None:
        _sender = Sender(settings.BORG_REDIS_URL)
    return _sender.send(what, command)


def answers() -> bool:
    """Return whether Redis answers immediately. Callers that must not wait for Redis use this check."""
    return send("ping", lambda redis: redis.ping())


class Sender:
    """Sends commands to Redis. If Redis does not answer a command within `HURRY_S` seconds, no command is sent for the
    next `_RETRY_S` seconds.
    """

    def __init__(self, url: str) -> None:
        self._redis = redis_clients.client(url, socket_timeout=HURRY_S, socket_connect_timeout=HURRY_S, retry=None)
        self._silent_until = 0.0

    def send(self, what: str, command: Callable[[redis.Redis], object]) -> bool:
        if time.monotonic() < self._silent_until:
            return False
        try:
            command(self._redis)
        except redis.RedisError as error:
            self._silent_until = time.monotonic() + _RETRY_S
            log.warning("a message was not sent to Redis", what=what, error=str(error))
            return False
        return True


def channel(cell_id: int) -> str:
    return _CHANNEL % cell_id


class Waiter:
    """Waits for wake-ups: messages that the journal of one of the given cells has a new revision. While Redis is
    unreachable, it only waits for a fixed time. `also`: further channels whose messages end the wait.
    """

    def __init__(self, cell_ids: Iterable[int], *, also: Iterable[str] = ()) -> None:
        self._channels = [*(channel(cell_id) for cell_id in cell_ids), *also]
        # One of its own: while Redis stands still, who waits for news must not wait for Redis.
        self._redis = redis_clients.client(
            settings.BORG_REDIS_URL, socket_timeout=HURRY_S, socket_connect_timeout=HURRY_S, retry=None
        )
        self._pubsub: redis.client.PubSub | None = None
        self._retry_at = 0.0

    @property
    def hears(self) -> bool:
        """Return whether this waiter is connected to Redis and so receives wake-ups (messages about new revisions).
        Otherwise, `wait` only sleeps.
        """
        return self._pubsub is not None

    def wait(self, timeout_s: float = POLL_S) -> bool:
        """Wait for a wake-up (the message that a cell has a new revision), at most `timeout_s` seconds. Return whether
        a wake-up arrived. If several have arrived, one call removes them all.
        """
        if not self._connected():
            time.sleep(min(timeout_s, POLL_S))
            return False
        assert self._pubsub is not None
        try:
            message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=timeout_s)
            woken = message is not None
            while message is not None:
                message = self._pubsub.get_message(ignore_subscribe_messages=True, timeout=0)
            return woken
        except redis.RedisError as error:
            log.warning(
                "lost the connection to Redis that announces new journal events; the process polls the journal now",
                error=str(error),
            )
            self.close()
            return False

    def close(self) -> None:
        try:
            if self._pubsub is not None:
                self._pubsub.close()
            self._redis.close()
        except redis.RedisError as error:
            log.info("cannot close the connection to Redis that announces new journal events", error=str(error))
        self._pubsub = None

    def _connected(self) -> bool:
        if self._pubsub is not None:
            return True
        if time.monotonic() < self._retry_at:
            return False
        pubsub = self._redis.pubsub()  # type: ignore[no-untyped-call]
        try:
            pubsub.subscribe(*self._channels)
            # The answers to SUBSCRIBE must not look like news.
            for _ in self._channels:
                if pubsub.get_message(timeout=HURRY_S) is None:
                    raise redis.TimeoutError(
                        f"Redis did not confirm SUBSCRIBE within {HURRY_S:g} s; the process tries again"
                    )
        except redis.RedisError:
            self._retry_at = time.monotonic() + _RETRY_S
            pubsub.close()
            return False
        self._pubsub = pubsub
        return True
