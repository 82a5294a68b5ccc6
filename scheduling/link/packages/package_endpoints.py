"""The endpoints of a link shard for packages (§3.2). Only machines may use these endpoints. A machine uses the same
secret as for its link.

    GET  /packages/<digest>/sources  PackageSources: peers or the store, or when to ask again; a ticket for the peers
    GET  /packages/<digest>          the archive from the cell's store; `Range: bytes=N-`
    POST /packages/<digest>/have     PackageHave: the package is installed, and served to peers
    POST /packages/<digest>/gone     the machine no longer has the package
    POST /packages/<digest>/failed   PackageFailed: a source sent nothing or wrong content

A machine may download or announce only packages that one of its tasks uses. Peers (other machines) accept only a
machine with a ticket, which the shard signs. A limited number of threads read the archives. If all threads are busy, a
machine must ask again later. Shards announce to each other through Redis which machines have a package.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog

from borglet.messages import (
    MAX_REPORTED_PACKAGES,
    PackageFailed,
    PackageHave,
    PackageSources,
    PackageTicket,
    PeerAddress,
)
from borglet.packages import tickets
from quota.vocabulary.errors import Rejected, invalid
from scheduling.identity import authority
from scheduling.journal.sql import query
from scheduling.link.packages import swarms
from scheduling.link.packages.tracker import Peer, Tracker
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.database import Database, DatabaseAway
from scheduling.link.shard.installed_packages import InstalledIntake, readable
from scheduling.link.shard.writer import ME, Known
from scheduling.link.transport.asgi import Message, Receive, Send, begin, decoded_body, respond
from scheduling.link.views.desired import Specs
from scheduling.packages.installed import packages_held
from scheduling.packages.store import ArchiveStore
from scheduling.packages.store import store as the_store
from scheduling.spec import package_names
from scheduling.storage.files import NotThere, StoreAway

log = structlog.get_logger(__name__)
Authenticate = Callable[[str], Awaitable[Known]]  # takes the header Authorization; raises `Rejected`

# Archives that one shard reads from the store at the same time.
STREAMS = 8
# A client that takes no chunk within this time is disconnected.
STALLED_S = 60.0
TICKET_S = 600.0
MAX_BODY_BYTES = 64 * 1024
# The right of a machine to a package is cached for this time.
ENTITLED_S = 20.0
LOOK_EVERY_S = 1.0
_MAX_ENTITLED = 20_000
_PATH = re.compile(r"/packages/(sha256:[0-9a-f]{64})(?:/(sources|have|gone|failed))?")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")


@dataclass(frozen=True, slots=True)
class Entitled:
    """The permission of a machine to use a package, with the facts that the endpoints need: the package's size, and the
    machine's cell, address and rack.
    """

    cell: str
    size_bytes: int
    address: str
    rack: str


# The right of a machine without a task that uses the package.
NOTHING = Entitled("", 0, "", "")


class PackageDoors:
    """The package endpoints of a shard. `serve` handles requests to /packages/. The endpoints start and stop together
    with the shard.
    """

    def __init__(
        self,
        redis_url: str,
        connections: Mapping[int, Connection],
        *,
        rng: random.Random | None = None,
        streams: int = STREAMS,
    ) -> None:
        self._connections = connections
        self._ports: dict[int, int] = {}  # machine -> the port on which it serves packages
        self._announced: dict[int, tuple[int, str, int]] = {}  # machine -> mark of the announced report
        self._streams = streams
        self._busy = 0
        self._rng = rng or random.Random()
        self._trackers: dict[int, Tracker] = {}  # by cell
        self._exchange = swarms.SwarmExchange(redis_url, self._take_announcement)
        self._specs = Specs()
        self._holdings = InstalledIntake()
        self._known: dict[tuple[int, str], tuple[float, Entitled | None]] = {}
        self._database = Database("link-packages")
        self._readers = ThreadPoolExecutor(streams, thread_name_prefix="link-archives")

    def start(self) -> None:
        self._exchange.start()
        self._looking = asyncio.get_running_loop().create_task(self._look_forever())
        self._looking.add_done_callback(_log_failure)

    async def stop(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        await self._exchange.stop()
        await self._database.close()
        self._readers.shutdown(wait=False)

    def left(self, cell_id: int, machine_id: int) -> None:
        """Forget a machine. Call this method when the machine has no connection to this shard any more."""
        self._ports.pop(machine_id, None)
        self._announced.pop(machine_id, None)
        self._tracker(cell_id).left(machine_id)
        self._exchange.announce(swarms.Left(cell_id, machine_id))

    async def serve(self, scope: Message, receive: Receive, send: Send, authenticate: Authenticate) -> None:
        """Answer one request to /packages/. If the request cannot be answered, raises `Rejected`; the caller must
        send this error. Raises `Hangup` if the client has disconnected.
        """
        path = _PATH.fullmatch(scope["path"])
        door = (scope["method"], path.group(2) or "") if path else None
        if path is None or door not in _DOORS:
            detail = (
                f"this shard has no endpoint {scope['method']} {scope['path']}; use GET /packages/<digest>, or"
                " GET /packages/<digest>/sources"
            )
            raise Rejected("not-found", detail, status=404)
        header = dict(scope["headers"]).get(b"authorization", b"")
        machine = await authenticate(header.decode("latin-1"))
        entitled = await self._entitled(machine.machine_id, path.group(1))
        if entitled is None and door[1] != "have":
            detail = f"no task on {machine.hostname} uses package {path.group(1)}; request only packages of its tasks"
            raise Rejected("not-for-this-machine", detail, status=403)
        asked = _Request(path.group(1), machine, entitled or NOTHING, scope, receive, send)
        await _DOORS[door](self, asked)

    # -- the endpoints

    async def _sources(self, asked: _Request) -> None:
        machine, digest = asked.machine, asked.digest
        tracker = self._tracker(machine.cell_id)
        if not tracker.knows(digest):
            tracker.have(digest, await self._exchange.holders(machine.cell_id, digest))
        offer = tracker.sources(
            digest,
            machine.machine_id,
            rack=asked.entitled.rack,
            size_bytes=asked.entitled.size_bytes,
            now=time.monotonic(),
        )
        ticket = PackageTicket(digest, machine.hostname, time.time() + TICKET_S)
        answer = PackageSources(
            peers=[PeerAddress(peer.address, peer.port) for peer in offer.peers],
            store=f"/packages/{digest}" if offer.store else "",
            ticket=tickets.issue(authority.signing_key(), ticket),
            retry_after_s=offer.retry_after_s,
        )
        await respond(asked.send, 200, {"content-type": "application/json"}, msgspec.json.encode(answer))

    async def _archive(self, asked: _Request) -> None:
        if self._busy >= self._streams:
            detail = (
                f"this shard already sends {self._streams} packages, its limit; request the sources of the package"
                " again"
            )
            raise Rejected("store-busy", detail, status=503)
        self._busy += 1
        try:
            await self._stream(asked)
        finally:
            self._busy -= 1

    async def _have(self, asked: _Request) -> None:
        port = (await decoded_body(asked.receive, PackageHave, most_bytes=MAX_BODY_BYTES)).port
        if not 0 <= port < 2**16:
            raise invalid(
                "port",
                f"{port} is not a port; give 1 to 65535, or 0 if the machine sends no packages to other machines",
            )
        machine, entitled = asked.machine, asked.entitled
        # A machine sends this request once after each welcome, for one of its packages. Its reports list the others.
        if entitled is not NOTHING:
            peer = Peer(machine.machine_id, entitled.address, port, entitled.rack)
            self._announce(machine.cell_id, asked.digest, peer)
        self._ports[machine.machine_id] = port
        await respond(asked.send, 204, {})

    async def _gone(self, asked: _Request) -> None:
        machine = asked.machine
        self._tracker(machine.cell_id).gone(asked.digest, machine.machine_id)
        self._exchange.announce(swarms.PeerGone(machine.cell_id, asked.digest, machine.machine_id))
        await respond(asked.send, 204, {})

    async def _failed(self, asked: _Request) -> None:
        failure = await decoded_body(asked.receive, PackageFailed, most_bytes=MAX_BODY_BYTES)
        machine = asked.machine
        dropped = self._tracker(machine.cell_id).failed(
            asked.digest, machine.machine_id, failure.address, failure.port, failure.reason, now=time.monotonic()
        )
        if dropped is not None:
            self._exchange.announce(swarms.PeerGone(machine.cell_id, asked.digest, dropped))
        log.info(
            "a source did not deliver a package",
            machine=machine.hostname,
            digest=asked.digest,
            source=f"{failure.address}:{failure.port}" if failure.address else "store",
            reason=failure.reason[:100],
        )
        await respond(asked.send, 204, {})

    async def _stream(self, asked: _Request) -> None:
        loop = asyncio.get_running_loop()
        size, store = await loop.run_in_executor(self._readers, _sized, asked)
        first, last = asked.range(size)
        reading = _Reading(store, asked, first)
        gone = asyncio.ensure_future(asked.gone())
        try:
            chunk = await loop.run_in_executor(self._readers, reading.next)
            await asked.begin(first, last, size)
            left = last + 1 - first
            while chunk and left and not gone.done():
                chunk = chunk[:left]
                left -= len(chunk)
                body = {"type": "http.response.body", "body": chunk, "more_body": left > 0}
                async with asyncio.timeout(STALLED_S):
                    await asked.send(body)
                chunk = await loop.run_in_executor(self._readers, reading.next) if left else b""
            if left:
                # The body is shorter than its Content-Length, so the machine detects the error.
                log.warning("an archive was not sent completely", machine=asked.machine.hostname, digest=asked.digest)
        finally:
            gone.cancel()
            await loop.run_in_executor(self._readers, reading.close)

    # -- rights

    async def _entitled(self, machine_id: int, digest: str) -> Entitled | None:
        """Return the permission of a machine to use a package. Return None if no task of the machine uses the
        package. Raises `Rejected` if the database cannot be reached.
        """
        key = machine_id, digest
        until, found = self._known.get(key, (0.0, None))
        if time.monotonic() >= until:
            try:
                found = (await self._database(self._look_up, machine_id, [digest])).get(digest)
            except DatabaseAway as error:
                detail = "the cell's database is unreachable; try again later"
                raise Rejected("database-away", detail, status=503) from error
            if len(self._known) >= _MAX_ENTITLED:
                self._known.clear()
            # A task may be placed at any moment, so only positive results are cached.
            if found is not None:
                self._known[key] = time.monotonic() + ENTITLED_S, found
        return found

    def _look_up(self, machine_id: int, digests: Sequence[str]) -> dict[str, Entitled]:
        """Return the permissions of a machine to use the packages `digests`, by digest. Packages that no task of the
        machine uses are left out. Makes at most two queries.
        """
        rows = query(
            "SELECT t.job_id, t.index, t.spec_version, s.packages::text, host(m.address), m.rack, c.name,"
            " c.extra_resources"
            " FROM scheduling_task AS t"
            " JOIN scheduling_jobspec AS s ON s.job_id = t.job_id AND s.version = t.spec_version"
            " JOIN scheduling_machine AS m ON m.id = t.machine_id"
            " JOIN scheduling_cell AS c ON c.id = m.cell_id"
            " WHERE t.machine_id = %s AND t.state = 'running' AND jsonb_exists_any(s.packages, %s)",
            [machine_id, list(digests)],
        )
        specs = self._specs.get({(row[0], row[2]) for row in rows}, extra=tuple(rows[0][-1]) if rows else ())
        found: dict[str, Entitled] = {}
        for job_id, index, version, packages, address, rack, cell, _ in rows:
            read = specs.get((job_id, version))
            if read is None or index >= read.tasks:
                continue
            known = msgspec.json.decode(packages)
            for text in read.task(index).packages:
                digest = package_names.parse(text).digest
                if digest in known and digest in digests:
                    found[digest] = Entitled(cell, known[digest]["size_bytes"], address, rack)
        return found

    # -- installed packages

    def _announce(self, cell_id: int, digest: str, peer: Peer) -> None:
        self._tracker(cell_id).have(digest, [peer])
        self._exchange.announce(swarms.Have(cell_id, digest, peer))

    async def _look_forever(self) -> None:
        """Repeatedly announce to all shards the packages that machines report as installed. This is needed because a
        machine that already has a package sends no request about it.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for machine_id, port in list(self._ports.items()):
                held = self._connections.get(machine_id)
                if port and held is not None and held.last_report is not None and held.last_report.wire.packages:
                    installed = held.last_report.wire.packages
                    mark = held.session, held.generation, len(installed)
                    if self._announced.get(machine_id) != mark:
                        self._announced[machine_id] = mark
                        await self._announce_all(held.cell_id, machine_id, port, installed)
            for cell_id, reports in self._holdings.due(self._connections, time.monotonic()).items():
                try:
                    await self._database(partial(packages_held, principal=ME), cell_id, readable(reports))
                    self._holdings.written(reports)
                except DatabaseAway as error:
                    log.warning(
                        "the database is unreachable; the lists of packages on machines will be stored when it answers",
                        error=str(error),
                    )

    async def _announce_all(self, cell_id: int, machine_id: int, port: int, installed: Sequence[str]) -> None:
        """Announce to all shards that a machine has certain packages. `installed`: the digests of its packages, of
        which only those that its tasks use are announced. `port`: the port of the machine's package server.
        """
        digests = [text for text in installed[:MAX_REPORTED_PACKAGES] if package_names.is_digest(text)]
        try:
            found = await self._database(self._look_up, machine_id, digests)
        except DatabaseAway:
            self._announced.pop(machine_id, None)  # so that the next round tries again
            return
        for digest, entitled in found.items():
            self._announce(cell_id, digest, Peer(machine_id, entitled.address, port, entitled.rack))

    # -- announcements of other shards

    def _take_announcement(self, news: swarms.Announcement) -> None:
        tracker = self._tracker(news.cell_id)
        if isinstance(news, swarms.Have):
            if tracker.knows(news.digest):
                tracker.have(news.digest, [news.peer])
        elif isinstance(news, swarms.PeerGone):
            tracker.gone(news.digest, news.machine_id)
        else:
            tracker.left(news.machine_id)

    def _tracker(self, cell_id: int) -> Tracker:
        if cell_id not in self._trackers:
            self._trackers[cell_id] = Tracker(rng=self._rng, store_slots=self._streams)
        return self._trackers[cell_id]


@dataclass(frozen=True, slots=True)
class _Request:
    digest: str
    machine: Known
    entitled: Entitled
    scope: Message
    receive: Receive
    send: Send

    def range(self, size: int) -> tuple[int, int]:
        """Return the positions of the first and the last requested byte. Raises `Rejected` if the range is not
        supported.
        """
        given = dict(self.scope["headers"]).get(b"range", b"").decode("latin-1")
        if not given:
            return 0, size - 1
        found = _RANGE.fullmatch(given)
        first, last = (int(found[1]), min(int(found[2] or size), size - 1)) if found else (size, 0)
        if first > last:
            detail = f"the Range header {given[:50]!r} is not supported; give bytes=N- with N below {size}"
            raise Rejected("range-not-satisfiable", detail, fields={"Range": detail}, status=416)
        return first, last

    async def begin(self, first: int, last: int, size: int) -> None:
        """Send the HTTP headers of the answer. `size`: the size of the archive in bytes. `first`, `last`: the
        positions of the first and the last byte to send.
        """
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(last + 1 - first),
            "accept-ranges": "bytes",
        }
        part = b"range" in dict(self.scope["headers"])
        if part:
            headers["content-range"] = f"bytes {first}-{last}/{size}"
        await begin(self.send, 206 if part else 200, headers)

    async def gone(self) -> None:
        """Wait until the client closes the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class _Reading:
    """An open archive that is being read. Its methods block, so call them only in the thread pool for readers, one at
    a time.
    """

    def __init__(self, store: ArchiveStore, asked: _Request, offset: int) -> None:
        self._stack = contextlib.ExitStack()
        self._open = lambda: store.read(asked.entitled.cell, asked.digest, offset=offset)
        self._chunks: Iterator[bytes] | None = None

    def next(self) -> bytes:
        """Return the next chunk, or b"" at the end. Raises `Rejected` if the archive cannot be read."""
        with _translated_errors():
            if self._chunks is None:
                self._chunks = self._stack.enter_context(self._open())  # type: ignore[no-untyped-call]
            return next(self._chunks, b"")

    def close(self) -> None:
        self._stack.close()


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log the error of a failed asyncio task. The task is the one that announces the packages of machines."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("this shard no longer records which packages machines have; restart it", exc_info=error)


def _sized(asked: _Request) -> tuple[int, ArchiveStore]:
    """Return the size of the archive in bytes, and its store. Raises `Rejected` if the archive is not in the store or
    the store cannot be reached.
    """
    with _translated_errors():
        store = the_store()
        size = store.size(asked.entitled.cell, asked.digest)
        if size is None:
            raise NotThere(asked.digest)
    return size, store


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """If the package store raises an error in the `with` block, raise `Rejected` instead."""
    try:
        yield
    except NotThere as error:
        log.error("a package is not in the store", digest=str(error))
        detail = f"the cell's package store does not contain the package ({error}); ask an SRE, or upload it again"
        raise Rejected("not-found", detail, status=404) from error
    except StoreAway as error:
        log.error("the package store is unreachable", error=str(error))
        detail = "the cell's package store is unreachable; try again later"
        raise Rejected("store-away", detail, status=503) from error


_DOORS: dict[tuple[str, str], Callable[[PackageDoors, _Request], Awaitable[None]]] = {
    ("GET", "sources"): PackageDoors._sources,
    ("GET", ""): PackageDoors._archive,
    ("POST", "have"): PackageDoors._have,
    ("POST", "gone"): PackageDoors._gone,
    ("POST", "failed"): PackageDoors._failed,
}
