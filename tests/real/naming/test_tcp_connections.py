"""Tests of the limits on TCP connections to the resolver, first in memory and then on real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from ipaddress import ip_network

import dns.message
import pytest

from naming.dns.primary import Peers
from naming.dns.protocol.tcp_connections import MOST_A_SOURCE, DnsStream, Streams, source_of
from naming.dns.sockets import DnsServer
from tests.unit.naming.cells import directory_of, running, table_of


class Room:
    """A `Streams` object that records the connections it closed (`gone`) and the limits it reached (`bounds`)."""

    def __init__(self, most: int, most_a_source: int) -> None:
        self.bounds: list[str] = []
        self.gone: list[str] = []
        self.streams = Streams(self.bounds.append, most=most, most_a_source=most_a_source)

    def open(self, address: str, name: str = "", *, secondary: bool = False) -> DnsStream | None:
        return self.streams.open(address, lambda: self.gone.append(name or address), secondary=secondary)

    def use(self, stream: DnsStream | None) -> None:
        assert stream is not None
        stream.busy = True
        self.streams.answered(stream)


def test_the_idlest_of_its_source_gives_way_and_nobody_elses() -> None:
    room = Room(most=10, most_a_source=3)
    room.open("192.0.2.2", "other")
    first, *_ = (room.open("192.0.2.1", name) for name in ("a", "b", "c"))
    room.use(first)
    room.open("192.0.2.1", "d")
    room.open("192.0.2.1", "e")
    assert (room.gone, room.bounds) == (["b", "c"], ["source", "source"])
    assert len(room.streams) == 4


def test_a_client_that_is_being_answered_never_gives_way() -> None:
    room = Room(most=2, most_a_source=2)
    for address in ("192.0.2.1", "192.0.2.2"):
        stream = room.open(address)
        assert stream is not None
        stream.busy = True
    assert room.open("192.0.2.3") is None
    assert (room.gone, room.bounds, len(room.streams)) == ([], ["all"], 2)


def test_where_all_are_taken_the_source_with_most_makes_room() -> None:
    room = Room(most=4, most_a_source=3)
    for address, name in (("192.0.2.1", "one"), ("192.0.2.2", "a"), ("192.0.2.2", "b"), ("192.0.2.3", "two")):
        room.open(address, name)
    room.open("192.0.2.4", "three")
    room.open("192.0.2.5", "four")  # each source has one, so the idlest is closed
    assert (room.gone, room.bounds) == (["a", "one"], ["all", "all"])


def test_a_secondary_has_more_room() -> None:
    room = Room(most=512, most_a_source=1)
    for _ in range(256):
        room.open("192.0.2.1", secondary=True)
    assert room.gone == []
    room.open("192.0.2.1", secondary=True)
    assert len(room.gone) == 1


def test_numbers_stay_right_whatever_opens_and_ends() -> None:
    rng, room, alive = random.Random(5), Room(most=12, most_a_source=4), set[DnsStream]()
    for step in range(3_000):
        if rng.random() < 0.6:
            stream = room.streams.open(f"192.0.2.{rng.randrange(6)}", lambda: None)
            if stream is not None:
                alive.add(stream)
        elif alive:
            stream = rng.choice(sorted(alive, key=lambda one: one.used))
            if rng.random() < 0.5:
                room.streams.close(stream)
                alive.discard(stream)
            else:
                if stream.busy:
                    room.streams.answered(stream)
                else:
                    stream.busy = True
        assert len(room.streams) <= 12, step
    for stream in alive:
        room.streams.close(stream)
    assert len(room.streams) == 0


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.9", "192.0.2.9"),
        ("::ffff:192.0.2.9", "192.0.2.9"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_connections_are_counted_per_client_network(address: str, source: str) -> None:
    assert source_of(address) == source


def test_a_secondary_is_known_by_its_address() -> None:
    peers = Peers((ip_network("10.0.0.0/8"),), {}, (("192.0.2.1", 53),))
    known = [peers.knows(one) for one in ("10.1.2.3", "::ffff:10.1.2.3", "192.0.2.1", "192.0.2.2", "::1")]
    assert known == [True, True, True, False, False]


def test_a_client_that_opens_connections_without_end_keeps_nobody_out() -> None:
    query = dns.message.make_query("cc.borg.internal.", "SOA").to_wire(prepend_length=True)

    async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send a query and return whether an answer came. If not, the resolver closed the connection."""
        writer.write(query)
        try:
            return len(await reader.read(2)) == 2
        except ConnectionError:
            return False

    async def scenario() -> None:
        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        server = DnsServer(directory_of(table_of(*running(1))), "127.0.0.1", 0)
        await server.start()
        try:
            opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(MOST_A_SOURCE + 1)]
            other = await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
            assert await asked(*opened[-1])
            assert await asked(*other)
            assert [await asked(*one) for one in opened[:3]] == [False, True, True]
            assert server.figures.streams_bounded == {"source": 1}
            assert server.figures.streams == len(server.streams) == MOST_A_SOURCE + 1
            for _ in range(20):  # some are closed before the server handles them
                with socket.create_connection(("127.0.0.1", server.port)) as hasty:
                    hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            assert await asked(*other)
            for _, writer in (*opened, other):
                writer.close()
        finally:
            await server.stop()
        assert told == []

    asyncio.run(scenario())
