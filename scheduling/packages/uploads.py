"""Uploads into the store: a draft on this host's disk, which is hashed, checked and then stored.

with Draft(store, most_bytes=…) as draft:
    draft.take(stream)                  # digest and size are known now
    draft.check(format="", digest="")   # it is an archive, and the one that was announced
    draft.keep(cell)                    # whole or not at all
# whatever happened, no draft is left
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
from quota.vocabulary.errors import Rejected
from scheduling.packages import archive
from scheduling.packages.store import CHUNK_BYTES, ArchiveStore

_DRAFT = "borg-package-"
# A draft this old belongs to a process that was killed.
ABANDONED_S = 86400.0


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Draft:
    """An upload in progress. `digest`, `size_bytes`: of the bytes read so far. `format`: set once checked."""

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
        """Read all of `stream`. Raises `Rejected` beyond the size limit."""
        while chunk := stream.read(CHUNK_BYTES):
            self.size_bytes += len(chunk)
            if self.size_bytes > self._most_bytes:
                raise too_large(self.size_bytes, self._most_bytes)
            self._hash.update(chunk)
            self._file.write(chunk)
        self._file.flush()

    def check(self, *, format: str, digest: str) -> None:
        """Check that the upload matches its announcement (empty fields: not announced), and that machines accept it.

        Raises `Rejected` naming the field, and the entry of the archive where one is at fault.
        """
        if digest and digest != self.digest:
            detail = (
                f"the request names {digest}, and the archive has {self.digest} ({self.size_bytes} bytes);"
                " send it again"
            )
            raise Rejected("digest-mismatch", f"digest: {detail}", fields={"digest": detail})
        try:
            self.format = archive.check(self._path, format)
        except ArchiveRefused as error:
            raise Rejected("invalid-package", f"archive: {error}", fields={"archive": str(error)}) from error

    def keep(self, cell: str) -> None:
        """Put the draft into the store. Raises `StoreAway`."""
        self._store.put(cell, self.digest, self._path)


def too_large(size: int, most: int) -> Rejected:
    detail = f"the archive has {size} bytes or more; this cell accepts at most {most}. Split it, or ask an SRE for more"
    return Rejected("too-large", detail, fields={"archive": detail}, figures={"most_bytes": most}, status=413)


def sweep_drafts(store: ArchiveStore) -> int:
    """Remove what killed processes left. Returns how many."""
    old = time.time() - ABANDONED_S
    gone = 0
    for path in store.spool().glob(f"{_DRAFT}*"):
        try:
            if path.stat().st_mtime < old:
                path.unlink()
                gone += 1
        except FileNotFoundError:  # its owner was quicker
            continue
    return gone
