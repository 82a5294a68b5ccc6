"""A package store in S3: s3://<bucket>/<prefix>/<cell>/<hex>.

The access keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the role of the host.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from scheduling.packages.store import CHUNK_BYTES, Blob, NotThere, StoreAway

_PREFIX = "sha256:"
_ABSENT = {"404", "NoSuchKey", "NotFound"}


class S3Store:
    """An `ArchiveStore` that keeps the archives in an S3 bucket. All threads share one boto3 client."""

    def __init__(self, bucket: str, prefix: str, *, endpoint: str = "", region: str = "") -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint or None,
            region_name=region or ("us-east-1" if endpoint else None),
            config=Config(
                connect_timeout=5,
                read_timeout=30,
                retries={"max_attempts": 3, "mode": "standard"},
                max_pool_connections=64,
                # Stores of other makers often need the bucket in the path, and do not know checksums after the body.
                s3={"addressing_style": "path"} if endpoint else {},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def spool(self) -> Path:
        return Path(tempfile.gettempdir())

    def put(self, cell: str, digest: str, draft: Path) -> None:
        with self._translated_errors():
            self._client.upload_file(str(draft), self._bucket, self._key(cell, digest))

    def size(self, cell: str, digest: str) -> int | None:
        try:
            with self._translated_errors():
                found = self._client.head_object(Bucket=self._bucket, Key=self._key(cell, digest))
        except NotThere:
            return None
        return int(found["ContentLength"])

    @contextmanager
    def read(self, cell: str, digest: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        wanted = {"Range": f"bytes={offset}-"} if offset else {}
        with self._translated_errors():
            found = self._client.get_object(Bucket=self._bucket, Key=self._key(cell, digest), **wanted)
        with closing(found["Body"]) as body:
            yield self._chunks(body)

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with self._translated_errors():
            yield from body.iter_chunks(CHUNK_BYTES)

    def listing(self, cell: str) -> Iterator[Blob]:
        now = dt.datetime.now(dt.UTC)
        with self._translated_errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._key(cell, "")
            )
            for page in pages:
                for found in page.get("Contents", ()):
                    digest = _PREFIX + found["Key"].rpartition("/")[2]
                    yield Blob(digest, found["Size"], (now - found["LastModified"]).total_seconds())

    def delete(self, cell: str, digest: str) -> None:
        with self._translated_errors():
            self._client.delete_object(Bucket=self._bucket, Key=self._key(cell, digest))

    def _key(self, cell: str, digest: str) -> str:
        return f"{self._prefix}{cell}/{digest.removeprefix(_PREFIX)}"

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert an error of boto3 in the `with` block to `NotThere` or `StoreAway`."""
        try:
            yield
        except (BotoCoreError, ClientError, boto3.exceptions.Boto3Error, OSError) as error:
            detail = error.response.get("Error", {}) if isinstance(error, ClientError) else {}
            where = f"s3://{self._bucket}"
            if detail.get("Code") in _ABSENT:
                raise NotThere(f"{where}: {detail.get('Message', '')}") from error
            raise StoreAway(f"cannot use {where}: {error}; check BORG_PACKAGE_STORE and the keys") from error
