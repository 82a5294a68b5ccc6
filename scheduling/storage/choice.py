"""Open a file store by its URL: a folder or S3."""

from __future__ import annotations

import functools
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from scheduling.storage.files import FileStore
from scheduling.storage.folder import FolderStore


@functools.lru_cache(maxsize=8)
def open_files(url: str, *, setting: str) -> FileStore:
    """Return the store at `url`: `file:///folder` or `s3://bucket/prefix?endpoint=http://host:port&region=…`.

    `setting`: the setting that contains `url`. The access keys of S3 come from environment variables. Raises
    `ValueError` if `url` is wrong; the error names the setting.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/"):
            raise ValueError(f"{setting}={url!r}: the path is not absolute; write file:/// and an absolute path")
        return FolderStore(Path(path), setting=setting)
    if parts.scheme == "s3":
        from scheduling.storage.s3 import S3Store  # importing boto3 takes half a second

        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if not parts.netloc or query.keys() - {"endpoint", "region"}:
            raise ValueError(
                f"{setting}={url!r}: the bucket is missing or a parameter is unknown; write s3://bucket/prefix,"
                " with no parameters except ?endpoint=… and &region=…"
            )
        return S3Store(
            parts.netloc,
            parts.path.strip("/"),
            setting=setting,
            endpoint=query.get("endpoint", ""),
            region=query.get("region", ""),
        )
    raise ValueError(f"{setting}={url!r}: the scheme is unknown; write file:///folder or s3://bucket/prefix")
