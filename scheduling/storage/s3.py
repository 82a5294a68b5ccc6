"""A file store in S3: s3://<bucket>/<prefix>/<key>.

The access keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or from the role of the host.
"""

from __future__ import annotations

import datetime as dt
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from scheduling.storage.files import CHUNK_BYTES, NotThere, StoreAway, StoredFile

_ABSENT = {"404", "NoSuchKey", "NotFound"}


class S3Store:
    """A `FileStore` that keeps files in an S3 bucket. All threads share one boto3 client. `setting`: the setting that
    names the bucket, for error messages.
    """

    def __init__(self, bucket: str, prefix: str, *, setting: str, endpoint: str = "", region: str = "") -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._setting = setting
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
        folder = Path(tempfile.gettempdir()) / f"borg-{os.getuid()}"
        with self._translated_errors():
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.lstat().st_uid != os.getuid():  # another user could read and replace drafts
                raise StoreAway(
                    f"cannot use {folder}: another user owns it; delete it, or set TMPDIR to another folder"
                )
        return folder

    def put(self, key: str, draft: Path) -> None:
        with self._translated_errors(key):
            self._client.upload_file(str(draft), self._bucket, self._prefix + key)

    def size(self, key: str) -> int | None:
        try:
            with self._translated_errors(key):
                found = self._client.head_object(Bucket=self._bucket, Key=self._prefix + key)
        except NotThere:
            return None
        return int(found["ContentLength"])

    @contextmanager
    def read(self, key: str, *, offset: int = 0) -> Iterator[Iterator[bytes]]:
        wanted = {"Range": f"bytes={offset}-"} if offset else {}
        with self._translated_errors(key):
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **wanted)
        with closing(found["Body"]) as body:
            yield self._chunks(body)

    def _chunks(self, body: Any) -> Iterator[bytes]:
        with self._translated_errors():
            yield from body.iter_chunks(CHUNK_BYTES)

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        with tempfile.NamedTemporaryFile(prefix="borg-s3-", dir=self.spool()) as file:
            with self.read(key) as chunks:
                for chunk in chunks:
                    file.write(chunk)
            file.flush()
            yield Path(file.name)

    def listing(self, prefix: str) -> Iterator[StoredFile]:
        now = dt.datetime.now(dt.UTC)
        with self._translated_errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{self._prefix}{prefix}/"
            )
            for page in pages:
                for found in page.get("Contents", ()):
                    key = found["Key"].removeprefix(self._prefix)
                    age_s = (now - found["LastModified"]).total_seconds()
                    yield StoredFile(key, found["Size"], age_s, found["ETag"])

    def delete(self, key: str) -> None:
        with self._translated_errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    @contextmanager
    def _translated_errors(self, key: str = "") -> Iterator[None]:
        """Convert an error of boto3 in the `with` block to `NotThere` or `StoreAway`. `key`: the file, if any."""
        try:
            yield
        except (BotoCoreError, ClientError, boto3.exceptions.Boto3Error, OSError) as error:
            detail = error.response.get("Error", {}) if isinstance(error, ClientError) else {}
            where = f"s3://{self._bucket}"
            if detail.get("Code") in _ABSENT:
                raise NotThere(
                    f"{where}/{self._prefix}{key} does not exist ({detail.get('Message', '')}); check {self._setting}"
                ) from error
            raise StoreAway(f"cannot use {where}: {error}; check {self._setting} and the access keys of S3") from error
