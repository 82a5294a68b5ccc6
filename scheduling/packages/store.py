"""The package store: the archives of packages, by cell and digest, in the file store of BORG_PACKAGE_STORE.

    upload ─► draft (a local file, hashed as it grows) ─► put ─► archive, complete or not at all
    link shard ─► read(cell, digest, offset) ─► chunks ─► Borglets
    sweep ─► listing ─► delete archives without a row

A folder contains <cell>/ab/<hex>, in subfolders named after the first two digits of the digest. S3 contains
<prefix>/<cell>/<hex>. Do not call the methods of a store in an event loop, because they block. They raise `StoreAway`
if the store cannot be reached.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from scheduling.storage.choice import open_files
from scheduling.storage.files import FileStore
from scheduling.storage.folder import FolderStore

_PREFIX = "sha256:"
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Blob:
    """An archive in the store. `age_s`: seconds since the archive was last uploaded."""

    digest: str
    size_bytes: int
    age_s: float


class ArchiveStore:
    """A store of package archives. `files`: the file store that contains them."""

    def __init__(self, files: FileStore) -> None:
        self._files, self._spread = files, isinstance(files, FolderStore)

    def spool(self) -> Path:
        """Return a folder on this host for unfinished uploads."""
        return self._files.spool()

    def put(self, cell: str, digest: str, draft: Path) -> None:
        """Store the file `draft` as the archive with this digest, completely or not at all. After this, the caller must
        not use `draft`.
        """
        self._files.put(self._key(cell, digest), draft)

    def size(self, cell: str, digest: str) -> int | None:
        """Return the size of an archive in bytes, or None if it does not exist."""
        return self._files.size(self._key(cell, digest))

    def read(self, cell: str, digest: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """Open an archive and yield its content in chunks, from byte `offset` on. Raises `NotThere` if the archive
        does not exist.
        """
        return self._files.read(self._key(cell, digest), offset=offset)

    def listing(self, cell: str) -> Iterator[Blob]:
        """Return all archives of a cell."""
        for found in self._files.listing(cell):
            name = found.key.rpartition("/")[2]
            if _DIGITS.issuperset(name):
                yield Blob(_PREFIX + name, found.size_bytes, found.age_s)

    def delete(self, cell: str, digest: str) -> None:
        """Delete an archive. Does nothing if it does not exist."""
        self._files.delete(self._key(cell, digest))

    def _key(self, cell: str, digest: str) -> str:
        name = digest.removeprefix(_PREFIX)
        return f"{cell}/{name[:2]}/{name}" if self._spread else f"{cell}/{name}"


def store() -> ArchiveStore:
    """Return the package store of this installation. Raises `ValueError` if the setting BORG_PACKAGE_STORE is wrong."""
    return open_store(settings.BORG_PACKAGE_STORE)


@functools.lru_cache(maxsize=8)
def open_store(url: str) -> ArchiveStore:
    """Return the package store at `url`: `file:///folder` or `s3://bucket/prefix?…`. Raises `ValueError` if `url` is
    wrong.
    """
    return ArchiveStore(open_files(url, setting="BORG_PACKAGE_STORE"))
