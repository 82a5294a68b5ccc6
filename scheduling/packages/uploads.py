"""Uploads into the package store. A draft is a file on this host that contains an upload until it is checked and
stored.

with Draft(store, most_bytes=…) as draft:
    draft.take(stream)                  # digest and size are known now
    draft.check(format="", digest="")   # it is a valid archive, with the stated format and digest
    draft.keep(cell)                    # stored completely or not at all
# the draft is deleted, also after an error
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol

from borglet.packages.archives.limits import ArchiveRefused
from quota.vocabulary.errors import Rejected, invalid
from scheduling.packages import archive_check
from scheduling.packages.store import ArchiveStore
from scheduling.storage.files import CHUNK_BYTES

_DRAFT = "borg-package-"
# An older draft than this belongs to a process that was killed.
ABANDONED_S = 86400.0


class Readable(Protocol):
    """A stream from which bytes can be read."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, or b"" at the end of the stream."""


class Draft:
    """An unfinished upload. `digest`, `size_bytes`: the digest and the number of the bytes that were read so far.
    `format`: set by `check`.
    """

    def __init__(self, store: ArchiveStore, *, most_bytes: int) -> None:
        self._store, self._most_bytes = store, most_bytes
        self._hash = hashlib.sha256()
        descriptor, name = tempfile.mkstemp(prefix=_DRAFT, dir=store.spool())
        self._file = os.fdopen(descriptor, "wb")
        self._path = Path(name)
        self.size_bytes = 0
        self.format = ""

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def take(self, stream: Readable) -> None:
        """Read the whole stream, and append it to the draft file. Raises `Rejected` if the draft becomes larger than
        allowed.
        """
        while chunk := stream.read(CHUNK_BYTES):
            self.size_bytes += len(chunk)
            if self.size_bytes > self._most_bytes:
                raise too_large(self.size_bytes, self._most_bytes)
            self._hash.update(chunk)
            self._file.write(chunk)
        self._file.flush()

    def check(self, *, format: str, digest: str) -> None:
        """Check that machines accept the archive, and that it has this `format` and this `digest`. An empty value is
        not compared.

        Raises `Rejected` if the check fails; the error names the wrong field and the wrong entry of the archive.
        """
        if digest and digest != self.digest:
            detail = (
                f"the request names {digest}, but the received archive has {self.digest} ({self.size_bytes} bytes);"
                " send it again"
            )
            raise invalid("digest", detail, "digest-mismatch")
        try:
            self.format = archive_check.check(self._path, format)
        except ArchiveRefused as error:
            raise invalid("archive", str(error), "invalid-package") from error

    def keep(self, cell: str) -> None:
        """Put the draft into the package store of `cell`. Raises `StoreAway` if the store cannot be reached."""
        self._store.put(cell, self.digest, self._path)


def too_large(size: int, most: int) -> Rejected:
    """Return the rejection of an archive that is too large. `size`: the archive's bytes. `most`: the cell's limit in
    bytes.
    """
    detail = f"the archive has at least {size} bytes, and this cell accepts at most {most}; split it, or ask an SRE"
    return Rejected("too-large", detail, fields={"archive": detail}, figures={"most_bytes": most}, status=413)


def sweep_drafts(store: ArchiveStore) -> int:
    """Delete the unfinished uploads that killed processes have left on this host. Return how many were deleted."""
    old = time.time() - ABANDONED_S
    gone = 0
    for path in store.spool().glob(f"{_DRAFT}*"):
        try:
            if path.stat().st_mtime < old:
                path.unlink()
                gone += 1
        except FileNotFoundError:  # its process has just deleted it
            continue
    return gone
