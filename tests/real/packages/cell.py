"""The cell's side of package downloads for tests: a link that names sources, and a store, over real HTTPS."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from borglet.identity.credentials import Credentials
from borglet.identity.saved_state import Identity
from borglet.messages import PackageRef, PackageTicket
from borglet.packages.archives.build import pack
from borglet.packages.archives.unpacking import TAR_GZIP
from borglet.packages.fetch import Fetcher, FetchSettings
from borglet.packages.installing import PackageManager, PackageSettings
from borglet.packages.peers import PeerServer, PeerSettings
from borglet.packages.source_choice import FetchPatience
from borglet.packages.sources import LinkSources
from borglet.packages.store import PackageStore
from borglet.packages.tickets import issue
from tests.doubles import MemoryKeeper
from tests.real.borglet.cell import Authority

HASTY = FetchSettings(
    connect_timeout_s=1.0, silence_s=1.0, patience=FetchPatience(rounds=3, patience_s=20.0, pause_s=0.01)
)
KEY = ec.generate_private_key(ec.SECP256R1())


def packed(folder: Path, name: str = "app", **files: bytes) -> tuple[PackageRef, bytes]:
    """Pack files into a package, and return its reference and its archive."""
    source = folder / f"source-{name}"
    source.mkdir(parents=True)
    for file, content in files.items():
        (source / file).write_bytes(content)
    out = io.BytesIO()
    found = pack(source, out)
    return PackageRef(f"{name}@v1", found.digest, found.size_bytes, TAR_GZIP), out.getvalue()


Offer = Callable[[str, str], list[tuple[str, int]]]


@dataclass
class Link:
    """A test double for the link, which names the sources of packages to Borglets and records what they report.

    `offer(digest, hostname)` returns the peers to name, as (address, port). `store_busy` and `store_at_once` limit the
    store.
    """

    url: str
    archives: dict[str, bytes]
    key: ec.EllipticCurvePrivateKey
    offer: Offer | None = None
    store_busy: bool = False
    have: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)  # digest -> machine -> address
    gone: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str, int, str]] = field(default_factory=list)
    served: list[tuple[str, int]] = field(default_factory=list)  # what the store served: digest, first byte
    asked: int = 0
    store_at_once: int = 1_000_000
    serving: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    listening: Callable[[str], None] = lambda what: None  # called with the kind of a report when it arrives

    def peers(self, digest: str, machine: str) -> list[tuple[str, int]]:
        if self.offer is not None:
            return self.offer(digest, machine)
        known = [place for name, place in self.have.get(digest, {}).items() if name != machine and place[1]]
        return random.sample(known, min(3, len(known)))

    def ticket(self, digest: str, machine: str = "m") -> str:
        return issue(self.key, PackageTicket(digest, machine, time.time() + 60))


_PATH = re.compile(r"/packages/(sha256:[0-9a-f]{64})(?:/(sources|have|gone|failed))?\Z")


def _handler(link: Link) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def machine(self) -> str:
            scheme, _, credential = self.headers.get("Authorization", "").partition(" ")
            hostname, _, secret = credential.partition(":")
            return hostname if (scheme, secret) == ("Bearer", "secret") else ""

        def do_GET(self) -> None:
            match = _PATH.match(self.path)
            if match is None or not self.machine():
                self.answer(404 if match is None else 401, b"no")
                return
            digest, what = match.groups()
            if digest not in link.archives:
                self.answer(404, b"no such package")
            elif what == "sources":
                with link.lock:
                    link.asked += 1
                    peers = link.peers(digest, self.machine())
                    busy = link.store_busy or link.serving >= link.store_at_once
                    link.serving += not busy and not peers
                body = {
                    "peers": [{"address": address, "port": port} for address, port in peers],
                    "store": "" if busy or (peers and link.store_at_once < 1_000_000) else f"/packages/{digest}",
                    "ticket": link.ticket(digest, self.machine()),
                    "retry_after_s": 0.05 if busy else 0.0,
                }
                self.answer(200, json.dumps(body).encode())
            else:
                found = re.match(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
                offset = int(found.group(1)) if found else 0
                link.served.append((digest, offset))
                self.answer(206 if offset else 200, link.archives[digest][offset:])

        def do_POST(self) -> None:
            match = _PATH.match(self.path)
            assert match is not None
            assert self.machine()
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            told = json.loads(body) if body else {}
            digest, what = match.groups()
            link.listening(what)
            with link.lock:
                if what == "have":
                    machine = self.machine()
                    address = machine if re.fullmatch(r"[0-9.]+", machine) else "127.0.0.1"
                    link.have.setdefault(digest, {})[machine] = (address, told["port"])
                    link.serving = 0
                elif what == "gone":
                    link.gone.append((digest, self.machine()))
                else:
                    link.failed.append((digest, told["address"], told["port"], told["reason"]))
            self.answer(204)

    return Handler


@contextlib.contextmanager
def link_of(authority: Authority, archives: dict[str, bytes]) -> Iterator[Link]:
    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    link = Link(f"https://127.0.0.1:{server.server_address[1]}", archives, KEY)
    server.RequestHandlerClass = _handler(link)
    server.socket = _context(authority).wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield link
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _context(authority: Authority) -> ssl.SSLContext:
    return authority.server_context()


@dataclass
class Machine:
    manager: PackageManager
    store: PackageStore
    in_use: set[str]
    peers: PeerServer | None = None

    async def close(self) -> None:
        if self.peers is not None:
            await self.peers.close()
        await self.manager.close()


async def machine_of(
    link: Link,
    authority: Authority,
    home: Path,
    *,
    hostname: str = "m1",
    serve: str = "",
    boot: str = "boot-1",
    settings: PackageSettings = PackageSettings(keep_free_bytes=0),
    fetching: FetchSettings = HASTY,
    uploads: PeerSettings = PeerSettings(),
    store: PackageStore | None = None,
    wait: bool = True,
) -> Machine:
    """Return the package manager of one Borglet, with its store, which downloads through `link`.

    `serve`: the address at which it serves other machines, or none. `wait`: whether to wait until the first check of
    the disk has ended.
    """
    store = store or PackageStore(home, boot_id=boot)
    credentials = Credentials(Identity(hostname, "aa", "secret"), authority.pem, MemoryKeeper())
    sources = LinkSources(link.url, credentials)
    fetcher = Fetcher(sources, settings=fetching)
    manager = PackageManager(store, sources, fetcher, now=time.time, settings=settings)
    machine = Machine(manager, store, set())
    manager.bind(lambda: machine.in_use)
    if serve:
        machine.peers = PeerServer(manager.archive, lambda: [KEY.public_key()], now=time.time, settings=uploads)
        manager.port = await machine.peers.open(serve, 0)
    manager.open()
    if wait:
        await manager.checked()
    return machine
