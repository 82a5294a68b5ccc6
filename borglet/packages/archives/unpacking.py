"""Unpack or check the archive of a package, in any supported format.

    tar, tar+gzip: file ─► (gunzip) ─► tar stream ─► Tree (the plan: names, links, limits) ─► Sink or DiskSink
    oci: file ─► tar stream ─► index, manifest, layers by digest ─► gunzip, tar stream, whiteouts ─► Tree ─► (same)

The server checks uploads with `inspect`, and a machine installs packages with `unpack`. The two functions reject the
same archives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from borglet.packages.archives import oci
from borglet.packages.archives.checked_tree import Sink, Tree, TreeDigests
from borglet.packages.archives.disk import DiskSink
from borglet.packages.archives.limits import ArchiveCost, ArchiveLimits, ArchiveRefused, go_on
from borglet.packages.archives.manifest import MANIFEST_BYTES, MANIFEST_NAME, Manifest, read_manifest
from borglet.packages.archives.streams import ByteStream, Gunzip, Slice
from borglet.packages.archives.tarstream import EntryKind, TarStream

TAR, TAR_GZIP, TAR_ZSTD, OCI = "tar", "tar+gzip", "tar+zstd", "oci"
FORMATS = (TAR, TAR_GZIP, OCI)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The size of an archive's content. `entries`: the number of files, directories and links. `bytes`: the total size
    of the files.
    """

    entries: int
    bytes: int
    digests: TreeDigests
    manifest: Manifest


def unpack(
    file: BinaryIO,
    format_: str,
    target: Path,
    *,
    limits: ArchiveLimits = ArchiveLimits(),
    checkpoint: Callable[[], None] = go_on,
) -> Unpacked:
    """Write the files of an archive to `target`, an empty directory. After an error, the caller must empty `target`.

    `checkpoint` is called often, and may raise to stop the work. Raises `ArchiveRefused` if the archive is not
    acceptable, and OSError if a file cannot be read or written.
    """
    with contextlib.closing(DiskSink(target)) as sink:
        return _read(file, format_, sink, limits, checkpoint)


def inspect(
    file: BinaryIO, format_: str, *, limits: ArchiveLimits = ArchiveLimits(), checkpoint: Callable[[], None] = go_on
) -> Unpacked:
    """Make the checks of `unpack` on an archive, but write nothing. Return the size of its content. Raises
    `ArchiveRefused` if the archive is not acceptable, and OSError if it cannot be read.
    """
    return _read(file, format_, Sink(), limits, checkpoint)


def _read(file: BinaryIO, format_: str, sink: Sink, limits: ArchiveLimits, checkpoint: Callable[[], None]) -> Unpacked:
    stored_bytes = file.seek(0, os.SEEK_END)
    account = ArchiveCost(limits, stored_bytes, checkpoint)
    whole: ByteStream = Slice(file, 0, stored_bytes)
    if format_ == OCI:
        tree = Tree(sink, account, layered=True)
        oci.read_image(file, stored_bytes, tree, account)
        return Unpacked(account.entries, account.file_bytes, tree.finish(), Manifest())
    if format_ == TAR_GZIP:
        whole = Gunzip(whole, account)
    elif format_ == TAR_ZSTD:
        raise ArchiveRefused("the archive: this release cannot unpack zstd; pack it as tar+gzip")
    elif format_ != TAR:
        raise ArchiveRefused(f"the archive: unknown format {format_!r}; use one of {', '.join(FORMATS)}")
    tree = Tree(sink, account)
    manifest = Manifest()
    tar = TarStream(whole, account)
    for entry in tar:
        content: Iterable[bytes] = tar.content()
        is_manifest = entry.name in (MANIFEST_NAME, f"./{MANIFEST_NAME}") and entry.size <= MANIFEST_BYTES
        if entry.kind is EntryKind.FILE and is_manifest:
            whole_file = b"".join(content)
            manifest, content = read_manifest(whole_file), [whole_file]
        tree.add(entry, content)
    return Unpacked(account.entries, account.file_bytes, tree.finish(), manifest)
