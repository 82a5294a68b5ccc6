"""The sockets of a resolver: UDP and TCP on one port, which several processes may share.

datagram ─► rate limit ─► `naming.dns.prepared_answers`, or `naming.dns.resolver` if the former has no answer
stream ───► `naming.dns.primary` for zone transfers, `naming.dns.resolver` for other queries
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from contextlib import aclosing
from functools import lru_cache
from random import Random
from typing import cast

import dns.message
import dns.rcode
import dns.rdatatype
import structlog

from naming.counters import ServerCounters, increment
from naming.dns.prepared_answers import ShortPath
from naming.dns.primary import Peers, Primary, Seldom, current_soa, read_transfer
from naming.dns.protocol.cookies import DnsClient, at_the_end
from naming.dns.protocol.rate_limit import RateLimit, RateVerdict
from naming.dns.protocol.tcp_connections import DnsStream, Streams
from naming.dns.resolver import Steps, Transport, answering, finished, header_only, truncated
from naming.dns.zones.directory import ZoneDirectory
from serving.ports import both_bound

log = structlog.get_logger(__name__)

TCP_IDLE_S = 10.0
LONG_S = 0.002  # an answer that takes longer than this pauses before the next one
_TRANSFERS = (int(dns.rdatatype.AXFR), int(dns.rdatatype.IXFR))


class DnsServer:
    """The sockets of a resolver process. `port`: the port of the sockets. If the port 0 was requested, the system
    chooses a port.
    """

    def __init__(
        self,
        directory: ZoneDirectory,
        host: str,
        port: int,
        *,
        primary: Primary | None = None,
        peers: Peers | None = None,
        limit: RateLimit | None = None,
        figures: ServerCounters | None = None,
    ) -> None:
        self.directory = directory
        self.peers = peers
        self.figures = figures or ServerCounters()
        self.limit = limit
        self.primary = primary
        self.host = host
        self.port = port
        self._rng = Random()
        self.short = ShortPath(directory, self._rng)
        self._streams: set[asyncio.Task[None]] = set()
        self.streams = Streams(lambda limit: increment(self.figures.streams_bounded, limit))
        self.figures.streams = 0
        self._step_lock = asyncio.Lock()
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None
        self._error_log = Seldom(1.0)

    async def start(self, *, tcp: bool = True, shared: bool = False) -> None:
        """Open the sockets. Raises `OSError` if the port cannot be opened.

        `tcp`: false if another process serves TCP. `shared`: whether other processes also serve UDP on the port.
        """
        loop = asyncio.get_running_loop()
        datagrams, streams = both_bound(self.host, self.port, tcp=tcp, shared=shared)
        self.port = datagrams.getsockname()[1]
        self._udp, _ = await loop.create_datagram_endpoint(lambda: Datagrams(self), sock=datagrams)
        if streams is not None:
            self._tcp = await asyncio.start_server(self._serve_stream, sock=streams, limit=2**17)

    async def stop(self) -> None:
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()
        for stream in list(self._streams):
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    def answering(self, query: bytes, via: Transport, source: str) -> Steps:
        """Build the answer to a query with `naming.dns.resolver`, and count the answer. The server can do other work
        between two steps of this generator.
        """
        figures = self.figures
        try:
            response = yield from self._answering(query, via, source)
        except Exception:  # noqa: BLE001 - an error in one answer must not stop the other answers
            self.report_error()
            response = header_only(query, dns.rcode.SERVFAIL)
        if response is None:
            figures.unanswered += 1
        else:
            figures.count(response, figures.udp if via == "udp" else figures.tcp)
        return response

    def _answering(self, query: bytes, via: Transport, source: str) -> Steps:
        if via == "udp" and self.peers and type_asked(query) == dns.rdatatype.IXFR:
            message = read_transfer(query, self.directory)
            if message is not None:
                return current_soa(message, source, self.directory, self.peers)
        client = DnsClient(packed(source), int(time.time()))
        return (yield from answering(query, self.directory, via=via, rng=self._rng, client=client))

    def report_error(self) -> None:
        """Count an error. Log at most one error per second, because a client may repeat the query that causes the
        error.
        """
        self.figures.errors += 1
        if self._error_log.due(time.monotonic()):
            log.exception("cannot answer a DNS query", errors=self.figures.errors)

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, peer = asyncio.current_task(), writer.get_extra_info("peername")
        if peer is None:  # the client has disconnected already
            writer.close()
            return
        assert task is not None
        self._streams.add(task)
        source: str = peer[0]
        secondary = self.peers is not None and self.peers.knows(source)
        stream = self.streams.open(source, writer.close, secondary=secondary)
        self.figures.streams = len(self.streams)
        try:
            if stream is not None:
                await self._serve_queries(reader, writer, stream, source)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            log.debug("stream ended", reason=type(error).__name__)
        except asyncio.CancelledError:  # only `stop` cancels; Python 3.11 would log the cancellation as an error
            log.debug("stream ended", reason="stop")
        finally:
            self._streams.discard(task)
            if stream is not None:
                self.streams.close(stream)
            self.figures.streams = len(self.streams)
            writer.close()

    async def _serve_queries(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: DnsStream, source: str
    ) -> None:
        """Answer the queries on a connection, until no query has arrived for `TCP_IDLE_S` seconds (RFC 7766)."""
        while True:
            async with asyncio.timeout(TCP_IDLE_S):
                length = int.from_bytes(await reader.readexactly(2))
                query = await reader.readexactly(length)
            stream.busy = True
            if not await self._serve_query(query, writer, source):
                return
            self.streams.answered(stream)

    async def _serve_query(self, query: bytes, writer: asyncio.StreamWriter, source: str) -> bool:
        """Send the answer to one query. Return False if there is no answer; the caller then closes the connection.

        Only one connection at a time builds an answer. Between the steps of this work, the server answers UDP queries.
        """
        async with self._step_lock:
            transfer, response = self._transfer_asked(query), None
            if transfer is None:
                response = await self._in_steps(query, source)
            else:
                await asyncio.sleep(0)
        if transfer is not None and self.primary is not None:
            async with aclosing(self.primary.transfer(transfer, source)) as wires:
                async for wire in wires:
                    await _send(writer, wire)
        elif response is not None:
            await _send(writer, response)
        return transfer is not None or response is not None

    def _transfer_asked(self, query: bytes) -> dns.message.Message | None:
        if self.primary is None or type_asked(query) not in _TRANSFERS:
            return None
        return read_transfer(query, self.directory)

    async def _in_steps(self, query: bytes, source: str) -> bytes | None:
        """Return the answer to a query over TCP, built in steps, or None if there is no answer.

        If this took long, the method then waits for half of that time, so that the server can answer UDP queries.
        """
        steps, took_s = self.answering(query, "tcp", source), 0.0
        while True:
            began = time.monotonic()
            try:
                next(steps)
            except StopIteration as end:
                took_s += time.monotonic() - began
                await asyncio.sleep(took_s / 2 if took_s > LONG_S else 0)
                response: bytes | None = end.value
                return response
            took_s += time.monotonic() - began
            await asyncio.sleep(0)


async def _send(writer: asyncio.StreamWriter, message: bytes) -> None:
    writer.write(len(message).to_bytes(2) + message)
    async with asyncio.timeout(TCP_IDLE_S):
        await writer.drain()


class Datagrams(asyncio.DatagramProtocol):
    """Answers the DNS queries that arrive over UDP."""

    def __init__(self, server: DnsServer) -> None:
        self._server = server
        self._short = server.short.answer
        self._limit = server.limit
        self._short_answers = server.figures.short

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._send = cast(asyncio.DatagramTransport, transport).sendto

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._limit is not None and (verdict := self._verdict(data, addr[0])) is not RateVerdict.ANSWER:
            increment(self._server.figures.limited, verdict.value)
            if verdict is RateVerdict.TRUNCATE and (response := truncated(data)) is not None:
                self._send(response, addr)
            return
        try:
            response = self._short(data)
        except Exception:  # noqa: BLE001 - the long path answers instead
            self._server.report_error()
            response = None
        if response is not None:
            self._short_answers[response[3]] += 1
            self._send(response, addr)
        elif (response := finished(self._server.answering(data, "udp", addr[0]))) is not None:
            self._send(response, addr)

    def _verdict(self, data: bytes, source: str) -> RateVerdict:
        """Return whether to answer a query, as the rate limit decides. A client with a valid cookie is not limited,
        because its address is not forged.
        """
        assert self._limit is not None
        verdict = self._limit.verdict(source, time.monotonic())
        if verdict is RateVerdict.ANSWER:
            return verdict
        cookies = self._server.directory.cookies
        both = at_the_end(data)
        if cookies is None or both is None:
            return verdict
        known = cookies.believed(*both, DnsClient(packed(source), int(time.time())))
        return RateVerdict.ANSWER if known else verdict

    def error_received(self, exc: Exception) -> None:
        log.debug("datagram not delivered", error=str(exc))


def type_asked(query: bytes) -> int:
    """Return the record type of the first question, or 0 if the message has no question."""
    at = 12
    while at < len(query) and 0 < (length := query[at]) < 64:
        at += length + 1
    return int.from_bytes(query[at + 1 : at + 3])


@lru_cache(maxsize=4_096)
def packed(source: str) -> bytes:
    """Return an IP address as octets. The scope of a link-local address (`%eth0`) is omitted."""
    return ipaddress.ip_address(source.split("%", 1)[0]).packed
