"""The file store of the archive: a folder, or S3.

<store>/<cell>/<table>/day=YYYY-MM-DD/<first>-<last>.parquet
"""

from __future__ import annotations

import hashlib

from django.conf import settings

from scheduling.storage.choice import open_files
from scheduling.storage.files import FileStore, NotThere


def store() -> FileStore:
    """Return the store of the archive. Raises `ValueError` if the setting BORG_ARCHIVE is wrong."""
    return open_files(settings.BORG_ARCHIVE, setting="BORG_ARCHIVE")


def sha256_of(files: FileStore, key: str) -> str:
    """Read a file of the store completely, and return its SHA-256, or "" if the store does not have the file. Raises
    `StoreAway` if the store cannot be reached.
    """
    found = hashlib.sha256()
    try:
        with files.read(key) as chunks:
            for chunk in chunks:
                found.update(chunk)
    except NotThere:
        return ""
    return found.hexdigest()
