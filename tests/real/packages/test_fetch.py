"""Tests of downloads from real servers on loopback that are absent, busy, slow, cut off, or send wrong data."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import random
import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from borglet.messages import PackageRef, PackageSources, PeerAddress
from borglet.packages.base import PackageMissing
from borglet.packages.fetch import Fetcher, FetchSettings
from borglet.packages.source_choice import FetchPatience
from borglet.packages.sources import SourcesUnavailable

RAW = os.urandom(300_000)
PACKAGE = PackageRef("app@v1", f"sha256:{hashlib.sha256(RAW).hexdigest()}", len(RAW))
SETTINGS = FetchSettings(
    connect_timeout_s=1.0,
    silence_s=0.3,
    least_bytes_s=100_000,
    pace_s=0.2,
    patience=FetchPatience(rounds=3, pause_s=0.01),
)
Behaviour = Callable[[socket.socket, int], None]


def head(status: str, length: int) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode()


def honest(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("206 Partial Content" if offset else "200 OK", len(RAW) - offset) + RAW[offset:])


def ignoring_ranges(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("200 OK", len(RAW)) + RAW)


def lying(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("206 Partial Content" if offset else "200 OK", len(RAW) - offset))
    connection.sendall(bytes(len(RAW) - offset))


def longer(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("200 OK", len(RAW) + 1) + RAW + b"x")


def endless(connection: socket.socket, offset: int) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + RAW * 2)


def busy(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("503 Service Unavailable", 0))


def refusing(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("401 Unauthorized", 3) + b"no\n")


def cut(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("200 OK", len(RAW)) + RAW[: len(RAW) // 2])


def lying_and_cut(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("200 OK", len(RAW)) + bytes(len(RAW) // 2))


def stalled(connection: socket.socket, offset: int) -> None:
    connection.sendall(head("200 OK", len(RAW)) + RAW[:1000])
    connection.recv(1)  # until the other side gives up


def dripping(connection: socket.socket, offset: int) -> None:
    """Send the archive byte by byte, slowly, so that the connection is never silent and the download never ends."""
    connection.sendall(head("200 OK", len(RAW)))
    connection.settimeout(0.02)
    for byte in RAW:
        connection.sendall(bytes([byte]))
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1):
                return


def no_http(connection: socket.socket, offset: int) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH\r\n" * 10)


class Source:
    """A server on loopback that answers with the given behaviour.

    `asked`: the position of the first byte that each request wanted. `tickets`: the tickets that clients showed.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        self.asked: list[int] = []
        self.tickets: list[str] = []
        source = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                raw = b""
                while b"\r\n\r\n" not in raw:
                    piece = self.request.recv(4096)
                    if not piece:
                        return
                    raw += piece
                offset = re.search(rb"Range: bytes=([0-9]+)-", raw)
                source.asked.append(int(offset.group(1)) if offset else 0)
                found = re.search(rb"Authorization: (.*)\r\n", raw)
                source.tickets.append(found.group(1).decode() if found else "")
                with contextlib.suppress(OSError):
                    behaviour(self.request, source.asked[-1])

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.address = PeerAddress("127.0.0.1", self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@dataclass
class Cell:
    """A cell that names the sources from which a machine downloads a package: the given peers, and the store.

    `refuses`: errors to raise, one for each of the first requests for sources.
    """

    peers: list[Source]
    store: Source | None
    extra: list[PeerAddress] = field(default_factory=list)
    refuses: list[SourcesUnavailable] = field(default_factory=list)
    told: list[tuple[int, str]] = field(default_factory=list)  # position of the peer (-1: the store), reason
    asked: int = 0
    busy_first: int = 0  # the number of first answers that name no source

    def of(self, digest: str) -> PackageSources:
        self.asked += 1
        if self.refuses:
            raise self.refuses.pop(0)
        if self.asked <= self.busy_first:
            return PackageSources([], "", "the-ticket", retry_after_s=0.01)
        peers = [*self.extra, *[peer.address for peer in self.peers]]
        return PackageSources(peers, "/store" if self.store else "", "the-ticket")

    def connect_store(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        assert self.store is not None
        address = self.store.address
        connection = http.client.HTTPConnection(address.address, address.port, timeout=1.0)
        return connection, {"Authorization": "Bearer m1:secret"}

    def rest(self) -> None:
        raise AssertionError

    def have(self, digest: str, port: int) -> None:
        raise AssertionError

    def gone(self, digest: str) -> None:
        raise AssertionError

    def failed(self, digest: str, peer: PeerAddress, reason: str) -> None:
        known = [*self.extra, *[each.address for each in self.peers]]
        self.told.append((known.index(peer) if peer in known else -1, reason))


@contextlib.contextmanager
def a_cell(*peers: Behaviour, store: Behaviour | None = honest) -> Iterator[Cell]:
    sources = [Source(behaviour) for behaviour in peers]
    root = Source(store) if store is not None else None
    try:
        yield Cell(sources, root)
    finally:
        for source in [*sources, *([root] if root else [])]:
            source.close()


def fetched(cell: Cell, target: Path, settings: FetchSettings = SETTINGS) -> bytes:
    pauses: list[float] = []
    fetcher = Fetcher(cell, settings=settings, rng=random.Random(1))
    fetcher.fetch(PACKAGE, target / "archive", checkpoint=lambda: None, pause=pauses.append)
    return (target / "archive").read_bytes()


def test_the_first_peer_that_has_it_is_enough(tmp_path: Path) -> None:
    with a_cell(honest, honest) as cell:
        assert fetched(cell, tmp_path) == RAW
        assert cell.store is not None
        assert (cell.peers[0].asked, cell.peers[1].asked, cell.store.asked, cell.told) == ([0], [], [], [])
        assert cell.peers[0].tickets == ["Borg-Ticket the-ticket"]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (lying, "mismatch"),
        (longer, "mismatch"),
        (endless, "mismatch"),
        (busy, "busy"),
        (refusing, "refused"),
        (no_http, "unreachable"),
        (stalled, "slow"),
        (dripping, "slow"),
    ],
)
def test_a_source_that_does_not_deliver_is_reported_and_the_next_one_tried(
    tmp_path: Path, behaviour: Behaviour, reason: str
) -> None:
    with a_cell(behaviour, honest) as cell:
        assert fetched(cell, tmp_path) == RAW
        assert cell.told == [(0, reason)]


def test_a_peer_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = PeerAddress("127.0.0.1", taken.getsockname()[1])
    with a_cell() as cell:
        cell.extra = [nobody]
        assert fetched(cell, tmp_path) == RAW
        assert cell.told == [(0, "unreachable")]
        assert cell.store is not None
        assert cell.store.tickets == ["Bearer m1:secret"]


def test_what_came_is_kept_and_the_next_source_goes_on_behind_it(tmp_path: Path) -> None:
    with a_cell(cut, honest) as cell:
        assert fetched(cell, tmp_path) == RAW
        assert (cell.peers[1].asked, cell.told) == ([len(RAW) // 2], [(0, "unreachable")])
    (tmp_path / "archive").unlink()
    with a_cell(cut, ignoring_ranges) as cell:
        assert fetched(cell, tmp_path) == RAW


def test_a_peer_that_lies_in_a_mixture_is_found_by_downloading_from_each_alone(tmp_path: Path) -> None:
    with a_cell(lying_and_cut, lying, honest) as cell:
        assert fetched(cell, tmp_path) == RAW
        assert cell.peers[2].asked == [0]
    (tmp_path / "archive").unlink()
    with a_cell(lying_and_cut) as cell:
        assert fetched(cell, tmp_path) == RAW
        assert cell.store is not None
        assert cell.store.asked == [len(RAW) // 2, 0]
        assert (-1, "mismatch") not in cell.told


def test_the_attempts_are_bounded_and_the_error_tells_of_each(tmp_path: Path) -> None:
    with a_cell(lying, store=lying) as cell:
        with pytest.raises(
            PackageMissing, match=r"cannot download package 'app@v1' \(sha256:.*\): peer 127.0.0.1:"
        ) as caught:
            fetched(cell, tmp_path)
        assert "the store: mismatch: the content has the wrong digest: sha256:" in str(caught.value)
        assert cell.told == [(0, "mismatch"), *[(-1, "mismatch")] * 3]
        assert cell.asked == 3


def test_nobody_gives_up_while_the_link_says_to_come_back(tmp_path: Path) -> None:
    with a_cell() as cell:
        cell.busy_first = 30
        assert fetched(cell, tmp_path) == RAW
    clock = iter(range(10_000))
    with a_cell() as cell:
        cell.busy_first = 10_000
        fetcher = Fetcher(cell, settings=SETTINGS, rng=random.Random(1), now=lambda: next(clock) * 10.0)
        with pytest.raises(PackageMissing, match="all sources were busy the whole time"):
            fetcher.fetch(PACKAGE, tmp_path / "b", checkpoint=lambda: None, pause=lambda seconds: None)


def test_a_link_that_is_away_is_asked_again_and_one_that_says_no_is_not(tmp_path: Path) -> None:
    with a_cell() as cell:
        cell.refuses = [SourcesUnavailable("the link can't be reached: refused")] * 2
        assert fetched(cell, tmp_path) == RAW
    with a_cell() as cell:
        cell.refuses = [SourcesUnavailable("the link answered 404 unknown", final=True)]
        (tmp_path / "other").mkdir()
        with pytest.raises(PackageMissing, match="the link answered 404 unknown"):
            fetched(cell, tmp_path / "other")
        assert cell.asked == 1


def test_a_download_ends_at_the_given_size(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    pieces = 0

    def stop() -> None:
        nonlocal pieces
        pieces += 1
        if pieces == 3:
            raise Stopped

    with a_cell(honest) as cell:
        fetcher = Fetcher(cell, settings=SETTINGS, rng=random.Random(1))
        with pytest.raises(Stopped):
            fetcher.fetch(PACKAGE, tmp_path / "archive", checkpoint=stop, pause=lambda seconds: None)
        assert cell.told == []
