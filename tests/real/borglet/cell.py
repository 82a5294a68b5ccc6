"""The cell's side for tests of a Borglet, on loopback: an authority, a server to join at, and a link shard.

A link shard is the server to which machines connect and report.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from borglet.messages import (
    PROTOCOL,
    Desired,
    Hello,
    JoinAnswer,
    JoinRequest,
    LogRequest,
    Poll,
    Refusal,
    Report,
    Welcome,
    WireReport,
    common_protocol,
    decode_to_shard,
    encode,
    opened,
)

BOUND_S = 25.0
SECRET = "s3cret"


@dataclass(frozen=True)
class Authority:
    """A certificate authority with one server certificate for 127.0.0.1."""

    pem: str
    fingerprint: str
    server_file: Path

    def server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_file)
        return context

    def token(self) -> str:
        return f"borg1.t1.{SECRET}.{self.fingerprint}"


def make_authority(folder: Path) -> Authority:
    folder.mkdir(parents=True, exist_ok=True)
    now = dt.datetime.now(dt.UTC)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def certificate(name: x509.Name, public: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(ca_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        return builder.sign(ca_key, hashes.SHA256())

    ca = certificate(ca_name, ca_key.public_key(), authority=True)
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "link")])
    server = certificate(server_name, key.public_key(), authority=False)
    file = folder / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + server.public_bytes(serialization.Encoding.PEM))
    pem = ca.public_bytes(serialization.Encoding.PEM).decode()
    return Authority(pem, ca.fingerprint(hashes.SHA256()).hex(), file)


# -- joining


@dataclass
class JoinServer:
    """A server that lets any machine with a token join, unless `problem` (status, fields) is set.

    It records the requests, their paths and the connections.
    """

    url: str
    requests: list[JoinRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)
    problem: tuple[int, dict[str, object]] | None = None


@contextlib.contextmanager
def join_server(authority: Authority, *, shown: Authority | None = None) -> Iterator[JoinServer]:
    """Run a server at which machines join a cell, over TLS, with a certificate of `authority`.

    `shown`: the authority that `/authority.pem` returns, if not `authority`.
    """
    told: JoinServer

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            told.paths.append(self.path)
            found = self.path == "/authority.pem"
            self.answer(200 if found else 404, (shown or authority).pem.encode() if found else b"no")

        def do_POST(self) -> None:
            told.paths.append(self.path)
            told.connections.add(self.client_address)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if told.problem is not None:
                self.answer(told.problem[0], json.dumps(told.problem[1]).encode())
                return
            many = self.path == "/join:bulk"
            requests = (
                msgspec.json.decode(body, type=list[JoinRequest])
                if many
                else [msgspec.json.decode(body, type=JoinRequest)]
            )
            told.requests += requests
            answers = [JoinAnswer("aa", one.hostname, f"of-{one.hostname}", authority.pem) for one in requests]
            self.answer(200, msgspec.json.encode(answers if many else answers[0]))

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Print no line per request."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = authority.server_context().wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda request, client: None  # type: ignore[method-assign]
    told = JoinServer(f"https://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# -- a shard


class Conversation:
    """The shard's side of one session with one machine."""

    def __init__(self, socket: ServerConnection, hello: Hello) -> None:
        self.socket, self.hello = socket, hello
        self.sequence = 0
        self.session = 0

    async def ask(
        self, wanted: Desired | None = None, *, hold_s: float = 0.0, logs: list[LogRequest] | None = None
    ) -> None:
        self.sequence += 1
        await self.socket.send(encode(Poll(self.sequence, hold_s, wanted, logs or [])), text=True)

    async def hear(self) -> Report:
        async with asyncio.timeout(BOUND_S):
            message = decode_to_shard(await self.socket.recv())
        assert isinstance(message, WireReport)
        return opened(message)

    async def poll(
        self, wanted: Desired | None = None, *, hold_s: float = 0.0, logs: list[LogRequest] | None = None
    ) -> Report:
        await self.ask(wanted, hold_s=hold_s, logs=logs)
        return await self.hear()

    async def until(self, holds: Callable[[Report], bool], wanted: Desired | None = None) -> Report:
        """Poll the machine until its report satisfies `holds`, and return that report. `wanted` goes with the first
        poll.
        """
        async with asyncio.timeout(BOUND_S):
            report = await self.poll(wanted)
            while not holds(report):
                report = await self.poll(hold_s=BOUND_S)
        return report


class Shard:
    """A link shard, the server to which machines connect. It admits every machine.

    Each session is put as a `Conversation` into `arrivals`.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.arrivals: asyncio.Queue[Conversation] = asyncio.Queue()
        self.credentials: list[str] = []
        self.refusal: Refusal | None = None
        self.first_frame: bytes | str | None = None  # sent in place of a welcome
        self.refuse_upgrade = False
        self.closed: list[tuple[int | None, str | None]] = []
        self.sessions = 0
        self.protocol = PROTOCOL  # the newest version that the shard supports
        self.greeted = 0  # number of hellos that arrived
        self.welcoming = asyncio.Event()  # cleared: hellos wait for their welcome
        self.welcoming.set()

    async def arrival(self) -> Conversation:
        async with asyncio.timeout(BOUND_S):
            return await self.arrivals.get()

    def _upgrade(self, socket: ServerConnection, request: Request) -> Response | None:
        self.credentials.append(request.headers.get("Authorization", ""))
        if request.path != "/link":
            return socket.respond(404, "no such path\n")  # type: ignore[arg-type]
        return socket.respond(401, "wrong secret\n") if self.refuse_upgrade else None  # type: ignore[arg-type]

    async def _serve(self, socket: ServerConnection) -> None:
        hello = decode_to_shard(await socket.recv())
        assert isinstance(hello, Hello)
        self.greeted += 1
        await self.welcoming.wait()
        if self.refusal is not None:
            await socket.send(encode(self.refusal), text=True)
            return
        conversation = Conversation(socket, hello)
        self.sessions += 1
        conversation.session = self.sessions
        welcome = encode(Welcome(min(common_protocol(hello) or 0, self.protocol), self.sessions, "aa", "h1"))
        await socket.send(self.first_frame if self.first_frame is not None else welcome, text=True)
        self.arrivals.put_nowait(conversation)
        await socket.wait_closed()
        self.closed.append((socket.close_code, socket.close_reason))


@contextlib.asynccontextmanager
async def running_shard(authority: Authority, *, protocol: int = PROTOCOL) -> AsyncIterator[Shard]:
    """Run a link shard, the server to which machines connect, on loopback.

    `protocol`: the newest version of the protocol that it supports.
    """
    shard = Shard("")
    shard.protocol = protocol
    context = authority.server_context()
    async with serve(
        shard._serve,
        "127.0.0.1",
        0,
        ssl=context,
        process_request=shard._upgrade,
        compression=None,
        close_timeout=0.5,
        ping_interval=None,
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        shard.url = f"https://127.0.0.1:{port}"
        yield shard
