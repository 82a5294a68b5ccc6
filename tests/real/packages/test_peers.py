"""Tests of serving packages to other machines: which requests are served, and how many at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from borglet.messages import PackageTicket
from borglet.packages.peers import PeerServer, PeerSettings
from borglet.packages.tickets import issue
from tests.real.borglet.cell import BOUND_S

KEY = ec.generate_private_key(ec.SECP256R1())
DIGEST = "sha256:" + "a" * 64
NOW = 1000.0


@dataclass
class Served:
    server: PeerServer
    port: int

    async def ask(self, head: str) -> tuple[int, bytes]:
        """Send a raw request and return the status and body of the answer; (0, empty) if the connection was closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(head.encode())
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        writer.close()
        if not answer:
            return 0, b""
        first, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}" in first.decode().lower()
        return int(first.split()[1]), body

    async def get(self, digest: str = DIGEST, ticket: str | None = None, more: str = "") -> tuple[int, bytes]:
        shown = ticket if ticket is not None else issue(KEY, PackageTicket(digest, "m2", NOW + 60))
        return await self.ask(
            f"GET /packages/{digest} HTTP/1.1\r\nHost: x\r\nAuthorization: Borg-Ticket {shown}\r\n{more}\r\n"
        )


@asynccontextmanager
async def serving(archives: dict[str, Path], **settings: object) -> AsyncIterator[Served]:
    server = PeerServer(
        archives.get,
        lambda: [KEY.public_key()],
        now=lambda: NOW,
        settings=PeerSettings(**settings),  # type: ignore[arg-type]
    )
    port = await server.open("127.0.0.1", 0)
    try:
        yield Served(server, port)
    finally:
        await server.close()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / "archive").write_bytes(os.urandom(3_000_000))
    return tmp_path / "archive"


def test_whole_archives_and_their_ends_are_served_to_a_peer_that_has_a_ticket(stored: Path) -> None:
    async def story() -> None:
        async with serving({DIGEST: stored}) as peer:
            assert await peer.get() == (200, stored.read_bytes())
            assert await peer.get(more="Range: bytes=1000000-\r\n") == (206, stored.read_bytes()[1_000_000:])
            assert (await peer.get(more="Range: bytes=3000000-\r\n"))[0] == 416
            assert peer.server.served == 2

    asyncio.run(story())


def test_others_get_nothing(stored: Path) -> None:
    async def story() -> None:
        async with serving({DIGEST: stored}, header_timeout_s=0.2) as peer:
            late = issue(KEY, PackageTicket(DIGEST, "m2", NOW - 1))
            other = issue(ec.generate_private_key(ec.SECP256R1()), PackageTicket(DIGEST, "m2", NOW + 60))
            elsewhere = issue(KEY, PackageTicket("sha256:" + "b" * 64, "m2", NOW + 60))
            for ticket in ("", "x.y", late, other, elsewhere):
                assert (await peer.get(ticket=ticket))[0] == 401, ticket
            assert await peer.ask(f"GET /packages/{DIGEST} HTTP/1.1\r\n\r\n") == (
                401,
                b"the request has no ticket; send the header Authorization: Borg-Ticket <ticket>\n",
            )
            assert (await peer.get("sha256:" + "c" * 64))[0] == 404
            for bad in ("GET /packages/../../etc/passwd HTTP/1.1", "POST / HTTP/1.1", "nonsense", ""):
                assert (await peer.ask(f"{bad}\r\n\r\n"))[0] == 400, bad
            assert (await peer.ask("GET / HTTP/1.1\r\n" + "X: y\r\n" * 5000))[0] in (0, 431)
            assert (await peer.ask("GET /packages"))[0] == 0
            assert peer.server.served == 0

    asyncio.run(story())


def test_only_so_many_are_served_at_once_and_who_takes_nothing_loses_its_turn(tmp_path: Path) -> None:
    big = tmp_path / "archive"
    with big.open("wb") as file:
        file.truncate(200_000_000)  # more than socket buffers hold

    async def story() -> None:
        limits = {"uploads": 2, "grace_s": 0.3, "least_bytes_s": 10**12}
        async with serving({DIGEST: big}, **limits) as peer:
            ticket = issue(KEY, PackageTicket(DIGEST, "m2", NOW + 60))
            head = f"GET /packages/{DIGEST} HTTP/1.1\r\nAuthorization: Borg-Ticket {ticket}\r\n\r\n"
            idle = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", peer.port, limit=1024)
                writer.write(head.encode())
                await reader.readexactly(12)
                idle.append(writer)
            assert await peer.get() == (503, b"this machine serves 2 downloads, which is the limit; try again later\n")
            big.write_bytes(b"small now")
            async with asyncio.timeout(BOUND_S):
                while (await peer.get())[0] != 200:
                    await asyncio.sleep(0.02)
            for writer in idle:
                writer.close()

    asyncio.run(story())


def test_connections_beyond_the_limit_are_closed_unheard(stored: Path) -> None:
    async def story() -> None:
        async with serving({DIGEST: stored}, connections=2) as peer:
            held = [await asyncio.open_connection("127.0.0.1", peer.port) for _ in range(2)]
            async with asyncio.timeout(BOUND_S):
                while True:
                    reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
                    try:
                        refused = await reader.read() == b""
                    except ConnectionResetError:
                        refused = True
                    writer.close()
                    if refused:
                        break
            for _, writer in held:
                writer.close()

    asyncio.run(story())
