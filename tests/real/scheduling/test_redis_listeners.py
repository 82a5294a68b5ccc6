"""Tests of the class that listens to channels of Redis, with a real server that stops answering."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio

from portal.up import engines
from scheduling.link.transport import redis_client
from tests.ports import free_port

SILENCE_S = 0.3


class Listener(redis_client.RedisClient):
    """Keeps what arrives on the channel `news`. `attempts`: how often it has subscribed."""

    def __init__(self, url: str) -> None:
        super().__init__(url, use="a test")
        self.arrived = asyncio.Queue[bytes]()
        self.attempts = 0

    def start(self) -> None:
        self._tasks.begin(self._listen_forever("news"))

    def _subscribed(self) -> None:
        self.attempts += 1
        self._note(None)

    async def _take(self, channel: str, data: bytes) -> None:
        self.arrived.put_nowait(data)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a Redis server of this test's own. Yield its URL and its process."""
    port = free_port()
    command = [
        str(engines.redis_server()),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    with (tmp_path / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"redis://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


async def publish(url: str, data: bytes) -> None:
    """Publish `data` until a listener receives it."""
    client = redis.asyncio.Redis.from_url(url)
    async with asyncio.timeout(10.0), client:
        while True:
            try:
                if await client.publish("news", data):
                    return
            except redis.ConnectionError:
                pass  # the server starts
            await asyncio.sleep(0.02)


async def run(url: str, disturb: Callable[[Listener], Awaitable[None]]) -> int:
    """Listen, disturb the connection, and receive a message afterwards. Return how often the listener subscribed."""
    listener = Listener(url)
    listener.start()
    try:
        for data in (b"before", b"after"):
            await publish(url, data)
            assert await asyncio.wait_for(listener.arrived.get(), 5.0) == data
            if data == b"before":
                await disturb(listener)
    finally:
        await listener.stop()
    return listener.attempts


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "_SILENCE_S", SILENCE_S)
    monkeypatch.setattr(redis_client, "_RETRY_S", 0.05)


def test_a_server_that_is_only_quiet_keeps_its_listeners(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    async def wait(_: Listener) -> None:
        await asyncio.sleep(5 * SILENCE_S)

    assert asyncio.run(run(server[0], wait)) == 1


def test_a_server_that_stands_still_loses_its_listeners(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    url, process = server

    async def pause(_: Listener) -> None:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4 * SILENCE_S)
        process.send_signal(signal.SIGCONT)

    assert asyncio.run(run(url, pause)) > 1


def test_a_connection_that_the_kernel_gave_up_is_opened_again(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    """The library takes ETIMEDOUT for the end of its timeout, so a link shard read without end and used all memory."""

    async def give_up(listener: Listener) -> None:
        (connection,) = listener._redis.connection_pool._in_use_connections
        assert connection._reader is not None
        connection._reader.set_exception(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        async with asyncio.timeout(5.0):
            while listener.attempts == 1:
                await asyncio.sleep(0.01)

    assert asyncio.run(run(server[0], give_up)) > 1
