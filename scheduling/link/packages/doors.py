"""The endpoints of a link shard for packages (§3.2). Only machines may use them, with the credential of their link.

    GET  /packages/<digest>/sources  PackageSources: peers to try, or the store, or when to ask again; and a ticket
    GET  /packages/<digest>          the archive from the cell's store; `Range: bytes=N-`
    POST /packages/<digest>/have     PackageHave: the package is installed, and served to peers
    POST /packages/<digest>/gone     the machine no longer has the package
    POST /packages/<digest>/failed   PackageFailed: a source that did not deliver

A machine may download or announce only packages that a task assigned to it uses. So a stolen credential gives access
only to the packages of the machine's own tasks. A limited number of threads read the archives. If all are busy, a
machine must ask again later, when it will find peers. Shards announce installed packages to each other through Redis,
where messages may be lost.
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
from typing import Any

import msgspec
import structlog
from django.db import InterfaceError, OperationalError, close_old_connections, connection

from borglet.messages import (
    MAX_REPORTED_PACKAGES,
    PackageFailed,
    PackageHave,
    PackageSources,
    PackageTicket,
    PeerAddress,
)
from borglet.packages import tickets
from quota.vocabulary.errors import Rejected
from scheduling.identity import authority
from scheduling.journal.sql import query
from scheduling.link.packages import swarms
from scheduling.link.packages.tracker import Peer, Tracker
from scheduling.link.shard.connection import Connection
from scheduling.link.shard.installed_packages import InstalledIntake, readable
from scheduling.link.shard.writer import ME, Known
from scheduling.link.views.desired import Specs
from scheduling.packages.choice import store as the_store
from scheduling.packages.installed import InstalledReport, packages_held
from scheduling.packages.store import ArchiveStore, NotThere, StoreAway
from scheduling.spec import package_names

log = structlog.get_logger(__name__)
Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Authenticate = Callable[[str], Awaitable[Known]]  # the header Authorization -> the machine; raises `Rejected`

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
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PATH = re.compile(r"/packages/(sha256:[0-9a-f]{64})(?:/(sources|have|gone|failed))?")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})?")


@dataclass(frozen=True, slots=True)
class Entitled:
    """The packages that a machine may have, and its location."""

    cell: str
    size_bytes: int
    address: str
    rack: str


# For a machine without a task that uses the package.
NOTHING = Entitled("", 0, "", "")


class PackageDoors:
    """The package endpoints of a shard. `start` and `stop` with the shard; `serve` handles requests below
    /packages/.
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
        self._ports: dict[int, int] = {}  # ports on which machines serve, as reported on this connection
        self._counted: dict[int, tuple[int, str, int]] = {}  # machine -> the report that was counted
        self._streams = streams
        self._busy = 0
        self._rng = rng or random.Random()
        self._trackers: dict[int, Tracker] = {}  # by cell
        self._news = swarms.SwarmExchange(redis_url, self._hear)
        self._specs = Specs()
        self._holdings = InstalledIntake()
        self._known: dict[tuple[int, str], tuple[float, Entitled | None]] = {}
        self._database = ThreadPoolExecutor(1, thread_name_prefix="link-packages")
        self._readers = ThreadPoolExecutor(streams, thread_name_prefix="link-archives")

    def start(self) -> None:
        self._news.start()
        self._looking = asyncio.get_running_loop().create_task(self._look_forever())
        self._looking.add_done_callback(_log_failure)

    async def stop(self) -> None:
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        await self._news.stop()
        await asyncio.get_running_loop().run_in_executor(self._database, _close_connection)
        self._database.shutdown()
        self._readers.shutdown(wait=False)

    def left(self, cell_id: int, machine_id: int) -> None:
        """A machine's connection ended, and no newer one of it is here."""
        self._ports.pop(machine_id, None)
        self._counted.pop(machine_id, None)
        self._tracker(cell_id).left(machine_id)
        self._news.announce(swarms.Left(cell_id, machine_id))

    async def serve(self, scope: Message, receive: Receive, send: Send, authenticate: Authenticate) -> None:
        """Answer one request. Raises `Rejected` as long as nothing has been sent."""
        path = _PATH.fullmatch(scope["path"])
        door = (scope["method"], path.group(2) or "") if path else None
        if path is None or door not in _DOORS:
            raise Rejected("not-found", f"there is no {scope['method']} {scope['path']} here", status=404)
        header = dict(scope["headers"]).get(b"authorization", b"")
        machine = await authenticate(header.decode("latin-1"))
        entitled = await self._entitled(machine.machine_id, path.group(1))
        if entitled is None and door[1] != "have":
            detail = f"no task on {machine.hostname} uses the package {path.group(1)}"
            raise Rejected("not-for-this-machine", detail, status=403)
        asked = _Request(path.group(1), machine, entitled or NOTHING, scope, receive, send)
        await _DOORS[door](self, asked)

    # -- doors

    async def _sources(self, asked: _Request) -> None:
        machine, digest = asked.machine, asked.digest
        tracker = self._tracker(machine.cell_id)
        if not tracker.knows(digest):
            tracker.have(digest, await self._news.holders(machine.cell_id, digest))
        offer = tracker.sources(
            digest,
            machine.machine_id,
            rack=asked.entitled.rack,
            size_bytes=asked.entitled.size_bytes,
            now=time.monotonic(),
        )
        ticket = PackageTicket(digest, machine.hostname, time.time() + TICKET_S)
        await asked.answer(
            PackageSources(
                peers=[PeerAddress(peer.address, peer.port) for peer in offer.peers],
                store=f"/packages/{digest}" if offer.store else "",
                ticket=tickets.issue(authority.signing_key(), ticket),
                retry_after_s=offer.retry_after_s,
            )
        )

    async def _archive(self, asked: _Request) -> None:
        if self._busy >= self._streams:
            detail = "the store has reached its limit of transfers; ask for sources again"
            raise Rejected("store-busy", detail, status=503)
        self._busy += 1
        try:
            await self._stream(asked)
        finally:
            self._busy -= 1

    async def _have(self, asked: _Request) -> None:
        port = asked.decoded(await asked.body(), PackageHave).port
        if not 0 <= port < 2**16:
            detail = f"{port} is not a port; give 1 to 65535, or 0 to serve no peers"
            raise Rejected("invalid", f"port: {detail}", fields={"port": detail})
        machine, entitled = asked.machine, asked.entitled
        # A machine sends this once after each welcome, for any package that it has. Its reports list the others.
        if entitled is not NOTHING:
            peer = Peer(machine.machine_id, entitled.address, port, entitled.rack)
            self._offer(machine.cell_id, asked.digest, peer)
        self._ports[machine.machine_id] = port
        await asked.answer(None)

    async def _gone(self, asked: _Request) -> None:
        machine = asked.machine
        self._tracker(machine.cell_id).gone(asked.digest, machine.machine_id)
        self._news.announce(swarms.PeerGone(machine.cell_id, asked.digest, machine.machine_id))
        await asked.answer(None)

    async def _failed(self, asked: _Request) -> None:
        detail = asked.decoded(await asked.body(), PackageFailed)
        machine = asked.machine
        dropped = self._tracker(machine.cell_id).failed(
            asked.digest, machine.machine_id, detail.address, detail.port, detail.reason, now=time.monotonic()
        )
        if dropped is not None:
            self._news.announce(swarms.PeerGone(machine.cell_id, asked.digest, dropped))
        log.info(
            "package not delivered",
            machine=machine.hostname,
            digest=asked.digest,
            source=f"{detail.address}:{detail.port}" if detail.address else "store",
            reason=detail.reason[:100],
        )
        await asked.answer(None)

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
                log.warning("archive not delivered whole", machine=asked.machine.hostname, digest=asked.digest)
        finally:
            gone.cancel()
            await loop.run_in_executor(self._readers, reading.close)

    # -- rights

    async def _entitled(self, machine_id: int, digest: str) -> Entitled | None:
        """Return the right of a machine to a package; None if no task placed on it uses it. Raises `Rejected`."""
        key = machine_id, digest
        until, found = self._known.get(key, (0.0, None))
        if time.monotonic() >= until:
            loop = asyncio.get_running_loop()
            looked_up = await loop.run_in_executor(self._database, self._look_up, machine_id, [digest])
            found = looked_up.get(digest)
            if len(self._known) >= _MAX_ENTITLED:
                self._known.clear()
            # A task may be placed at any moment, so only positive results are cached.
            if found is not None:
                self._known[key] = time.monotonic() + ENTITLED_S, found
        return found

    def _look_up(self, machine_id: int, digests: Sequence[str]) -> dict[str, Entitled]:
        """Return those of the packages that tasks placed on the machine use. Makes at most two queries, in the database
        thread of this object. Raises `Rejected`.
        """
        try:
            close_old_connections()
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
            extra = rows[0][-1] if rows else ()
            specs = self._specs.get({(row[0], row[2]) for row in rows}, extra=tuple(extra))
        except (OperationalError, InterfaceError) as error:
            raise Rejected(
                "database-away", "the cell's database is unreachable; try again later", status=503
            ) from error
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

    # -- what machines have

    def _offer(self, cell_id: int, digest: str, peer: Peer) -> None:
        self._tracker(cell_id).have(digest, [peer])
        self._news.announce(swarms.Have(cell_id, digest, peer))

    async def _look_forever(self) -> None:
        """Read installed packages from reports, because a machine that reconnects, or already has the packages of a new
        task, does not ask for sources.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for machine_id, port in list(self._ports.items()):
                held = self._connections.get(machine_id)
                if port and held is not None and held.said is not None and held.said.wire.packages:
                    installed = held.said.wire.packages
                    looked_at = held.session, held.generation, len(installed)
                    if self._counted.get(machine_id) != looked_at:
                        self._counted[machine_id] = looked_at
                        await self._count(held.cell_id, machine_id, port, installed)
            for cell_id, detail in self._holdings.due(self._connections, time.monotonic()).items():
                await self._store_packages(cell_id, detail)

    async def _store_packages(self, cell_id: int, told: Mapping[int, InstalledReport]) -> None:
        """Store which packages machines have, for the scheduler. If PostgreSQL is away, they are stored later."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._database, _hold, cell_id, readable(told))
        except (OperationalError, InterfaceError) as error:
            log.warning("database unreachable: machines' packages are stored later", error=str(error).strip())
            return
        self._holdings.taken(told)

    async def _count(self, cell_id: int, machine_id: int, port: int, installed: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        try:
            digests = [text for text in installed[:MAX_REPORTED_PACKAGES] if _DIGEST.fullmatch(text)]
            found = await loop.run_in_executor(self._database, self._look_up, machine_id, digests)
        except Rejected:
            self._counted.pop(machine_id, None)  # the database is away: once more, later
            return
        for digest, entitled in found.items():
            self._offer(cell_id, digest, Peer(machine_id, entitled.address, port, entitled.rack))

    # -- what others tell

    def _hear(self, news: swarms.Told) -> None:
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

    async def body(self) -> bytes:
        """Raises `Rejected`."""
        parts = []
        size = 0
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Rejected("incomplete", "the request ended before its body", status=400)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise Rejected("too-large", f"more than {MAX_BODY_BYTES} bytes", status=413)
            if not message.get("more_body", False):
                return b"".join(parts)

    def decoded(self, body: bytes, kind: type[Any]) -> Any:
        """Raises `Rejected`."""
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Rejected("invalid", f"body: {error}", fields={"body": str(error)}) from error

    async def answer(self, value: Any) -> None:
        body = msgspec.json.encode(value) if value is not None else b""
        headers = [(b"content-length", str(len(body)).encode())]
        if value is not None:
            headers.append((b"content-type", b"application/json"))
        status = 200 if value is not None else 204
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def range(self, size: int) -> tuple[int, int]:
        """Return the first and last requested byte. Raises `Rejected`."""
        given = dict(self.scope["headers"]).get(b"range", b"").decode("latin-1")
        if not given:
            return 0, size - 1
        found = _RANGE.fullmatch(given)
        first, last = (int(found[1]), min(int(found[2] or size), size - 1)) if found else (size, 0)
        if first > last:
            detail = f"{given[:50]!r} is not supported; give bytes=N- with N below {size}"
            raise Rejected("range-not-satisfiable", detail, fields={"Range": detail}, status=416)
        return first, last

    async def begin(self, first: int, last: int, size: int) -> None:
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(last + 1 - first).encode()),
            (b"accept-ranges", b"bytes"),
        ]
        part = b"range" in dict(self.scope["headers"])
        if part:
            headers.append((b"content-range", f"bytes {first}-{last}/{size}".encode()))
        await self.send({"type": "http.response.start", "status": 206 if part else 200, "headers": headers})

    async def gone(self) -> None:
        """Wait until the other side has closed the connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


class _Reading:
    """An archive being read; its methods belong into a reader's thread, one at a time."""

    def __init__(self, store: ArchiveStore, asked: _Request, offset: int) -> None:
        self._stack = contextlib.ExitStack()
        self._open = lambda: store.read(asked.entitled.cell, asked.digest, offset=offset)
        self._chunks: Iterator[bytes] | None = None

    def next(self) -> bytes:
        """The next chunk, empty at the end. Raises `Rejected`."""
        with _translated_errors():
            if self._chunks is None:
                self._chunks = self._stack.enter_context(self._open())  # type: ignore[no-untyped-call]
            return next(self._chunks, b"")

    def close(self) -> None:
        self._stack.close()


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log the internal error that ended a loop which should run for ever."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the record of which packages machines have is not updated any more", exc_info=error)


def _hold(cell_id: int, told: Mapping[int, InstalledReport]) -> None:
    """Store holders in the doors' own thread."""
    close_old_connections()
    packages_held(cell_id, told, principal=ME)


def _close_connection() -> None:
    """Close the database connection of the calling thread."""
    connection.close()


def _sized(asked: _Request) -> tuple[int, ArchiveStore]:
    """Raises `Rejected`."""
    with _translated_errors():
        store = the_store()
        size = store.size(asked.entitled.cell, asked.digest)
        if size is None:
            raise NotThere(asked.digest)
    return size, store


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """The store's troubles as rejections."""
    try:
        yield
    except NotThere as error:
        log.error("package is not in the store", digest=str(error))
        raise Rejected("not-found", f"{error} is not in the cell's store; ask an SRE", status=404) from error
    except StoreAway as error:
        log.error("package store unreachable", error=str(error))
        raise Rejected(
            "store-away", "the cell's package store cannot be reached; try again later", status=503
        ) from error


_DOORS: dict[tuple[str, str], Callable[[PackageDoors, _Request], Awaitable[None]]] = {
    ("GET", "sources"): PackageDoors._sources,
    ("GET", ""): PackageDoors._archive,
    ("POST", "have"): PackageDoors._have,
    ("POST", "gone"): PackageDoors._gone,
    ("POST", "failed"): PackageDoors._failed,
}
