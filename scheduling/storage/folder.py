"""A file store in a folder that all processes of the server share, on one host or in a network file system.

<folder>/.drafts/    unfinished files
<folder>/<key>       files
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scheduling.storage.files import CHUNK_BYTES, NotThere, StoreAway, StoredFile


class FolderStore:
    """A `FileStore` that keeps files in a folder. `setting`: the setting that names the folder, for error messages."""

    def __init__(self, folder: Path, *, setting: str) -> None:
        self._folder, self._setting = folder, setting

    def spool(self) -> Path:
        return self._made(self._folder / ".drafts")

    def put(self, key: str, draft: Path) -> None:
        target = self._folder / key
        self._made(target.parent)
        with self._translated_errors():
            os.chmod(draft, 0o640)
            os.utime(draft)
            _sync(draft)
            os.replace(draft, target)
            _sync(target.parent)  # so that the rename survives a power failure

    def size(self, key: str) -> int | None:
        with self._translated_errors():
            try:
                return (self._folder / key).stat().st_size
            except FileNotFoundError:
                return None

    @contextmanager
    def read(self, key: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        with self._translated_errors():
            try:
                file = (self._folder / key).open("rb")
            except FileNotFoundError as error:
                raise NotThere(key) from error
        with file:
            file.seek(offset)
            yield iter(lambda: file.read(CHUNK_BYTES), b"")

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        if self.size(key) is None:
            raise NotThere(key)
        yield self._folder / key

    def listing(self, prefix: str) -> Iterator[StoredFile]:
        now = time.time()
        with self._translated_errors():
            for path in sorted((self._folder / prefix).rglob("*")):
                if path.is_file():
                    found = path.stat()
                    key = path.relative_to(self._folder).as_posix()
                    yield StoredFile(key, found.st_size, now - found.st_mtime, f"{found.st_mtime_ns}-{found.st_ino}")

    def delete(self, key: str) -> None:
        with self._translated_errors():
            (self._folder / key).unlink(missing_ok=True)

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
            raise StoreAway(f"cannot use {where}: {error.strerror}; check the folder of {self._setting}") from error


def _sync(path: Path) -> None:
    """Make sure that a file or a folder is written to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
