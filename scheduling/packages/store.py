"""The interface of package stores. The modules `directory` and `s3` implement it, and `choice` chooses one of them.

    upload ─► draft (a local file, hashed as it grows) ─► put ─► <cell>/<digest>, complete or not at all
    link shard ─► read(cell, digest, offset) ─► chunks ─► Borglets
    sweep ─► listing ─► delete archives without a row

A store finds an archive by cell and digest; it does not know the names of packages. Do not call the methods of a store
in an event loop, because they block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20


class StoreAway(Exception):
    """Raised if the store cannot be reached or is damaged. The message names the folder or bucket, and the problem."""


class NotThere(Exception):
    """Raised if the store does not contain the archive."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An archive in the store. `age_s`: seconds since the archive was last uploaded."""

    digest: str
    size_bytes: int
    age_s: float


class ArchiveStore(Protocol):
    """A store of archives. Every method raises `StoreAway` if the store cannot be reached."""

    def spool(self) -> Path:
        """Return a folder on this host for unfinished uploads. If possible, it is in the same file system as the
        store.
        """

    def put(self, cell: str, digest: str, draft: Path) -> None:
        """Store the file `draft` as the archive with this digest, completely or not at all. After this, the caller
        must not use `draft`, because the method may move it instead of copying it.

        If the store already has the archive, it is replaced, and its `age_s` is 0 again.
        """

    def size(self, cell: str, digest: str) -> int | None:
        """Return the size of an archive in bytes, or None if it does not exist."""

    def read(self, cell: str, digest: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """Open an archive and yield its content in chunks, from byte `offset` on. Raises `NotThere` if the archive
        does not exist.
        """

    def listing(self, cell: str) -> Iterator[Blob]:
        """Return all archives of a cell."""

    def delete(self, cell: str, digest: str) -> None:
        """Delete an archive. Does nothing if it does not exist."""
