"""`python -m naming.server`: the resolver process, which answers DNS queries from memory.

`deploy/borg.env` explains its settings. `TXT health.<zone>` returns its status: loading, ok or stale.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog

from naming.counters import Board, ServerCounters
from naming.dns.primary import Peers, Primary
from naming.dns.protocol.cookies import Cookies
from naming.dns.protocol.rate_limit import RateLimit
from naming.dns.sockets import DnsServer
from naming.dns.zones.directory import ZoneDirectory
from naming.dns.zones.zone_settings import read_caa, read_reverse
from naming.following.follower import STALE_S, Follower
from naming.following.news import NewsSource
from naming.following.snapshots import SnapshotKeeper
from naming.metrics import MetricsServer
from naming.reporting import MetricsReporter
from serving.ports import NoPort, reserved, wanted
from serving.processes import Parent, Worker

log = structlog.get_logger(__name__)

PATIENCE_S = 30.0  # wait for names, if other workers can answer meanwhile
ALONE = Worker()


def nameserver_address(host: str) -> str:
    """Return the address of the DNS name `ns.<zone>`. This is `host`, or an address of this machine if `host` is
    0.0.0.0 or `::`.
    """
    if not ipaddress.ip_address(host).is_unspecified:
        return host
    family, other, loopback = (
        (socket.AF_INET6, "2001:db8::1", "::1") if ":" in host else (socket.AF_INET, "192.0.2.1", "127.0.0.1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((other, 53))  # sends nothing; the kernel chooses the source address
        return str(probe.getsockname()[0])
    return loopback


def _settle_memory() -> None:
    """Exclude all existing objects from garbage collection, because most of them exist until the process ends."""
    gc.collect()
    gc.freeze()


async def serve(
    directory: ZoneDirectory,
    source: NewsSource,
    host: str,
    port: int,
    *,
    peers: Peers | None = None,
    limit: RateLimit | None = None,
    snapshots: Path | None = None,
    cells: Sequence[str] = (),
    stale_s: float = STALE_S,
    worker: Worker = ALONE,
    board: Board | None = None,
    metrics: tuple[str, int] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. Raises `NoPort` if a port cannot be used.

    `snapshots`: the folder of the snapshot files. `cells`: the names of the served cells; all cells if empty. `board`:
    the memory in which the workers share their counters. Only the first worker serves TCP, zone transfers and NOTIFY.
    The first worker also writes the snapshot files, and serves the metrics of all workers at the address `metrics`.
    """
    gc.set_threshold(100_000, 50, 100)  # tables have many objects and few reference cycles
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    figures = (board.read(worker.number) if board and worker.again else None) or ServerCounters()
    primary = Primary(directory, peers, figures) if peers and worker.first else None
    server = DnsServer(directory, host, port, primary=primary, peers=peers, limit=limit, figures=figures)
    follower = Follower(directory, source, on_loaded=_settle_memory, stale_s=stale_s, figures=figures)
    keeper = SnapshotKeeper(follower, snapshots) if snapshots else None
    reporter = MetricsReporter(figures, follower, keeper, board=board, number=worker.number)
    metrics_server = MetricsServer(*metrics, reporter.exposition) if metrics and worker.first else None
    if metrics_server is not None and metrics is not None:
        with wanted("BORG_DNS_METRICS_PORT", *metrics):
            await metrics_server.start()
        log.info("the metrics are available", host=metrics_server.host, port=metrics_server.port)
    if not worker.waits:
        await _listen(server, worker)
    if keeper is not None and await keeper.load(frozenset(cells)):
        _settle_memory()
    works = [asyncio.create_task(follower.run()), asyncio.create_task(reporter.run())]
    if worker.waits:
        works.append(asyncio.create_task(_listen_later(server, worker, follower)))
    if primary is not None:
        works.append(asyncio.create_task(primary.watch()))
    if keeper is not None and worker.first:
        works.append(asyncio.create_task(keeper.run()))
    ends = {*works, asyncio.create_task(stopped.wait())}
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises the error of the task; the supervisor then restarts the process
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        if keeper is not None and worker.first:
            await keeper.close()
        await server.stop()
        if metrics_server is not None:
            metrics_server.stop()
        log.info("the resolver has stopped")


async def _listen(server: DnsServer, worker: Worker) -> None:
    with wanted("BORG_DNS_PORT", server.host, server.port):
        await server.start(tcp=worker.first, shared=worker.of > 1)
    zone = server.directory.zone
    log.info("the resolver listens", host=server.host, port=server.port, zone=zone, worker=worker.number)


async def _listen_later(server: DnsServer, worker: Worker, follower: Follower) -> None:
    """Wait until the resolver can answer, but at most `PATIENCE_S` seconds. Then open the sockets, and run until
    cancelled.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await follower.answers.wait()
    await _listen(server, worker)
    await asyncio.Event().wait()


def main() -> int:
    """Run all processes of the resolver and return the exit status."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings.production")
    import django

    django.setup()
    from django.conf import settings

    peers = Peers.read(
        networks=settings.BORG_DNS_TRANSFER, keys=settings.BORG_DNS_KEYS, secondaries=settings.BORG_DNS_SECONDARIES
    )
    processes = settings.BORG_DNS_PROCESSES
    try:
        with reserved(settings.BORG_DNS_HOST, settings.BORG_DNS_PORT) as port:
            if processes == 1:
                return _work(ALONE, peers, port)
            board = Board(processes)
            return Parent(processes, lambda one: _work(one, peers, port, board), on_end=board.ended).run()
    except NoPort as error:
        return _log_no_port(error)


def _work(worker: Worker, peers: Peers, port: int, board: Board | None = None) -> int:
    """Run one worker process of the resolver and return its exit status."""
    import uvloop
    from django.conf import settings

    from naming.following.journal_news import JournalNews

    host = settings.BORG_DNS_HOST
    directory = ZoneDirectory(
        zone=settings.BORG_ZONE,
        nameserver=nameserver_address(host),
        ttl_s=settings.BORG_DNS_TTL,
        negative_ttl_s=settings.BORG_DNS_NEGATIVE_TTL,
        reverse=read_reverse(settings.BORG_DNS_REVERSE),
        caa=read_caa(settings.BORG_DNS_CAA),
        keyring=peers.keys,
        nsid=settings.BORG_DNS_NSID.encode(),
        cookies=Cookies.from_secret(settings.SECRET_KEY),
    )
    rate = -(-settings.BORG_DNS_RATE // worker.of)  # the workers share the rate equally
    running = serve(
        directory,
        JournalNews(cells=settings.BORG_CELLS),
        host,
        port,
        peers=peers,
        limit=RateLimit(rate) if rate else None,
        snapshots=settings.BORG_DNS_SNAPSHOT,
        cells=settings.BORG_CELLS,
        stale_s=settings.BORG_DNS_STALE,
        worker=worker,
        board=board,
        metrics=(settings.BORG_DNS_METRICS_HOST, settings.BORG_DNS_METRICS_PORT)
        if settings.BORG_DNS_METRICS_PORT
        else None,
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(running)
    except NoPort as error:
        return _log_no_port(error)
    return 0


def _log_no_port(error: NoPort) -> int:
    log.error("the resolver cannot start", error=error.strerror)
    return 1


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # does not wait for a thread that waits for PostgreSQL
