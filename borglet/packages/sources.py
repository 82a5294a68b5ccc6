"""Asking the cell's link about packages, with the machine's own credentials: where to fetch, what came of it."""

from __future__ import annotations

import http.client
import logging
import urllib.parse
from typing import Protocol

import msgspec

from borglet.credentials import Credentials
from borglet.messages import PackageFailed, PackageHave, PackageSources, PeerAddress

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 256 * 1024


class SourcesUnavailable(Exception):
    """The link did not say where a package is. `final`: asking again can't help."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


class Sources(Protocol):
    """Blocking: call it in threads. What only tells never raises: the next report makes it good."""

    def of(self, digest: str) -> PackageSources:
        """Raises `SourcesUnavailable`."""

    def connect_store(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        """A connection to the link's own store, not yet opened, and the headers to ask with."""

    def have(self, digest: str, port: int) -> None: ...

    def gone(self, digest: str) -> None: ...

    def failed(self, digest: str, peer: PeerAddress, reason: str) -> None: ...


class LinkSources:
    """The link of a real cell. `credentials` are asked anew each time: they are renewed while it runs."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        parts = urllib.parse.urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._credentials = credentials

    def connect_store(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=self._credentials.context
        )
        return connection, {"Authorization": self._credentials.bearer()}

    def of(self, digest: str) -> PackageSources:
        try:
            status, body = self._ask("GET", f"/packages/{digest}/sources")
        except (OSError, http.client.HTTPException) as error:
            raise SourcesUnavailable(f"the link can't be reached: {error or type(error).__name__}") from error
        if status != 200:
            text = body[:500].decode(errors="replace").strip()
            raise SourcesUnavailable(f"the link answered {status} {text}", final=status in (400, 403, 404))
        try:
            return msgspec.json.decode(body, type=PackageSources)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise SourcesUnavailable(f"the link's answer can't be read: {error}") from error

    def have(self, digest: str, port: int) -> None:
        self._tell(digest, "have", PackageHave(port))

    def gone(self, digest: str) -> None:
        self._tell(digest, "gone", None)

    def failed(self, digest: str, peer: PeerAddress, reason: str) -> None:
        self._tell(digest, "failed", PackageFailed(peer.address, peer.port, reason))

    def _tell(self, digest: str, what: str, content: msgspec.Struct | None) -> None:
        try:
            status, body = self._ask("POST", f"/packages/{digest}/{what}", content)
        except (OSError, http.client.HTTPException) as error:
            log.info("the link does not hear %s of %s: %s", what, digest, error or type(error).__name__)
            return
        if status not in (200, 204):
            log.info("the link answered %d to %s of %s: %r", status, what, digest, body[:200])

    def _ask(self, method: str, path: str, content: msgspec.Struct | None = None) -> tuple[int, bytes]:
        connection, headers = self.connect_store()
        body = msgspec.json.encode(content) if content is not None else None
        try:
            connection.request(method, path, body, {**headers, "Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()
