"""`python -m naming.server`: the resolver process. UDP and TCP on one port, several processes may share it.

Settings: BORG_DNS_HOST, BORG_DNS_PORT, BORG_ZONE, BORG_CELLS; for transfers of zones BORG_DNS_TRANSFER, BORG_DNS_KEYS,
BORG_DNS_SECONDARIES. It answers from memory; `TXT health.<zone>` says
whether it is loading, ok, or stale.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import lru_cache
from random import Random
from typing import cast

import dns.exception
import dns.message
import dns.opcode
import dns.rcode
import structlog

from naming.cookies import Client, Cookies, at_the_end
from naming.directory import Directory
from naming.follower import Follower
from naming.limiting import RateLimit, Verdict
from naming.news import NewsSource
from naming.primary import InvalidPeers, Peers, Primary
from naming.resolver import Transport, answer, bare, truncated
from naming.shortpath import ShortPath
from naming.transfer import wanted

log = structlog.get_logger(__name__)

TCP_IDLE_S = 10.0
TCP_CONNECTIONS = 512
MOST_NSID = 64  # octets of a name
RECEIVE_BUFFER = 4 * 2**20  # bytes; absorbs a burst while a slice of news is applied
_ERROR_LOG_S = 1.0


class Server:
    """Sockets around `resolver.answer`. `port` is the one in use, also when 0 was asked for."""

    def __init__(
        self,
        directory: Directory,
        host: str,
        port: int,
        *,
        primary: Primary | None = None,
        limit: RateLimit | None = None,
    ) -> None:
        self.directory = directory
        self.limit = limit
        self.primary = primary
        self.host = host
        self.port = port
        self._rng = Random()
        self.short = ShortPath(directory, self._rng)
        self._streams: set[asyncio.Task[None]] = set()
        self._udp: asyncio.DatagramTransport | None = None
        self._tcp: asyncio.Server | None = None
        self._errors = 0
        self._error_logged_at = float("-inf")

    async def start(self) -> None:
        """Raises `OSError` when the port is taken by somebody else or may not be used."""
        loop = asyncio.get_running_loop()
        udp = _bound(self.host, self.port, socket.SOCK_DGRAM)
        try:
            tcp = _bound(self.host, udp.getsockname()[1], socket.SOCK_STREAM)
        except OSError:
            udp.close()
            raise
        self.port = udp.getsockname()[1]
        self._udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=udp)
        self._tcp = await asyncio.start_server(self._serve_stream, sock=tcp, limit=2**17)

    async def stop(self) -> None:
        if self._udp is not None:
            self._udp.close()
        if self._tcp is not None:
            self._tcp.close()
        for stream in list(self._streams):
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)

    def answer(self, query: bytes, via: Transport, source: str) -> bytes | None:
        try:
            client = Client(packed(source), int(time.time()))
            return answer(query, self.directory, via=via, rng=self._rng, client=client)
        except Exception:  # noqa: BLE001 - one question must never stop the answers to all others
            self.report_error()
            return bare(query, dns.rcode.SERVFAIL)

    def report_error(self) -> None:
        """In the log at most once a second: whoever found the question may repeat it."""
        self._errors += 1
        now = asyncio.get_running_loop().time()
        if now - self._error_logged_at >= _ERROR_LOG_S:
            self._error_logged_at = now
            log.exception("question not answered", errors=self._errors)

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            if len(self._streams) <= TCP_CONNECTIONS:
                await self._serve_queries(reader, writer)
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            log.debug("stream ended", reason=type(error).__name__)
        finally:
            self._streams.discard(task)
            writer.close()

    def _transfer_asked(self, query: bytes) -> dns.message.Message | None:
        """The question when it is for a transfer, its signature checked where it has one."""
        if self.primary is None:
            return None
        try:
            message = dns.message.from_wire(query, keyring=dict(self.directory.keyring) or None)
        except (dns.exception.DNSException, ValueError):
            return None  # the ordinary way answers it
        return message if message.opcode() == dns.opcode.QUERY and wanted(message) else None

    async def _serve_queries(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """RFC 7766: any number of queries on a connection, until it idles."""
        source: str = writer.get_extra_info("peername")[0]
        while True:
            async with asyncio.timeout(TCP_IDLE_S):
                length = int.from_bytes(await reader.readexactly(2))
                query = await reader.readexactly(length)
            transfer = self._transfer_asked(query)
            if transfer is not None and self.primary is not None:
                async for wire in self.primary.transfer(transfer, source):
                    writer.write(len(wire).to_bytes(2) + wire)
                    async with asyncio.timeout(TCP_IDLE_S):
                        await writer.drain()
                continue
            response = self.answer(query, "tcp", source)
            if response is None:
                return
            writer.write(len(response).to_bytes(2) + response)
            async with asyncio.timeout(TCP_IDLE_S):
                await writer.drain()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._short = server.short.answer
        self._limit = server.limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._send = cast(asyncio.DatagramTransport, transport).sendto

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self._limit is not None and (verdict := self._verdict(data, addr[0])) is not Verdict.ANSWER:
            if verdict is Verdict.TRUNCATE and (response := truncated(data)) is not None:
                self._send(response, addr)
            return
        try:
            response = self._short(data)
        except Exception:  # noqa: BLE001 - as for the long path, which answers instead
            self._server.report_error()
            response = None
        response = response or self._server.answer(data, "udp", addr[0])
        if response is not None:
            self._send(response, addr)

    def _verdict(self, data: bytes, source: str) -> Verdict:
        """Who has our cookie is where it says it is, and may ask as much as it likes."""
        assert self._limit is not None
        verdict = self._limit.verdict(source, time.monotonic())
        if verdict is Verdict.ANSWER:
            return verdict
        cookies = self._server.directory.cookies
        both = at_the_end(data)
        if cookies is None or both is None:
            return verdict
        known = cookies.believed(*both, Client(packed(source), int(time.time())))
        return Verdict.ANSWER if known else verdict

    def error_received(self, exc: Exception) -> None:
        log.debug("datagram not delivered", error=str(exc))


def _bound(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if kind == socket.SOCK_DGRAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


@lru_cache(maxsize=4_096)
def packed(source: str) -> bytes:
    """An address as octets; the scope of a link-local one is nobody's business."""
    return ipaddress.ip_address(source.split("%", 1)[0]).packed


def nameserver_address(host: str) -> str:
    """What `ns.<zone>` answers: the address listened on, or the one this machine shows to the world."""
    if not ipaddress.ip_address(host).is_unspecified:
        return host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    elsewhere = "2001:db8::1" if ":" in host else "192.0.2.1"
    with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((elsewhere, 53))  # sends nothing, chooses a route
        return str(probe.getsockname()[0])
    return "::1" if ":" in host else "127.0.0.1"


def _settle_memory() -> None:
    """The tables live as long as the process: the collector need not look at them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


async def serve(
    directory: Directory,
    source: NewsSource,
    host: str,
    port: int,
    *,
    peers: Peers | None = None,
    limit: RateLimit | None = None,
) -> None:
    """Until SIGTERM or SIGINT. Raises `OSError` when the port can't be had."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    primary = Primary(directory, peers) if peers else None
    server = Server(directory, host, port, primary=primary, limit=limit)
    await server.start()
    log.info("resolver listens", host=host, port=server.port, zone=directory.zone)
    following = asyncio.create_task(Follower(directory, source, on_loaded=_settle_memory).run())
    ends = {following, asyncio.create_task(stopped.wait())}
    if primary is not None:
        ends.add(asyncio.create_task(primary.watch()))
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises what ended it: the supervisor starts us anew
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await server.stop()
        log.info("resolver stopped")


def main() -> int:
    import django

    django.setup()
    import uvloop
    from django.conf import settings

    from naming.journal_news import JournalNews

    host, port = settings.BORG_DNS_HOST, settings.BORG_DNS_PORT
    try:
        peers = Peers.read(
            networks=settings.BORG_DNS_TRANSFER,
            keys=settings.BORG_DNS_KEYS,
            secondaries=settings.BORG_DNS_SECONDARIES,
        )
    except InvalidPeers as error:
        log.error("resolver can't start", error=str(error))
        return 1
    directory = Directory(
        zone=settings.BORG_ZONE,
        nameserver=nameserver_address(host),
        ttl_s=settings.BORG_DNS_TTL,
        negative_ttl_s=settings.BORG_DNS_NEGATIVE_TTL,
        keyring=peers.keys,
        nsid=settings.BORG_DNS_NSID.encode()[:MOST_NSID],
        cookies=Cookies.from_secret(settings.SECRET_KEY),
    )
    limit = RateLimit(settings.BORG_DNS_RATE) if settings.BORG_DNS_RATE else None
    source = JournalNews(cells=settings.BORG_CELLS)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(directory, source, host, port, peers=peers, limit=limit))
    except OSError as error:
        log.error(
            "resolver can't listen; free the port or set BORG_DNS_PORT",
            host=host,
            port=port,
            error=str(error),
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
