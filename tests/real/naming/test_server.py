"""Tests of the DNS server on real sockets, with a journal in memory in place of PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import pytest

from naming.dns.resolver import Steps, Transport
from naming.dns.zones.directory import Status, ZoneDirectory
from naming.following.follower import Follower
from naming.server import DnsServer, nameserver_address
from scheduling.core.vocabulary import events
from tests.memory_news import MemoryNews
from tests.unit.naming.cells import machine, reported, running, texts

CELL = 3
BOUND_S = 30.0


class Resolver:
    """A running resolver that follows a journal, with methods that query it as a client."""

    def __init__(self, server: DnsServer, news: MemoryNews) -> None:
        self.server = server
        self.news = news
        self.directory = server.directory

    async def ask(self, name: str, rdtype: str = "A", *, tcp: bool = False) -> dns.message.Message:
        query = dns.message.make_query(f"{name}.borg.internal.", rdtype, use_edns=0, payload=1232)
        send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
        return await send(query, "127.0.0.1", port=self.server.port, timeout=BOUND_S)

    async def addresses(self, name: str = "web.ubar.cc") -> list[str]:
        return sorted(texts(await self.ask(name)))

    async def until(self, wanted: Callable[[], Awaitable[bool]]) -> None:
        """Wait until `wanted()` is true, or fail after a bound.

        It compares clock times, because `asyncio.wait_for` of Python 3.11, which dnspython uses, can swallow a
        cancellation.
        """
        deadline = asyncio.get_running_loop().time() + BOUND_S
        while not await wanted():
            assert asyncio.get_running_loop().time() < deadline, "not within the bound"
            await asyncio.sleep(0.005)


@asynccontextmanager
async def resolver(news: MemoryNews) -> AsyncIterator[Resolver]:
    server = DnsServer(ZoneDirectory(zone="borg.internal"), "127.0.0.1", 0)
    await server.start()
    loaded = asyncio.Event()
    following = asyncio.create_task(Follower(server.directory, news, on_loaded=loaded.set).run())
    try:
        if not news.away:
            async with asyncio.timeout(BOUND_S):
                await loaded.wait()
        yield Resolver(server, news)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await server.stop()


@pytest.fixture
def news() -> MemoryNews:
    memory = MemoryNews()
    memory.add_cell(CELL, "cc")
    memory.write(CELL, running(3))
    return memory


def test_a_client_asks_over_udp_and_tcp(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            for tcp in (False, True):
                assert texts(await cell.ask("1.web.ubar.cc", tcp=tcp)) == ["10.0.0.2"]
            assert len((await cell.ask("_http._tcp.web.ubar.cc", "SRV")).answer[0]) == 3
            assert '"status=ok"' in texts(await cell.ask("health", "TXT"))[0]

    asyncio.run(scenario())


def test_many_questions_share_one_stream_and_silence_ends_none_of_them(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            reader, writer = await asyncio.open_connection("127.0.0.1", cell.server.port)
            queries = [dns.message.make_query(f"{i % 3}.web.ubar.cc.borg.internal.", "A") for i in range(50)]
            whole = b"".join(query.to_wire(prepend_length=True) for query in queries)
            for start in range(0, len(whole), 7):
                writer.write(whole[start : start + 7])
            for query in queries:
                length = int.from_bytes(await reader.readexactly(2))
                assert query.is_response(dns.message.from_wire(await reader.readexactly(length)))
            writer.write(b"\x00\x03abc")
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())


def test_a_stream_that_is_read_ahead_of_its_answers_lets_others_come(news: MemoryNews) -> None:
    """Send 500 queries on one TCP connection. Between the answers, other tasks of the event loop must run."""
    number = 500

    async def scenario() -> int:
        async with resolver(news) as cell:
            answered = turns = 0
            answering = cell.server.answering

            def counted(query: bytes, via: Transport, source: str) -> Steps:
                nonlocal answered
                answered += 1
                return answering(query, via, source)

            cell.server.answering = counted  # type: ignore[method-assign]
            _, writer = await asyncio.open_connection("127.0.0.1", cell.server.port)
            query = dns.message.make_query("none.ubar.cc.borg.internal.", "A").to_wire(prepend_length=True)
            writer.write(query * number)
            while answered < number:
                before = answered
                await asyncio.sleep(0)
                turns += answered > before
            writer.close()
            return turns

    assert asyncio.run(scenario()) > number // 2


def test_after_a_long_answer_over_tcp_datagrams_have_half_as_long(news: MemoryNews) -> None:
    number, long_s = 12, 0.01

    async def scenario() -> float:
        async with resolver(news) as cell:
            answering = cell.server.answering

            def slow(query: bytes, via: Transport, source: str) -> Steps:
                time.sleep(long_s)
                return (yield from answering(query, via, source))

            cell.server.answering = slow  # type: ignore[method-assign]
            began = time.monotonic()
            streams = [await asyncio.open_connection("127.0.0.1", cell.server.port) for _ in range(3)]
            query = dns.message.make_query("none.ubar.cc.borg.internal.", "A").to_wire(prepend_length=True)
            for _, writer in streams:
                writer.write(query * (number // 3))
            for reader, writer in streams:
                for _ in range(number // 3):
                    await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
                writer.close()
            return time.monotonic() - began

    assert asyncio.run(scenario()) > number * long_s * 1.4


def test_a_stop_ends_streams_in_silence(news: MemoryNews) -> None:
    async def scenario() -> list[dict[str, object]]:
        told: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        async with resolver(news) as cell:
            reader, writer = await asyncio.open_connection("127.0.0.1", cell.server.port)
            writer.write(dns.message.make_query("cc.borg.internal.", "SOA").to_wire(prepend_length=True))
            await reader.readexactly(2)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        return told

    assert asyncio.run(scenario()) == []


def test_a_cut_datagram_is_whole_over_tcp(news: MemoryNews) -> None:
    news.write(CELL, [events.JobEnded(job_id=7, how="killed"), *running(200)])

    async def scenario() -> None:
        async with resolver(news) as cell:
            assert (await cell.ask("_rpc._tcp.web.ubar.cc", "SRV")).flags & dns.flags.TC
            assert len((await cell.ask("_rpc._tcp.web.ubar.cc", "SRV", tcp=True)).answer[0]) == 200

    asyncio.run(scenario())


def test_news_reach_the_answers_and_carry_their_revision(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            revision = news.write(CELL, [reported(1, health="unhealthy")])

            async def visible() -> bool:
                return f'"revision={revision}"' in texts(await cell.ask("cc", "TXT"))[0]

            await cell.until(visible)
            assert await cell.addresses() == ["10.0.0.1", "10.0.0.3"]
            assert (await cell.ask("cc", "SOA")).answer[0][0].serial == revision

    asyncio.run(scenario())


def test_answers_go_on_while_the_journal_is_away_and_catch_up_after(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            news.away = True
            news.write(CELL, [reported(0, health="unhealthy")])
            for _ in range(20):
                assert len(await cell.addresses()) == 3
            news.away = False

            async def caught_up() -> bool:
                return await cell.addresses() == ["10.0.0.2", "10.0.0.3"]

            began = asyncio.get_running_loop().time()
            await cell.until(caught_up)
            assert asyncio.get_running_loop().time() - began < 2.0

    asyncio.run(scenario())


def test_a_start_without_the_journal_is_servfail_until_it_is_there(news: MemoryNews) -> None:
    news.away = True

    async def scenario() -> None:
        async with resolver(news) as cell:
            assert (await cell.ask("web.ubar.cc")).rcode() == dns.rcode.SERVFAIL
            assert '"status=loading"' in texts(await cell.ask("health", "TXT"))[0]
            news.away = False

            async def loaded() -> bool:
                return cell.directory.status is Status.OK

            await cell.until(loaded)
            assert len(await cell.addresses()) == 3

    asyncio.run(scenario())


def test_cells_come_and_go(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            news.add_cell(4, "dd")
            news.write(4, [machine(0), *running(1, name="db")])

            async def added() -> bool:
                return await cell.addresses("db.ubar.dd") == ["10.0.0.1"]

            await cell.until(added)
            news.remove_cell(CELL)

            async def removed() -> bool:
                return (await cell.ask("web.ubar.cc")).rcode() == dns.rcode.NXDOMAIN

            await cell.until(removed)

    asyncio.run(scenario())


def test_a_restored_cell_is_read_again_and_its_serial_goes_on(news: MemoryNews) -> None:
    news.write(CELL, [reported(0, health="unhealthy")])

    async def scenario() -> None:
        async with resolver(news) as cell:
            before = (await cell.ask("cc", "SOA")).answer[0][0].serial
            assert len(await cell.addresses()) == 2
            news.restore(CELL, 1)

            async def restored() -> bool:
                return len(await cell.addresses()) == 3

            await cell.until(restored)
            assert (await cell.ask("cc", "SOA")).answer[0][0].serial > before

    asyncio.run(scenario())


def test_a_restored_cell_that_has_moved_on_since_is_read_again_too(news: MemoryNews) -> None:
    """Restore a cell and write newer events to it. The resolver must notice, although the revision has not fallen."""
    news.write(CELL, [reported(0, health="unhealthy")])

    async def scenario() -> None:
        async with resolver(news) as cell:
            news.away = True
            news.restore(CELL, 1)
            for restarts in range(1, 4):
                news.write(CELL, [reported(1, restarts=restarts)])
            news.away = False

            async def restored() -> bool:
                return len(await cell.addresses()) == 3

            await cell.until(restored)
            assert cell.directory.cells["cc"].history_ordinal == 2

    asyncio.run(scenario())


def test_a_journal_with_a_gap_is_replaced_by_a_snapshot(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            table = cell.directory.cells["cc"]
            table.revision = -5  # as if the revisions up to now had been archived and dropped
            news.write(CELL, [reported(2, health="unhealthy")])

            async def replaced() -> bool:
                return cell.directory.cells["cc"] is not table

            await cell.until(replaced)
            assert await cell.addresses() == ["10.0.0.1", "10.0.0.2"]

    asyncio.run(scenario())


def test_a_client_that_is_far_behind_reads_rows(news: MemoryNews, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("naming.following.follower.MOST_BEHIND", 5)

    async def scenario() -> None:
        async with resolver(news) as cell:
            table = cell.directory.cells["cc"]
            for changes, replaced in ((5, False), (6, True)):
                news.away = True
                for restarts in range(1, changes):
                    news.write(CELL, [reported(1, restarts=restarts)])
                revision = news.write(CELL, [reported(2, health="unhealthy")])
                news.away = False

                async def caught_up(revision: int = revision) -> bool:
                    return cell.directory.cells["cc"].revision == revision

                await cell.until(caught_up)
                assert (cell.directory.cells["cc"] is not table) is replaced
            assert len(await cell.addresses()) == 2

    asyncio.run(scenario())


def test_rubbish_on_the_sockets_stops_nothing(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for size in range(600):
                    sock.sendto(bytes((size * 7 + i * 13) % 256 for i in range(size)), ("127.0.0.1", cell.server.port))
            _, writer = await asyncio.open_connection("127.0.0.1", cell.server.port)
            writer.write(b"\xff\xff" + b"x" * 100)
            writer.close()
            assert len(await cell.addresses()) == 3

    asyncio.run(scenario())


def test_a_question_that_breaks_the_table_gets_servfail_and_the_next_an_answer(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as cell:
            task = cell.directory.cells["cc"].jobs[7].placed.get(1)
            assert task is not None
            task.machine.address = "broken"
            assert (await cell.ask("1.web.ubar.cc")).rcode() == dns.rcode.SERVFAIL
            assert texts(await cell.ask("0.web.ubar.cc")) == ["10.0.0.1"]

    asyncio.run(scenario())


def test_two_resolvers_never_share_a_port(news: MemoryNews) -> None:
    async def scenario() -> None:
        async with resolver(news) as first:
            for shared in (False, True):
                with pytest.raises(OSError, match="in use"):
                    await DnsServer(first.directory, "127.0.0.1", first.server.port).start(shared=shared)

    asyncio.run(scenario())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "192.0.2.7"])
def test_the_nameserver_is_the_address_listened_on(host: str) -> None:
    assert nameserver_address(host) == host
    assert nameserver_address("0.0.0.0") != "0.0.0.0"
