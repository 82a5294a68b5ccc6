"""Pack a directory into an archive. The same files give the same bytes, on every machine and at any time.

The archive lists names in sorted order. It has no owners, no times and no modes, except whether a file is executable.
Compressed archives are equal only if they were made with the same version of zlib.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from borglet.packages.archives.limits import ArchiveLimits, ArchiveRefused
from borglet.packages.archives.manifest import MANIFEST_NAME, Manifest
from borglet.packages.archives.unpacking import TAR, TAR_GZIP, inspect

_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Packed:
    """The result of `pack`: the digest and the sizes of the archive that it wrote."""

    digest: str  # sha256: and 64 hex digits
    size_bytes: int  # size of the archive
    entries: int
    unpacked_bytes: int


class CannotPack(ValueError):
    """The error for a directory that cannot become a package. The message names the file and says what to do."""


def pack(
    directory: Path,
    out: BinaryIO,
    *,
    format_: str = TAR_GZIP,
    manifest: Manifest | None = None,
    limits: ArchiveLimits = ArchiveLimits(),
) -> Packed:
    """Write the archive of `directory` to `out`, a file open for reading and writing. Check the archive with the checks
    that machines make before they install it.

    `manifest` replaces the manifest in the directory. Raises `CannotPack` if machines would reject the archive or the
    arguments are wrong, and OSError if a file cannot be read or written.
    """
    if format_ not in (TAR, TAR_GZIP):
        raise CannotPack(f"format: unknown format {format_!r}; use {TAR} or {TAR_GZIP}")
    if not directory.is_dir():
        raise CannotPack(f"{directory}: this is not a directory; give the directory that becomes the package")
    if format_ == TAR_GZIP:
        with gzip.GzipFile("", "wb", _LEVEL, out, mtime=0) as zipped:
            _write(directory, zipped, manifest, limits)
    else:
        _write(directory, out, manifest, limits)
    out.flush()
    try:
        found = inspect(out, format_, limits=limits)
    except ArchiveRefused as error:
        raise CannotPack(f"{directory}: machines would reject the package: {error}") from error
    size = out.seek(0, os.SEEK_END)
    out.seek(0)
    digest = hashlib.file_digest(out, "sha256").hexdigest()  # type: ignore[arg-type]  # the stub does not accept BinaryIO
    return Packed(f"sha256:{digest}", size, found.entries, found.bytes)


def _write(directory: Path, out: gzip.GzipFile | BinaryIO, manifest: Manifest | None, limits: ArchiveLimits) -> None:
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        if manifest is not None:
            content = msgspec.json.encode(manifest)
            info = _info(MANIFEST_NAME)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for number, name in enumerate(_names(directory, "", 1, limits), start=1):
            if number > limits.entries:
                raise CannotPack(
                    f"{directory}: this directory has more than {limits.entries} files, directories and links, which is"
                    " the limit of a package; leave out files that tasks do not need, or split it into several packages"
                )
            if name == MANIFEST_NAME and manifest is not None:
                continue
            _add(tar, directory / name, name)
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps a kilobyte per entry


def _names(directory: Path, folder: str, depth: int, limits: ArchiveLimits) -> Iterator[str]:
    """Yield the paths of all files and folders below `folder`, at every level. Parents come before children, and names
    are sorted. `depth`: how many levels below `directory` the entries of `folder` are; 1 if `folder` is empty.
    """
    for name in sorted(os.listdir(directory / folder)):
        path = f"{folder}{name}"
        if depth > limits.depth:
            raise CannotPack(
                f"{path[:100]!r}…: its path has more than {limits.depth} components, which is the limit of a package;"
                " move it to a higher directory"
            )
        yield path
        if stat.S_ISDIR(os.lstat(directory / path).st_mode):
            yield from _names(directory, f"{path}/", depth + 1, limits)


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CannotPack(f"{name!r}: the name is not valid UTF-8; rename the file") from error
    found = os.lstat(path)
    info = _info(name)
    if stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(info)
    elif stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        tar.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        info.mode = 0o755 if found.st_mode & 0o111 else 0o644
        info.size = found.st_size
        with path.open("rb") as file:
            try:
                tar.addfile(info, file)
            except OSError as error:
                raise CannotPack(
                    f"{name!r}: cannot read the whole file ({error}); check that no program writes to it"
                ) from error
    else:
        raise CannotPack(f"{name!r}: a package can hold only files, directories and links; leave it out")


def _info(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    return info
