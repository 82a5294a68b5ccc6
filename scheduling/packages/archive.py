"""Inspection of uploaded archives, with the same code that machines use before they accept one."""

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
    """The format of the archive, which is `format` unless that is empty.

    Raises `ArchiveRefused`, whose text names the entry, what is wrong with it, and the cure.
    """
    with path.open("rb") as file:
        found = format or _look(file)
        try:
            inspect(file, found)
        except OSError as error:
            raise ArchiveRefused(f"the archive: cannot be read as {found}: {error}") from error
    return found


def _look(file: BinaryIO) -> str:
    """Guess the format of an archive; the reader checks it."""
    head = file.read(4)
    if head == _ZSTD:
        raise ArchiveRefused("the archive: this release cannot unpack zstd; pack it as tar+gzip")
    if head[:2] == _GZIP:
        return TAR_GZIP
    return OCI if is_layout(file) else TAR
