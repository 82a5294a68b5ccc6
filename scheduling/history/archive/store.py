"""The file store of the archive: a folder, or S3. It is encrypted if `BORG_ARCHIVE_KEYS` contains a key.

<store>/<cell>/<table>/day=YYYY-MM-DD/<first>-<last>[.<generation>].parquet
<store>/<cell>/checkpoints/<revision>.checkpoint
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.conf import settings

from scheduling.models import ArchiveFile
from scheduling.storage.choice import open_files
from scheduling.storage.files import DamagedFile, FileStore, NotThere
from scheduling.storage.sealed import SealedStore, read_keys

# Names of tables in the archive: the journal, usage, and metered hours.
EVENTS, USAGE, METERED = "events", "instance_usage", "metered_hours"


def store() -> FileStore:
    """Return the store of the archive and of checkpoints. Raises `ValueError` if BORG_ARCHIVE or BORG_ARCHIVE_KEYS is
    wrong.
    """
    return SealedStore(
        open_files(settings.BORG_ARCHIVE, setting="BORG_ARCHIVE"),
        read_keys(settings.BORG_ARCHIVE_KEYS),
        drafts=Path(settings.BORG_HOME) / "drafts",
        setting="BORG_ARCHIVE_KEYS",
    )


@contextmanager
def local_file(file: ArchiveFile) -> Iterator[Path]:
    """Yield the path of a file of the manifest on this host, until the `with` block ends. A file in S3 is downloaded
    for this. If an erasure has replaced the file meanwhile, the path is that of the new one.

    Files with metered hours are the only copy of money, and Parquet does not notice most wrong bytes. So their digest
    is checked. Raises `DamagedFile` if it is not the one in the manifest.
    """
    with ExitStack() as stack:
        try:
            path = stack.enter_context(store().local(file.key))
        except NotThere:
            file.refresh_from_db(fields=["generation", "sha256"])
            path = stack.enter_context(store().local(file.key))
        if file.table == METERED:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if digest != file.sha256:
                raise DamagedFile(f"{file.key} is damaged; restore the file from a backup of the archive")
        yield path


def sha256_of(files: FileStore, key: str) -> str:
    """Read a file of the store completely, and return the SHA-256 of its content, or "" if the file is missing or
    cannot be decrypted because it is damaged. Raises `StoreAway` if the store cannot be reached, or if the key of the
    file is missing.
    """
    found = hashlib.sha256()
    try:
        with files.read(key) as chunks:
            for chunk in chunks:
                found.update(chunk)
    except (NotThere, DamagedFile):
        return ""
    return found.hexdigest()
