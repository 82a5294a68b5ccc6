"""The limits for archives, and counters of how much of each limit one archive has used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class ArchiveRefused(ValueError):
    """The error for an archive that is rejected. The message names the entry and the problem, and says what to do."""


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """The limits for one archive."""

    unpacked_bytes: int = 32 * 2**30  # all files together
    entries: int = 100_000  # files, directories and links; directories without an entry of their own count too
    metadata_bytes: int = 64 * 2**20  # all names, targets of links, and extended headers together
    ratio: int = 200  # bytes that come out of a decompressor per stored byte
    ratio_free_bytes: int = 64 * 2**20  # this many bytes may come out whatever the ratio
    path_bytes: int = 1024
    depth: int = 64  # components of a path
    header_bytes: int = 64 * 2**10  # one extended header, such as a long name
    document_bytes: int = 4 * 2**20  # one JSON document of an image


def go_on() -> None:
    """Do nothing. This is the default of the parameter `checkpoint`: a function that long work calls often, and that
    may raise to stop the work.
    """


class ArchiveCost:
    """Counters of how much of each limit one archive has used. `checkpoint` is called often, and may raise to stop
    the work.
    """

    def __init__(self, limits: ArchiveLimits, stored_bytes: int, checkpoint: Callable[[], None] = go_on) -> None:
        self.limits = limits
        self.entries = 0
        self.file_bytes = 0
        self._metadata_bytes = 0
        self._read_bytes = 0
        self._readable_bytes = max(limits.ratio_free_bytes, limits.ratio * stored_bytes)
        self._stored_bytes = stored_bytes
        self.checkpoint = checkpoint

    def entry(self, name: str) -> None:
        """Count one more file, directory or link. Raises `ArchiveRefused` if the archive has more than the limit
        allows.
        """
        self.checkpoint()
        self.entries += 1
        if self.entries > self.limits.entries:
            raise ArchiveRefused(
                f"{name!r}: the archive has more than {self.limits.entries} files, directories and links, which is the"
                " limit; leave out files that tasks do not need, or split it into several packages"
            )

    def metadata(self, name: str, size: int) -> None:
        """Count `size` bytes of metadata: names of files, targets of links, or extended headers. Raises
        `ArchiveRefused` if the sum exceeds the limit.
        """
        self.checkpoint()
        self._metadata_bytes += size
        if self._metadata_bytes > self.limits.metadata_bytes:
            raise ArchiveRefused(
                f"{name[:100]!r}: the archive has more than {self.limits.metadata_bytes} bytes of names, targets of"
                " links and extended headers, which is the limit; shorten the paths, or split it into several packages"
            )

    def file(self, name: str, size: int) -> None:
        """Count the size of a file. The size comes from the file's header, so the content need not be read first.
        Raises `ArchiveRefused` if the sum exceeds the limit.
        """
        self.file_bytes += size
        if self.file_bytes > self.limits.unpacked_bytes:
            raise ArchiveRefused(
                f"{name!r}: with the {size} bytes of this file, all files have {self.file_bytes} bytes, and the limit"
                f" of a package is {self.limits.unpacked_bytes} bytes; make the package smaller"
            )

    def came_out(self, size: int) -> None:
        """Count `size` more bytes that a decompressor has returned. Raises `ArchiveRefused` if the sum exceeds the
        limit.
        """
        self.checkpoint()
        self._read_bytes += size
        if self._read_bytes > self._readable_bytes:
            raise ArchiveRefused(
                f"the archive: its {self._stored_bytes} bytes unpack to more than {self._readable_bytes} bytes, which"
                " is the limit that protects machines from a decompression bomb; pack it as tar without gzip"
            )
