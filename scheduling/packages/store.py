"""The port to where archives of packages are kept, and which implementation the settings ask for.

    upload ─► draft (a local file, hashed as it grows) ─► put ─► <cell>/<digest>, whole or not at all
    link shard ─► read(cell, digest, offset) ─► chunks ─► Borglets
    sweep ─► listing ─► delete what no row names

A store knows cells and digests, no names. Its calls block; who has an event loop calls them from a thread.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from django.conf import settings

CHUNK_BYTES = 1 << 20


class StoreAway(Exception):
    """The store can't be reached or has lost something; the text says which and what to look at."""


class NotThere(Exception):
    """The store holds no such archive."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One archive in the store. `age_s`: since it was put there last."""

    digest: str
    size_bytes: int
    age_s: float


class Store(Protocol):
    """Every method raises `StoreAway` when the store can't be reached."""

    def spool(self) -> Path:
        """An existing folder for drafts, on this host; best where `put` has only to rename."""

    def put(self, cell: str, digest: str, draft: Path) -> None:
        """Keep the file as the archive of this digest, whole or not at all; `draft` may be gone afterwards.

        What is there already is replaced, and as young as if it were new.
        """

    def size(self, cell: str, digest: str) -> int | None:
        """In bytes; None when it isn't there."""

    def read(self, cell: str, digest: str, *, offset: int = 0) -> AbstractContextManager[Iterator[bytes]]:
        """The archive from `offset` on, in chunks. Raises `NotThere`."""

    def listing(self, cell: str) -> Iterator[Blob]:
        """All archives of a cell."""

    def delete(self, cell: str, digest: str) -> None:
        """Nothing happens when it isn't there."""


def store() -> Store:
    """The store of this installation. Raises `ValueError` that names the setting."""
    return open_store(settings.BORG_PACKAGE_STORE)


@functools.lru_cache(maxsize=8)
def open_store(url: str) -> Store:
    """`file:///folder`, or `s3://bucket/prefix?endpoint=http://host:port&region=…`; keys come by environment.

    Raises `ValueError` that names the setting.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        from scheduling.packages.directory import DirectoryStore

        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ValueError(f"BORG_PACKAGE_STORE={url!r}: write file:/// and an absolute path")
        return DirectoryStore(Path(path))
    if parts.scheme == "s3":
        from scheduling.packages.s3 import S3Store  # boto3: half a second that others need not wait

        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not parts.netloc or query.keys() - {"endpoint", "region"}:
            raise ValueError(
                f"BORG_PACKAGE_STORE={url!r}: write s3://bucket/prefix, and behind it only ?endpoint=… and &region=…"
            )
        return S3Store(
            parts.netloc,
            parts.path.strip("/"),
            endpoint=query.get("endpoint", ""),
            region=query.get("region", ""),
        )
    raise ValueError(f"BORG_PACKAGE_STORE={url!r}: write file:///folder or s3://bucket/prefix")
