"""Readers for the bytes of an archive. They read only forward, in pieces of limited size."""

from __future__ import annotations

import zlib
from typing import BinaryIO, Protocol

from borglet.packages.archives.limits import ArchiveCost, ArchiveRefused

PIECE_BYTES = 256 * 1024
_GZIP = 16 + zlib.MAX_WBITS


class ByteStream(Protocol):
    def read(self, size: int) -> bytes:
        """Return at most `size` bytes. The result may be shorter, and is empty only at the end."""

    def skip(self, size: int) -> int:
        """Skip at most `size` bytes. Return how many bytes were skipped, which is 0 only at the end."""


class Slice:
    """A reader of a part of a file: `size` bytes from `offset` on. Several slices of one file can be read at the same
    time in one thread.
    """

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._left = file, offset, size

    def read(self, size: int) -> bytes:
        self._file.seek(self._offset)
        found = self._file.read(min(size, self._left))
        self._offset += len(found)
        self._left -= len(found)
        return found

    def skip(self, size: int) -> int:
        skipped = min(size, self._left)
        self._offset += skipped
        self._left -= skipped
        return skipped


class Gunzip:
    """A reader that decompresses a gzip stream. The stream can have several parts (members). Zeros after the last
    member are ignored.
    """

    def __init__(self, source: ByteStream, account: ArchiveCost) -> None:
        self._source, self._account = source, account
        self._inflate = zlib.decompressobj(_GZIP)
        self._input = b""
        self._begun = False  # whether a member has begun and not ended

    def read(self, size: int) -> bytes:
        """Return at most `size` decompressed bytes; empty at the end. Raises `ArchiveRefused` if the stream is damaged
        or exceeds a limit.
        """
        while True:
            if not self._input:
                self._input = self._source.read(PIECE_BYTES)
            if not self._begun:
                self._input = self._input.lstrip(b"\0") if self._inflate.eof else self._input
            if not self._input:
                if self._begun or not self._inflate.eof:
                    raise ArchiveRefused("the archive: its gzip data is incomplete; pack it again")
                return b""
            if not self._begun:
                self._inflate = zlib.decompressobj(_GZIP)
                self._begun = True
            try:
                found = self._inflate.decompress(self._input, min(size, PIECE_BYTES))
            except zlib.error as error:
                raise ArchiveRefused(f"the archive: its gzip data is damaged: {error}; pack it again") from error
            if self._inflate.eof:
                self._input, self._begun = self._inflate.unused_data, False
            else:
                self._input = self._inflate.unconsumed_tail
            if found:
                self._account.came_out(len(found))
                return found

    def skip(self, size: int) -> int:
        """Read and ignore at most `size` decompressed bytes. Return how many bytes were skipped. Raises
        `ArchiveRefused` if the stream is damaged or exceeds a limit.
        """
        return len(self.read(size))
