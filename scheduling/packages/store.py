"""The interface of package stores. `directory` and `s3` implement it, and `choice` chooses one of them.

    upload ─► draft (a local file, hashed as it grows) ─► put ─► <cell>/<digest>, complete or not at all
    link shard ─► read(cell, digest, offset) ─► chunks ─► Borglets
    sweep ─► listing ─► delete archives without a row

A store has cells and digests, but no names. Its methods block, so call them from a thread in a process with an event
loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20


class StoreAway(Exception):
    """Raised when the store is unreachable or damaged. The text names the folder or bucket and the problem."""


class NotThere(Exception):
    """Raised when the store does not contain an archive."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An archive in the store. `age_s`: seconds since its last upload."""

    digest: str
    size_bytes: int
    age_s: float


class ArchiveStore(Protocol):
    """A store of archives. Every method raises `StoreAway` if the store cannot be reached."""

    def spool(self) -> Path:
        """Return an existing folder of this host for drafts, if possible one from which `put` only has to rename."""

    def put(self, cell: str, digest: str, draft: Path) -> None:
        """Store the file as the archive with this digest, completely or not at all. It may move the file `draft`.

        An existing archive is replaced, and its age begins again.
        """

    def size(self, cell: str, digest: str) -> int | None:
        """Return the size of an archive in bytes, or None if it does not exist."""

    def read(self, cell: str, digest: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """Return a context manager for the chunks of an archive from byte `offset` on. Raises `NotThere`."""

    def listing(self, cell: str) -> Iterator[Blob]:
        """Return all archives of a cell."""

    def delete(self, cell: str, digest: str) -> None:
        """Delete an archive. Does nothing if it does not exist."""
