"""Tests of how fast a link shard accepts machines, and of its deadlines while its event loop is blocked."""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path

import pytest

from scheduling.link.transport.accepting import Acceptor, LoopProgress, listening
from tests.real.borglet.cell import make_authority

BOUND_S = 25.0


class Noted(asyncio.Protocol):
    """A protocol that counts the connections whose handshake has ended."""

    opened = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Noted.opened += 1


async def until(holds) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():
            await asyncio.sleep(0.01)


def test_handshakes_beyond_the_bound_wait_for_a_free_slot(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)

    async def whole() -> None:
        progress = LoopProgress()
        progress.start()
        (listener,) = listening("127.0.0.1", 0, shared=False)
        address = listener.getsockname()
        Noted.opened = 0
        acceptor = Acceptor([listener], Noted, context=authority.server_context(), progress=progress, at_once=2)
        acceptor.start()
        # Two clients begin a handshake and go no further: they hold both slots.
        stalled = [await asyncio.open_connection(*address) for _ in range(2)]
        for _, writer in stalled:
            writer.write(b"\x16")
        await until(lambda: progress.overloaded)
        trusting = ssl.create_default_context(cadata=authority.pem)
        third = asyncio.create_task(asyncio.open_connection(*address, ssl=trusting))
        await asyncio.sleep(0.3)
        assert not third.done()
        assert Noted.opened == 0
        for _, writer in stalled:
            writer.close()
        _, writer = await asyncio.wait_for(third, BOUND_S)
        await until(lambda: Noted.opened == 1)
        writer.close()
        acceptor.close()
        await acceptor.wait_closed()
        await progress.stop()

    asyncio.run(whole())


def test_a_client_that_sends_nothing_takes_no_slot(tmp_path: Path) -> None:
    authority = make_authority(tmp_path)

    async def whole() -> None:
        progress = LoopProgress()
        (listener,) = listening("127.0.0.1", 0, shared=False)
        address = listener.getsockname()
        Noted.opened = 0
        acceptor = Acceptor([listener], Noted, context=authority.server_context(), progress=progress, at_once=1)
        acceptor.start()
        silent = [await asyncio.open_connection(*address) for _ in range(3)]
        trusting = ssl.create_default_context(cadata=authority.pem)
        _, writer = await asyncio.wait_for(asyncio.open_connection(*address, ssl=trusting), BOUND_S)
        for _, one in [*silent, (None, writer)]:
            one.close()
        acceptor.close()
        await acceptor.wait_closed()

    asyncio.run(whole())


def test_a_loop_that_stands_still_makes_no_progress_and_is_overloaded() -> None:
    async def whole() -> None:
        progress = LoopProgress()
        progress.start()
        await asyncio.sleep(0.3)
        assert not progress.overloaded
        before_s = progress.seconds
        time.sleep(1.5)
        await until(lambda: progress.lag_s > 1.0)
        assert progress.seconds - before_s < 0.75
        assert progress.overloaded
        await progress.stop()

    asyncio.run(whole())


def test_a_message_that_waited_while_the_loop_stood_still_is_in_time() -> None:
    async def whole() -> None:
        progress = LoopProgress()
        progress.start()
        await asyncio.sleep(0.3)
        sent = asyncio.Event()

        async def message() -> str:
            await sent.wait()
            return "hello"

        waiting = asyncio.create_task(progress.within(1.0, message))
        await asyncio.sleep(0)
        time.sleep(3.0)
        asyncio.get_running_loop().call_later(0.2, sent.set)
        assert await waiting == "hello"
        with pytest.raises(TimeoutError):
            await progress.within(0.5, asyncio.Event().wait)
        await progress.stop()

    asyncio.run(whole())
