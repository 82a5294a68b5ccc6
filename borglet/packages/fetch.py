"""Download one archive, from other machines first and from the link's store last. The digest is checked.

    sources ─► peer ─► peer ─► store ─► sources again, after a pause …        until the digest is right
                │ unreachable, busy, refused, slow, mismatch: reported, not asked again
                └─ received bytes are kept: the next source continues after them (Range)

If an archive was received from several sources and has the wrong digest, each later source must send the whole archive.
So the source that sends wrong content is found. The functions block: call them in threads.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from borglet.messages import PackageRef, PackageSources, PeerAddress
from borglet.packages.base import PackageMissing
from borglet.packages.source_choice import (
    BUSY,
    THE_STORE,
    AskForSources,
    Choosing,
    FetchPatience,
    GiveUp,
    Pause,
    Try,
    name_of,
)
from borglet.packages.sources import Sources, SourcesUnavailable

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """The time limits and the lowest speed of downloads of packages."""

    connect_timeout_s: float = 3.0
    silence_s: float = 10.0  # the longest time without a byte
    least_bytes_s: int = 128 * 1024  # a source that is slower over `pace_s` has failed
    pace_s: float = 10.0
    patience: FetchPatience = field(default_factory=FetchPatience)


class SourceFailed(Exception):
    """The error if the download from one source failed. `reason`: `mismatch` (the content has another digest), `slow`,
    `unreachable`, `busy` or `refused`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class Fetcher:
    """The downloads of one machine. `now`: a clock in seconds that never runs backwards."""

    def __init__(
        self,
        sources: Sources,
        *,
        settings: FetchSettings = FetchSettings(),
        rng: random.Random | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sources, self._settings, self._now = sources, settings, now
        self._rng = rng if rng is not None else random.Random()

    def fetch(
        self, package: PackageRef, into: Path, *, checkpoint: Callable[[], None], pause: Callable[[float], None]
    ) -> None:
        """Download the archive of a package to `into`, a new file, and check the digest.

        The download calls `checkpoint` often, and `pause(seconds)` to wait. Each of the two functions may raise an
        error to stop the download. Raises `PackageMissing` if no source has a correct archive, and OSError if the file
        cannot be written.
        """
        choosing = Choosing(self._settings.patience, self._rng, now=self._now())
        found = PackageSources([], "", "")
        with into.open("xb") as file:
            work = _Download(package, file, self._sources, self._settings, self._now, checkpoint)
            while True:
                checkpoint()
                match choosing.step(self._now()):
                    case AskForSources():
                        try:
                            found = self._sources.of(package.digest)
                            choosing.answered(found)
                        except SourcesUnavailable as error:
                            choosing.unavailable(str(error), final=error.final)
                    case Try(source):
                        try:
                            if work.from_source(source, found.store, found.ticket):
                                return
                        except SourceFailed as error:
                            log.warning("package %s: %s: %s", package.name, name_of(source), error)
                            choosing.failed(source, error.reason, error.detail)
                            self._sources.failed(package.digest, source, error.reason)
                    case Pause(seconds):
                        pause(seconds)
                    case GiveUp(why):
                        named = f"package {package.name!r} ({package.digest})"
                        raise PackageMissing(
                            f"cannot download {named}: {why}; an SRE can check the network and the package store"
                        )


class _Download:
    """The download of one archive. If a source fails, the download can continue from another one."""

    def __init__(
        self,
        package: PackageRef,
        file: BinaryIO,
        sources: Sources,
        settings: FetchSettings,
        now: Callable[[], float],
        checkpoint: Callable[[], None],
    ) -> None:
        self._package, self._file, self._sources = package, file, sources
        self._settings, self._now, self._checkpoint = settings, now, checkpoint
        self._givers: set[PeerAddress] = set()  # sources of the present content
        self._unmixed = False  # parts of several sources did not match, so each source must send the whole archive
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self._size = 0
        self._givers.clear()

    def from_source(self, source: PeerAddress, store: str, ticket: str) -> bool:
        """Continue the download from `source`: a machine, to which `ticket` is sent, or the package store, at the path
        `store`. Return whether the archive is complete now. Raises `SourceFailed`, and any error that the callback
        `checkpoint` of this download raises.
        """
        if self._unmixed:
            self._restart()
        path = f"/packages/{self._package.digest}"
        headers = {"Authorization": f"Borg-Ticket {ticket}"}
        connection = http.client.HTTPConnection(source.address, source.port, timeout=self._settings.connect_timeout_s)
        if source == THE_STORE:
            connection, headers = self._sources.connect_store()
            path = store
        try:
            self._receive(connection, path, headers, source)
        except (http.client.HTTPException, OSError) as error:
            reason = "slow" if isinstance(error, TimeoutError) and connection.sock is not None else "unreachable"
            raise SourceFailed(reason, str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if f"sha256:{self._digest.hexdigest()}" == self._package.digest:
            self._file.flush()
            return True
        mixed, found = self._givers != {source}, self._digest.hexdigest()
        self._restart()
        if mixed:
            self._unmixed = True
            log.warning(
                "package %s: the parts from several sources do not fit together; the Borglet downloads it again"
                " from one source",
                self._package.name,
            )
            return False
        detail = f"the content has the wrong digest: sha256:{found}; the machine skips this source"
        raise SourceFailed("mismatch", detail)

    def _receive(
        self, connection: http.client.HTTPConnection, path: str, headers: dict[str, str], source: PeerAddress
    ) -> None:
        if self._size:
            headers = {**headers, "Range": f"bytes={self._size}-"}
        connection.connect()
        connection.sock.settimeout(self._settings.silence_s)
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        if response.status in (429, 503):
            raise SourceFailed(BUSY, f"the source is busy (HTTP {response.status}); the machine tries it again later")
        if response.status not in (200, 206):
            text = response.read(300).decode(errors="replace").strip()
            detail = f"the source rejected the request (HTTP {response.status} {text}); the machine skips this source"
            raise SourceFailed("refused", detail)
        if response.status == 200 and self._size:
            self._restart()
        wanted = self._package.size_bytes - self._size
        if response.length != wanted:
            raise SourceFailed(
                "mismatch",
                f"the source offers {response.length} bytes, but {wanted} bytes are still to be downloaded; the machine"
                " skips this source",
            )
        self._givers.add(source)
        self._copy(response, wanted)

    def _copy(self, response: http.client.HTTPResponse, wanted: int) -> None:
        settings = self._settings
        since, came = self._now(), 0
        while wanted:
            self._checkpoint()
            try:
                piece = response.read1(min(PIECE_BYTES, wanted))
            except TimeoutError as error:
                raise SourceFailed(
                    "slow", f"the source sent nothing for {settings.silence_s:g} s; the machine skips this source"
                ) from error
            if not piece:
                raise SourceFailed(
                    "unreachable", f"the connection ended before the last {wanted} bytes; the machine skips this source"
                )
            self._file.write(piece)
            self._digest.update(piece)
            self._size += len(piece)
            wanted -= len(piece)
            came += len(piece)
            passed_s = self._now() - since
            if passed_s >= settings.pace_s:
                if came < settings.least_bytes_s * passed_s and wanted:
                    raise SourceFailed(
                        "slow",
                        f"the source sends {came / passed_s:.0f} bytes/s, and at least {settings.least_bytes_s} bytes/s"
                        " are required; the machine skips this source",
                    )
                since, came = self._now(), 0
