"""Fetching one archive: from peers first, from the link's store last, and never believing any of them.

    sources ─► peer ─► peer ─► store ─► sources again, after a pause …        until the digest is right
                │ unreachable, busy, refused, slow, mismatch: reported, not asked again
                └─ what came is kept: the next one goes on behind it (Range)

A source that lies is found even if several gave a part: after a mismatch of such a mixture each one has to give the
whole. Blocking: call it in threads.
"""

from __future__ import annotations

import hashlib
import http.client
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from borglet.backoff import Backoff
from borglet.messages import Package, PeerAddress
from borglet.packages.base import PackageMissing
from borglet.packages.sources import THE_STORE, Sources, SourcesUnavailable

log = logging.getLogger(__name__)

PIECE_BYTES = 64 * 1024
MOST_COMPLAINTS = 6


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How patient one machine is."""

    connect_timeout_s: float = 3.0
    silence_s: float = 10.0  # without a byte
    least_bytes_s: int = 128 * 1024  # over each `pace_s`; slower counts as broken
    pace_s: float = 10.0
    rounds: int = 5  # of asking for sources and trying them, that brought nothing
    patience_s: float = 900.0  # also while the link says that all sources are busy
    pause_s: float = 0.5  # after the first round that brought nothing; doubles


class SourceFailed(Exception):
    """One source did not deliver. `reason` as in `PackageFailed`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class Fetcher:
    """`now` and `pause` are a clock that never runs backwards, in seconds, and waiting on it."""

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
        self,
        package: Package,
        into: Path,
        *,
        checkpoint: Callable[[], None],
        pause: Callable[[float], None],
    ) -> None:
        """Write the archive to `into`, a new file; when it returns, content and digest are right. `checkpoint` is
        called between pieces, and may raise; `pause` waits, and may raise too. Raises `PackageMissing`, OSError."""
        settings = self._settings
        backoff = Backoff(self._rng, first_s=settings.pause_s, most_s=30.0)
        give_up_at = self._now() + settings.patience_s
        complaints: list[str] = []
        with into.open("xb") as file:
            work = _Download(package, file, self._sources, settings, self._now, checkpoint)
            rounds = 0
            while rounds < settings.rounds and self._now() < give_up_at:
                checkpoint()
                try:
                    found = self._sources.of(package.digest)
                except SourcesUnavailable as error:
                    complaints.append(str(error))
                    if error.final:
                        break
                    rounds += 1
                    pause(backoff.next_s())
                    continue
                offered = [*found.peers, *([THE_STORE] if found.store else [])]
                todo = [source for source in offered if source == THE_STORE or source not in work.failed]
                broken = False
                for source in todo:
                    try:
                        if work.from_source(source, found.store, found.ticket):
                            return
                    except SourceFailed as error:
                        complaints.append(f"{_name(source)}: {error}")
                        self._report(package, source, error, work)
                        broken = broken or error.reason != "busy"
                rounds += broken
                # Who was told when to come back comes back then: only what went wrong makes it patient.
                told_s = found.retry_after_s * self._rng.uniform(0.8, 1.2)
                pause(told_s if told_s and not todo else max(told_s, backoff.next_s()))
        why = "; ".join(complaints[-MOST_COMPLAINTS:]) or "all sources stayed busy"
        raise PackageMissing(f"package {package.name!r} ({package.digest}) can't be fetched: {why}")

    def _report(self, package: Package, source: PeerAddress, error: SourceFailed, work: _Download) -> None:
        log.warning("package %s: %s did not deliver: %s", package.name, _name(source), error)
        if source != THE_STORE and error.reason != "busy":
            work.failed.add(source)
        self._sources.failed(package.digest, source, error.reason)


class _Download:
    """What has come of one archive so far."""

    def __init__(
        self,
        package: Package,
        file: BinaryIO,
        sources: Sources,
        settings: FetchSettings,
        now: Callable[[], float],
        checkpoint: Callable[[], None],
    ) -> None:
        self._package, self._file, self._sources = package, file, sources
        self._settings, self._now, self._checkpoint = settings, now, checkpoint
        self.failed: set[PeerAddress] = set()
        self._givers: set[PeerAddress] = set()
        self._unmixed = False  # a mixture was wrong: from now on each gives the whole
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self._size = 0
        self._givers.clear()

    def from_source(self, source: PeerAddress, store: str, ticket: str) -> bool:
        """Whether the archive is complete and right. Raises `SourceFailed`, and what `checkpoint` raises."""
        if self._unmixed:
            self._restart()
        path = f"/packages/{self._package.digest}"
        headers = {"Authorization": f"Borg-Ticket {ticket}"}
        connection = http.client.HTTPConnection(
            source.address, source.port, timeout=self._settings.connect_timeout_s
        )
        if source == THE_STORE:
            connection, headers = self._sources.connect_store()
            path = store
        try:
            self._receive(connection, path, headers, source)
        except (http.client.HTTPException, OSError) as error:
            reason = (
                "slow" if isinstance(error, TimeoutError) and connection.sock is not None else "unreachable"
            )
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
            log.warning("package %s: parts of several sources don't fit together", self._package.name)
            return False
        raise SourceFailed("mismatch", f"content with digest sha256:{found}")

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
            raise SourceFailed("busy", f"HTTP {response.status}")
        if response.status not in (200, 206):
            text = response.read(300).decode(errors="replace").strip()
            raise SourceFailed("refused", f"HTTP {response.status} {text}")
        if response.status == 200 and self._size:
            self._restart()
        wanted = self._package.size_bytes - self._size
        if response.length != wanted:
            raise SourceFailed("mismatch", f"{response.length} bytes more; wanted {wanted}")
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
                raise SourceFailed("slow", f"nothing for {settings.silence_s:g} s") from error
            if not piece:
                raise SourceFailed("unreachable", f"the connection ended {wanted} bytes early")
            self._file.write(piece)
            self._digest.update(piece)
            self._size += len(piece)
            wanted -= len(piece)
            came += len(piece)
            passed_s = self._now() - since
            if passed_s >= settings.pace_s:
                if came < settings.least_bytes_s * passed_s and wanted:
                    raise SourceFailed(
                        "slow", f"{came / passed_s:.0f} bytes/s; wanted {settings.least_bytes_s}"
                    )
                since, came = self._now(), 0


def _name(source: PeerAddress) -> str:
    return f"peer {source.address}:{source.port}" if source != THE_STORE else "the store"
