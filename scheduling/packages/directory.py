"""A store in a folder, which all processes of the server share: one host, or a network file system.

<folder>/.drafts/           uploads under way
<folder>/<cell>/ab/<hex>    archives, by the first two digits of their digest
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
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def spool(self) -> Path:
        return self._made(self._folder / ".drafts")

    def put(self, cell: str, digest: str, draft: Path) -> None:
        target = self._path(cell, digest)
        self._made(target.parent)
        try:
            os.chmod(draft, 0o640)
            descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.utime(descriptor)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(draft, target)
            _sync(target.parent)
        except OSError as error:
            raise StoreAway(f"{target}: {error.strerror}") from error

    def size(self, cell: str, digest: str) -> int | None:
        try:
            return self._path(cell, digest).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreAway(f"{self._folder}: {error.strerror}") from error

    @contextmanager
    def read(self, cell: str, digest: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        try:
            file = self._path(cell, digest).open("rb")
        except FileNotFoundError as error:
            raise NotThere(digest) from error
        except OSError as error:
            raise StoreAway(f"{self._folder}: {error.strerror}") from error
        with file:
            file.seek(offset)
            yield iter(lambda: file.read(CHUNK_BYTES), b"")

    def listing(self, cell: str) -> Iterator[Blob]:
        now = time.time()
        try:
            for path in sorted((self._folder / cell).glob("[0-9a-f][0-9a-f]/*")):
                found = path.stat()
                yield Blob(_PREFIX + path.name, found.st_size, now - found.st_mtime)
        except OSError as error:
            raise StoreAway(f"{self._folder}: {error.strerror}") from error

    def delete(self, cell: str, digest: str) -> None:
        try:
            self._path(cell, digest).unlink(missing_ok=True)
        except OSError as error:
            raise StoreAway(f"{self._folder}: {error.strerror}") from error

    def _path(self, cell: str, digest: str) -> Path:
        name = digest.removeprefix(_PREFIX)
        return self._folder / cell / name[:2] / name

    def _made(self, folder: Path) -> Path:
        try:
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreAway(f"{folder}: {error.strerror}") from error
        return folder


def _sync(folder: Path) -> None:
    """Sync the folder, so that a rename survives a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
