"""The interface of file stores. The modules `folder`, `s3` and `sealed` implement it. `choice` opens one by its URL.

    writer ─► draft (a local file) ─► put ─► <key>, complete or not at all
    reader ─► read(key, offset) ─► chunks

A *key* is the name of a file in the store: relative, with `/` between its parts. Packages and the archive each have a
store of their own. Do not call the methods of a store in an event loop, because they block.
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


class DamagedFile(StoreAway):
    """Raised if the bytes of a file are not those that were stored. The message names the file."""


class UnknownKey(StoreAway):
    """Raised if a file is encrypted with a key that this process does not have. The message names the file, the id of
    the key, and the cure.
    """


class NotThere(LookupError):
    """Raised if the store does not contain the file."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in the store. `age_s`: seconds since it was last put there. `version`: a text that differs when the file
    is replaced.
    """

    key: str
    size_bytes: int
    age_s: float
    version: str


class FileStore(Protocol):
    """A store of files. Every method raises `StoreAway` if the store cannot be reached."""

    def spool(self) -> Path:
        """Return a folder on this host for drafts: local files that will be put into the store. If possible, it is in
        the same file system as the store.
        """

    def put(self, key: str, draft: Path) -> None:
        """Store the file `draft` under this key, completely or not at all. After this, the caller must not use `draft`,
        because the method may move it instead of copying it.

        If the store already has the file, it is replaced, and its `age_s` is 0 again.
        """

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, or None if it does not exist."""

    def read(self, key: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """Open a file and yield its content in chunks, from byte `offset` on. Raises `NotThere` if it does not
        exist.
        """

    def local(self, key: str) -> AbstractContextManager[Path]:
        """Yield the path of a local file with the content of the file `key`. The caller must not change this file.
        Raises `NotThere` if the store does not contain `key`.
        """

    def listing(self, prefix: str) -> Iterator[StoredFile]:
        """Return all files below the folder `prefix`, sorted by key."""

    def delete(self, key: str) -> None:
        """Delete a file. Does nothing if it does not exist."""
