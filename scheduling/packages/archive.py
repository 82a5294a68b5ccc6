"""The inspection of uploaded archives, with the code that machines use before they accept an archive."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from borglet.packages.archives.archive import inspect
from borglet.packages.archives.limits import ArchiveRefused
from borglet.packages.archives.oci import is_layout
from scheduling.spec.package_names import FORMATS

TAR, TAR_GZIP, OCI = FORMATS
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def check(path: Path, format: str) -> str:
    """Return the format of an archive after a check of its content. `format`: the announced format, or "".

    Raises `ArchiveRefused`, which names the entry, the problem and the cure.
    """
    with path.open("rb") as file:
        found = format or _look(file)
        try:
            inspect(file, found)
        except OSError as error:
            raise ArchiveRefused(f"the archive cannot be read as {found}: {error}; send it again") from error
    return found


def _look(file: BinaryIO) -> str:
    """Guess the format of an archive. Raises `ArchiveRefused` for a format that is not supported."""
    head = file.read(4)
    if head == _ZSTD:
        raise ArchiveRefused("the archive is compressed with zstd, which is not supported; pack it as tar+gzip")
    if head[:2] == _GZIP:
        return TAR_GZIP
    return OCI if is_layout(file) else TAR
