"""Open the package store that the setting BORG_PACKAGE_STORE names: a folder or S3."""

from __future__ import annotations

import functools
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from django.conf import settings

from scheduling.packages.directory import DirectoryStore
from scheduling.packages.store import ArchiveStore


def store() -> ArchiveStore:
    """Return the package store of this installation. Raises `ValueError` if the setting BORG_PACKAGE_STORE is wrong."""
    return open_store(settings.BORG_PACKAGE_STORE)


@functools.lru_cache(maxsize=8)
def open_store(url: str) -> ArchiveStore:
    """Return the package store at `url`: `file:///folder` or `s3://bucket/prefix?endpoint=http://host:port&region=…`.

    The access keys of S3 come from environment variables. Raises `ValueError` if `url` is wrong; the error names the
    setting.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ValueError(
                f"BORG_PACKAGE_STORE={url!r}: the path is not absolute; write file:/// and an absolute path"
            )
        return DirectoryStore(Path(path))
    if parts.scheme == "s3":
        from scheduling.packages.s3 import S3Store  # importing boto3 takes half a second

        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not parts.netloc or query.keys() - {"endpoint", "region"}:
            raise ValueError(
                f"BORG_PACKAGE_STORE={url!r}: the bucket is missing or a parameter is unknown; write s3://bucket/prefix,"
                " then only ?endpoint=… and &region=…"
            )
        return S3Store(
            parts.netloc, parts.path.strip("/"), endpoint=query.get("endpoint", ""), region=query.get("region", "")
        )
    raise ValueError(f"BORG_PACKAGE_STORE={url!r}: the scheme is unknown; write file:///folder or s3://bucket/prefix")
