"""Check uploaded archives with the code that machines use too, so that no machine rejects an archive later."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from borglet.packages.archives.limits import ArchiveRefused
from borglet.packages.archives.oci import is_layout
from borglet.packages.archives.unpacking import inspect
from scheduling.spec.package_names import FORMATS

TAR, TAR_GZIP, OCI = FORMATS
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def check(path: Path, format: str) -> str:
    """Check an archive, and return its format. `format`: the format that the client states, or "".

    Raises `ArchiveRefused` if machines would reject the archive. The error names the wrong entry, the problem and what
    to do.
    """
    with path.open("rb") as file:
        found = format or _look(file)
        try:
            inspect(file, found)
        except OSError as error:
            raise ArchiveRefused(
                f"the archive cannot be read as {found}: {error}; pack it again, and send it again"
            ) from error
    return found


def _look(file: BinaryIO) -> str:
    """Return the format of an archive, recognised from its content. Raises `ArchiveRefused` if it is compressed with
    zstd.
    """
    head = file.read(4)
    if head == _ZSTD:
        raise ArchiveRefused("the archive is compressed with zstd, which is not supported; pack it as tar+gzip")
    if head[:2] == _GZIP:
        return TAR_GZIP
    return OCI if is_layout(file) else TAR
