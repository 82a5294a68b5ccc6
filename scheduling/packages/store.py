"""The port to where archives of packages are kept. `directory` and `s3` are its implementations, `choice` chooses.

    upload ─► draft (a local file, hashed as it grows) ─► put ─► <cell>/<digest>, whole or not at all
    link shard ─► read(cell, digest, offset) ─► chunks ─► Borglets
    sweep ─► listing ─► delete what no row names

A store knows cells and digests, no names. Its calls block; who has an event loop calls them from a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20


class StoreAway(Exception):
    """The store can't be reached or has lost something; the text says which and what to look at."""


class NotThere(Exception):
    """The store holds no such archive."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An archive in the store. `age_s`: seconds since its last upload."""

    digest: str
    size_bytes: int
    age_s: float


class ArchiveStore(Protocol):
    """A store of archives. Every method raises `StoreAway` if the store cannot be reached."""

    def spool(self) -> Path:
        """An existing folder for drafts, on this host; best where `put` has only to rename."""

    def put(self, cell: str, digest: str, draft: Path) -> None:
        """Keep the file as the archive of this digest, whole or not at all; `draft` may be gone afterwards.

        What is there already is replaced, and as young as if it were new.
        """

    def size(self, cell: str, digest: str) -> int | None:
        """Return the size in bytes; None if the archive does not exist."""

    def read(self, cell: str, digest: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """The archive from `offset` on, in chunks. Raises `NotThere`."""

    def listing(self, cell: str) -> Iterator[Blob]:
        """Return all archives of a cell."""

    def delete(self, cell: str, digest: str) -> None:
        """Delete an archive. Does nothing if it does not exist."""
