"""Ask the link shard of the cell from which sources to download packages, and report the results of downloads to it."""

from __future__ import annotations

import http.client
import logging
import threading
from typing import Protocol

import msgspec

from borglet.identity.credentials import Credentials
from borglet.machine_specs import link_address
from borglet.messages import PackageFailed, PackageHave, PackageSources, PeerAddress

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 * 1024


class SourcesUnavailable(Exception):
    """The error if the link sent no sources for a package. `final`: it is useless to ask again."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class Sources(Protocol):
    """The interface to the link for sources of packages. The methods block: call them in threads. `have`, `gone` and
    `failed` send a message to the link. They raise no error if the message is lost.
    """

    def of(self, digest: str) -> PackageSources:
        """Return the sources of a package. Raises `SourcesUnavailable` if the link sends no sources."""

    def connect_store(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """Return a connection to the link's package store, and the headers that requests on this connection need. The
        connection is not opened yet.
        """

    def rest(self) -> None:
        """Close the connection that the calling thread keeps open to the link. Do nothing if there is none."""

    def have(self, digest: str, port: int) -> None: ...

    def gone(self, digest: str) -> None: ...

    def failed(self, digest: str, peer: PeerAddress, reason: str) -> None: ...


class LinkSources:
    """Requests the sources of packages from the link of a real cell. Each request uses the present `credentials`."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._address = link_address(url)
        self._credentials = credentials
        self._kept = threading.local()

    def connect_store(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        connection = http.client.HTTPSConnection(*self._address, timeout=TIMEOUT_S, context=self._credentials.context)
        return connection, {"Authorization": self._credentials.bearer()}

    def of(self, digest: str) -> PackageSources:
        try:
            status, body = self._ask("GET", f"/packages/{digest}/sources", keep=True)
        except (OSError, http.client.HTTPException) as error:
            raise SourcesUnavailable(
                f"cannot reach the link server {':'.join(map(str, self._address))}: {error or type(error).__name__};"
                " check the network of this machine"
            ) from error
        if status != 200:
            text = body[:500].decode(errors="replace").strip()
            raise SourcesUnavailable(
                f"the link server listed no sources of the package (HTTP {status} {text}); check that the cell has it",
                final=status in (400, 403, 404),
            )
        try:
            return msgspec.json.decode(body, type=PackageSources)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SourcesUnavailable(
                f"cannot read the link server's list of sources of the package: {error}; use the same release of"
                " Borglet and cell"
            ) from error

    def have(self, digest: str, port: int) -> None:
        self._notify_link(digest, "have", PackageHave(port))

    def gone(self, digest: str) -> None:
        self._notify_link(digest, "gone", None)

    def failed(self, digest: str, peer: PeerAddress, reason: str) -> None:
        self._notify_link(digest, "failed", PackageFailed(peer.address, peer.port, reason))

    def _notify_link(self, digest: str, what: str, content: msgspec.Struct | None) -> None:
        try:
            status, body = self._ask("POST", f"/packages/{digest}/{what}", content)
        except (OSError, http.client.HTTPException) as error:
            log.info("cannot send %s of %s to the link server: %s", what, digest, error or type(error).__name__)
            return
        if status not in (200, 204):
            log.info("the link server answered HTTP %d to %s of %s: %r", status, what, digest, body[:200])

    def _ask(
        self, method: str, path: str, content: msgspec.Struct | None = None, *, keep: bool = False
    ) -> tuple[int, bytes]:
        """Send one request. Return status and body. `keep`: leave the connection open for this thread's next call.

        Raises OSError or `http.client.HTTPException` if the exchange fails.
        """
        connection = getattr(self._kept, "connection", None)
        if connection is not None:
            try:
                return self._exchange(connection, method, path, content)
            except (OSError, http.client.HTTPException):
                self.rest()  # the link closes idle connections, so the request is sent again
        connection, _ = self.connect_store()
        try:
            return self._exchange(connection, method, path, content)
        finally:
            if keep:
                self._kept.connection = connection
            else:
                connection.close()

    def rest(self) -> None:
        connection = getattr(self._kept, "connection", None)
        if connection is not None:
            connection.close()
            self._kept.connection = None

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, content: msgspec.Struct | None
    ) -> tuple[int, bytes]:
        body = msgspec.json.encode(content) if content is not None else None
        headers = {"Authorization": self._credentials.bearer(), "Content-Type": "application/json"}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES)
