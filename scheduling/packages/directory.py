"""A package store in a folder that all processes of the server share, on one host or in a network file system.

<folder>/.drafts/           unfinished uploads
<folder>/<cell>/ab/<hex>    archives, in subfolders named after the first two digits of their digest
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduling.packages.store import CHUNK_BYTES, Blob, NotThere, StoreAway

_PREFIX = "sha256:"


class DirectoryStore:
    """An `ArchiveStore` that keeps the archives as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def spool(self) -> Path:
        return self._made(self._folder / ".drafts")

    def put(self, cell: str, digest: str, draft: Path) -> None:
        target = self._path(cell, digest)
        self._made(target.parent)
        with self._translated_errors():
            os.chmod(draft, 0o640)
            os.utime(draft)
            _sync(draft)
            os.replace(draft, target)
            _sync(target.parent)  # so that the rename survives a power failure

    def size(self, cell: str, digest: str) -> int | None:
        with self._translated_errors():
            try:
                return self._path(cell, digest).stat().st_size
            except FileNotFoundError:
                return None

    @contextmanager
    def read(self, cell: str, digest: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        with self._translated_errors():
            try:
                file = self._path(cell, digest).open("rb")
            except FileNotFoundError as error:
                raise NotThere(digest) from error
        with file:
            file.seek(offset)
            yield iter(lambda: file.read(CHUNK_BYTES), b"")

    def listing(self, cell: str) -> Iterator[Blob]:
        now = time.time()
        with self._translated_errors():
            for path in sorted((self._folder / cell).glob("[0-9a-f][0-9a-f]/*")):
                found = path.stat()
                yield Blob(_PREFIX + path.name, found.st_size, now - found.st_mtime)

    def delete(self, cell: str, digest: str) -> None:
        with self._translated_errors():
            self._path(cell, digest).unlink(missing_ok=True)

    def _path(self, cell: str, digest: str) -> Path:
        name = digest.removeprefix(_PREFIX)
        return self._folder / cell / name[:2] / name

    def _made(self, folder: Path) -> Path:
        with self._translated_errors():
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        return folder

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert an `OSError` in the `with` block to `StoreAway`."""
        try:
            yield
        except OSError as error:
            where = error.filename or self._folder
            raise StoreAway(f"cannot use {where}: {error.strerror}; check the folder of BORG_PACKAGE_STORE") from error


def _sync(path: Path) -> None:
    """Make sure that a file or a folder is written to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
