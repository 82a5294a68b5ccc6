"""The server of a link shard: uvicorn with a TLS certificate, which is renewed while the server runs."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from typing import cast
from urllib.parse import urlsplit

import structlog
import uvicorn
from django.conf import settings
from websockets.protocol import State
from websockets.server import ServerProtocol

from borglet.messages import MAX_FRAME_BYTES
from scheduling.identity.authority import AuthorityBroken
from scheduling.link.app import LinkApp
from scheduling.link.packages.package_endpoints import PackageDoors
from scheduling.link.shard.redis_bridge import RedisBridge
from scheduling.link.shard.shard import Shard
from scheduling.link.transport.accepting import Acceptor, LoopProgress, listening
from scheduling.link.transport.certificate import server_certificate
from scheduling.link.transport.pulse import pulse_forever
from scheduling.link.transport.websocket import Host, LinkDoor, LinkHttp

log = structlog.get_logger(__name__)

# The certificate is checked this often. New connections use a new certificate after this time at the latest.
RENEWAL_CHECK_S = 60.0


class LinkServer(uvicorn.Server):
    """A uvicorn server that limits the number of TLS handshakes at the same time, and renews its certificate."""

    def __init__(self, config: uvicorn.Config, progress: LoopProgress) -> None:
        super().__init__(config)
        self.progress = progress

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections. An `Acceptor` limits how many TLS handshakes run at the same time."""
        if self.config.ssl is not None:
            self.config.ssl.num_tickets = 0  # no Borglet resumes a TLS session, so tickets are only work
        host, port = self.config.host, self.config.port
        try:
            listeners = listening(host, port, shared=settings.BORG_LINK_SHARED_PORT)
        except OSError as error:
            raise SystemExit(
                f"cannot listen on {host}:{port}: {error}; change BORG_LINK_HOST or BORG_LINK_PORT"
            ) from error
        await super().startup(sockets=[])
        if not self.started:
            for listener in listeners:
                listener.close()
            return
        acceptor = Acceptor(listeners, self._make_protocol, context=self.config.ssl, progress=self.progress)
        acceptor.start()
        self.servers = [acceptor]  # type: ignore[list-item]
        self._renewal = asyncio.create_task(self._renew_forever())
        self._pulse = asyncio.create_task(pulse_forever())  # ends with the loop

    def _make_protocol(self) -> asyncio.Protocol:
        return LinkDoor(cast("Host", self.config.app), self.server_state, self._make_http)

    def _make_http(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        renewal: asyncio.Task[None] | None = getattr(self, "_renewal", None)
        if renewal is not None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        for held in list(self.server_state.connections):
            # uvicorn would send a second close frame to these, which the WebSocket protocol forbids.
            protocol = getattr(held, "conn", None)
            if isinstance(protocol, ServerProtocol) and protocol.state is not State.OPEN:
                held.transport.close()
                self.server_state.connections.discard(held)
        await super().shutdown(sockets=sockets)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_CHECK_S)
            try:
                assert self.config.ssl is not None
                server_certificate(hosts()).load_into(self.config.ssl)
            except (AuthorityBroken, OSError):
                log.exception("cannot renew the certificate; the old certificate stays in use")


def make_server(*, host: str | None = None, port: int | None = None) -> LinkServer:
    """Return the server of a shard. `host`, `port`: the address to listen on. If they are None, the settings decide."""
    shard = Shard(
        cell_names=settings.BORG_CELLS,
        zone=settings.BORG_ZONE,
        name=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}",
    )
    redis = RedisBridge(shard, settings.BORG_REDIS_URL)
    app = LinkApp(shard, redis, PackageDoors(settings.BORG_REDIS_URL, shard.connections))
    certificate = server_certificate(hosts())
    config = uvicorn.Config(
        app,
        host=host or settings.BORG_LINK_HOST,
        port=settings.BORG_LINK_PORT if port is None else port,
        ssl_certfile=str(certificate.chain),
        ssl_keyfile=str(certificate.key) if certificate.key else None,
        loop="uvloop",
        http=LinkHttp,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=None,  # the polls are the heartbeat
        ws_per_message_deflate=False,  # costs more than it saves at a few hundred bytes
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return LinkServer(config, shard.progress)


def hosts() -> list[str]:
    """Return all host names and addresses of this server that Borglets may use. They must be in its certificate."""
    named = [urlsplit(settings.BORG_LINK_URL).hostname, settings.BORG_LINK_HOST, socket.gethostname()]
    wildcard = {"", "0.0.0.0", "::"}  # noqa: S104 - recognised, not listened on
    return list(dict.fromkeys([h for h in named if h and h not in wildcard] + ["localhost", "127.0.0.1"]))
