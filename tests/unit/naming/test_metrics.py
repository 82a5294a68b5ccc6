"""Tests of the resolver's metrics for Prometheus, of one process on real sockets and of several together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import cast

import dns.asyncquery
import dns.exception
import dns.message
import dns.rcode
import pytest
from prometheus_client.parser import text_string_to_metric_families

from naming.counters import Board, CellFigures, ServerCounters, add_up, increment
from naming.dns.primary import Peers, Primary
from naming.dns.protocol.rate_limit import RateLimit
from naming.dns.sockets import DnsServer, type_asked
from naming.following.follower import Follower
from naming.metrics import MetricsServer, exposition
from naming.reporting import MetricsReporter
from tests.memory_news import MemoryNews
from tests.unit.naming.cells import directory_of, reported, running, table_of

Samples = dict[tuple[str, ...], float]


def samples(text: bytes) -> Samples:
    """Return the metrics' values by (name, label values), without the common prefix of the names."""
    return {
        (sample.name.removeprefix("borg_resolver_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def http(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]) if head else 0, body


def test_every_question_is_counted_where_it_was_answered() -> None:
    async def scenario() -> None:
        news = MemoryNews()
        news.add_cell(3, "cc")
        news.write(3, running(200))
        figures = ServerCounters()
        directory = directory_of(table_of())
        directory.cells.clear()
        follower = Follower(directory, news, figures=figures)
        server = DnsServer(directory, "127.0.0.1", 0, figures=figures)
        await server.start()
        told = MetricsServer("127.0.0.1", 0, MetricsReporter(figures, follower).exposition)
        await told.start()
        following = asyncio.create_task(follower.run())

        async def ask(name: str, rdtype: str = "A", *, tcp: bool = False) -> None:
            query = dns.message.make_query(f"{name}.borg.internal.", rdtype)
            send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
            await send(query, "127.0.0.1", port=server.port, timeout=10)

        try:
            async with asyncio.timeout(10):
                await follower.answers.wait()
            for _ in range(3):
                await ask("7.web.ubar.cc")
            await ask("nobody.ubar.cc")
            await ask("cc", "SOA")
            await ask("_http._tcp.web.ubar.cc", "SRV")
            await ask("_http._tcp.web.ubar.cc", "SRV", tcp=True)
            await ask("cc", "AXFR", tcp=True)
            await _send_rubbish(server.port)
            news.write(3, [reported(0, health="unhealthy")])
            async with asyncio.timeout(10):
                while directory.cells["cc"].revision < 2 or not figures.unanswered:
                    await asyncio.sleep(0.01)
            status, body = await http(told.port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (status, (await http(told.port, b"GET / HTTP/1.1\r\n\r\n"))[0]) == (200, 404)
            assert (await http(told.port, b"POST /metrics HTTP/1.1\r\n\r\n"))[0] == 405
            assert (await http(told.port, b"x" * 40_000))[0] == 0
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
            told.stop()
            await server.stop()
        found = samples(body)
        assert (
            found.items()
            >= {
                ("queries_total", "short", "udp"): 4,
                ("queries_total", "long", "udp"): 2,
                ("queries_total", "long", "tcp"): 2,
                ("answers_total", "NOERROR"): 6,
                ("answers_total", "NXDOMAIN"): 1,
                ("answers_total", "REFUSED"): 1,
                ("truncated_total",): 1,
                ("unanswered_total",): 1,
                ("tcp_bounded_total", "source"): 0,
                ("tcp_bounded_total", "all"): 0,
                ("stale",): 0,
                ("loading",): 0,
                ("revision", "cc"): 2,
                ("serial", "cc"): 2,
                ("names", "cc", "jobs"): 1,
                ("names", "cc", "placed"): 200,
                ("names", "cc", "serving"): 199,
                ("news_lag_seconds_count",): 1,
            }.items()
        )
        assert found["unheard_seconds",] < 10

    asyncio.run(scenario())


async def _send_rubbish(port: int) -> None:
    query = dns.message.make_query("x.", "A")
    query.flags |= dns.flags.QR
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port)
    )
    transport.sendto(query.to_wire())
    transport.close()


class Refusing(asyncio.DatagramProtocol):
    """A DNS server that answers every query with REFUSED."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._send = cast(asyncio.DatagramTransport, transport).sendto

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._send(data[:2] + bytes((data[2] | 0x80, dns.rcode.REFUSED)) + data[4:], addr)


@pytest.mark.parametrize("secondary", [asyncio.DatagramProtocol, Refusing])
def test_a_secondary_that_acknowledges_nothing_is_counted(
    monkeypatch: pytest.MonkeyPatch, secondary: type[asyncio.DatagramProtocol]
) -> None:
    monkeypatch.setattr("naming.dns.primary.NOTIFY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("naming.dns.primary.NOTIFY_TRIES", 1)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        deaf, _ = await loop.create_datagram_endpoint(secondary, local_addr=("127.0.0.1", 0))
        who = f"127.0.0.1@{deaf.get_extra_info('sockname')[1]}"
        table = table_of(*running(2))
        primary = Primary(directory_of(table), Peers.read(networks=["127.0.0.1"], keys=[], secondaries=[who]))
        watching = asyncio.create_task(primary.watch())
        try:
            for times in (1, 2):
                async with asyncio.timeout(10):
                    while samples(exposition(primary.figures)).get(("notify_failures_total", who)) != times:
                        await asyncio.sleep(0.01)
                table.apply(reported(0, "stopping"), 100)  # the serial changes, so a notification is sent again
            query = dns.message.make_query("cc.borg.internal.", "AXFR")
            assert [wire async for wire in primary.transfer(query, "127.0.0.1")]
            assert [wire async for wire in primary.transfer(query, "192.0.2.9")]
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            deaf.close()
        found = samples(exposition(primary.figures))
        assert (
            found.items()
            >= {
                ("transfers_total", "axfr"): 1,
                ("transfers_total", "refused"): 1,
                ("secondary_serial", "cc", "127.0.0.1"): 100,
            }.items()
        )

    asyncio.run(scenario())


def test_what_is_beyond_the_rate_is_counted() -> None:
    async def scenario() -> None:
        server = DnsServer(directory_of(table_of(*running(1))), "127.0.0.1", 0, limit=RateLimit(1, exempt=()))
        await server.start()
        try:
            query = dns.message.make_query("web.ubar.cc.borg.internal.", "A")
            for _ in range(6):
                with suppress(dns.exception.Timeout):
                    await dns.asyncquery.udp(query, "127.0.0.1", port=server.port, timeout=0.05)
        finally:
            await server.stop()
        found = samples(exposition(server.figures))
        assert found["limited_total", "drop"] >= 1
        assert found["limited_total", "truncate"] >= 1

    asyncio.run(scenario())


def test_processes_are_one_figure() -> None:
    board = Board(3)
    first, second = ServerCounters(status="ok", unheard_s=0.5), ServerCounters(status="stale", unheard_s=40.0)
    first.short[0] = 5
    first.cells = {"cc": CellFigures(9, 9, jobs=2, placed=3, serving=1)}
    first.secondaries = {"cc": {"192.0.2.1": 8}}
    increment(first.transfers, "ixfr")
    second.short[3], second.udp[0] = 2, 1
    second.cells = {"cc": CellFigures(7, 6)}
    second.observe_lag(0.03)
    second.observe_lag(100.0)
    board.write(1, second)
    board.ended(1)
    board.ended(1)
    found = samples(exposition(add_up([first, *board.others(0)]), board.restarts()))
    assert (
        found.items()
        >= {
            ("queries_total", "short", "udp"): 7,
            ("queries_total", "long", "udp"): 1,
            ("answers_total", "NOERROR"): 6,
            ("answers_total", "NXDOMAIN"): 2,
            ("stale",): 1,
            ("unheard_seconds",): 40,
            ("revision", "cc"): 7,
            ("serial", "cc"): 6,
            ("names", "cc", "placed"): 3,
            ("news_lag_seconds_bucket", "0.05"): 1,
            ("news_lag_seconds_bucket", "60.0"): 1,
            ("news_lag_seconds_bucket", "+Inf"): 2,
            ("transfers_total", "ixfr"): 1,
            ("secondary_serial", "cc", "192.0.2.1"): 8,
            ("worker_restarts_total", "0"): 0,
            ("worker_restarts_total", "1"): 2,
        }.items()
    )
    assert first.short[3] == 0  # the sum does not change the figures of a process


def test_a_board_tells_only_what_was_written_whole() -> None:
    board = Board(2)
    assert board.read(0) is None
    figures = ServerCounters(errors=3)
    board.write(0, figures)
    assert board.read(0) == figures
    board._memory[20] ^= 1
    assert board.read(0) is None
    board.write(0, figures)
    board.write(0, ServerCounters(errors=4, limited={"x" * 2**21: 1}))
    assert board.read(0) == figures


@pytest.mark.parametrize(
    ("query", "rdtype"),
    [(dns.message.make_query("a.b.c.", "IXFR").to_wire(), 251), (b"", 0), (bytes(12), 0), (b"\xff" * 40, 65_535)],
    ids=["a transfer", "nothing", "no question", "nonsense"],
)
def test_the_type_asked_for_is_found_without_reading_more(query: bytes, rdtype: int) -> None:
    assert type_asked(query) == rdtype
