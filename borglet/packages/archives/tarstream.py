"""A reader of tar archives. It rejects an archive that different programs could read differently.

Python's `tarfile` is not safe for hostile archives: it reads extended headers of any size, continues after damage, and
accepts sparse files. This reader accepts ustar, GNU long names, and pax with path, linkpath and size. It ignores
owners, times and extended attributes, because a package has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from borglet.packages.archives.limits import ArchiveCost, ArchiveRefused
from borglet.packages.archives.streams import PIECE_BYTES, ByteStream

BLOCK = 512
_ZEROS = bytes(BLOCK)
_OCTAL = re.compile(rb"[ \0]*([0-7]*)[ \0]*\Z")
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,9}) ")


class EntryKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMBOLIC_LINK = "symbolic link"
    HARD_LINK = "hard link"


_KINDS = {
    b"0": EntryKind.FILE,
    b"\0": EntryKind.FILE,
    b"7": EntryKind.FILE,
    b"1": EntryKind.HARD_LINK,
    b"2": EntryKind.SYMBOLIC_LINK,
    b"5": EntryKind.DIRECTORY,
}
_REFUSED = {b"3": "a character device", b"4": "a block device", b"6": "a fifo", b"S": "a sparse file"}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One entry of an archive, from its headers. `name` and `target` are not checked yet."""

    name: str
    kind: EntryKind
    size: int  # bytes of a file
    executable: bool
    target: str  # target of a link
    offset: int  # position of the content in the stream


class TarStream:
    """The entries of an archive. Iterate over them once. `content` can be called once per entry."""

    def __init__(self, stream: ByteStream, account: ArchiveCost) -> None:
        self._stream, self._account = stream, account
        self._offset = 0
        self._name = ""  # of the present entry
        self._left = 0  # unread bytes of the present entry
        self._padding = 0

    def __iter__(self) -> Iterator[TarEntry]:
        """Yield the entries. Raises `ArchiveRefused` if the archive is damaged or has an entry that is not allowed."""
        while True:
            self._skip()
            entry = self._next()
            if entry is None:
                return
            yield entry

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of the present entry. Raises `ArchiveRefused` if the archive ends too early."""
        while self._left:
            piece = self._stream.read(min(self._left, PIECE_BYTES))
            self._came(len(piece))
            yield piece

    def _where(self) -> str:
        """Return a text that says where in the archive a header is wrong."""
        return f"after the entry {self._name!r}" if self._name else "at the start of the archive"

    def _skip(self) -> None:
        """Skip the unread content of the last entry, and its padding."""
        while self._left:
            self._came(self._stream.skip(self._left))
        if self._padding:
            self._exactly(self._padding)
            self._padding = 0

    def _came(self, size: int) -> None:
        if not size:
            raise ArchiveRefused(f"{self._name!r}: the archive ends {self._left} bytes too early; pack it again")
        self._left -= size
        self._offset += size

    def _exactly(self, size: int) -> bytes:
        found = self._stream.read(size)
        while len(found) < size:
            piece = self._stream.read(size - len(found))
            if not piece:
                raise ArchiveRefused(f"{self._where()}: the archive ends too early; pack it again")
            found += piece
        self._offset += size
        return found

    def _next(self) -> TarEntry | None:
        long: dict[str, str] = {}  # fields from extended headers of the next entry
        met: set[bytes] = set()
        while True:
            header = self._exactly(BLOCK)
            if header == _ZEROS:
                if met:
                    raise ArchiveRefused(
                        f"{self._where()}: the archive ends after an extended header, without its entry; pack it again"
                    )
                self._end()
                return None
            try:
                self._check_sum(header)
            except ArchiveRefused as refused:
                if self._offset > BLOCK:
                    raise
                raise ArchiveRefused("the archive: it is not a tar; pack it as tar or tar with gzip") from refused
            kind = header[156:157]
            size = self._number(header[124:136], "size")
            if kind not in b"xgLK":
                return self._entry(header, kind, size, long)
            if kind in met:
                raise ArchiveRefused(
                    f"{self._where()}: an entry has two extended headers of the same kind; pack it again"
                )
            met.add(kind)
            content = self._extended(size)
            if kind == b"L":
                long["path"] = self._text(content.rstrip(b"\0"))
            elif kind == b"K":
                long["linkpath"] = self._text(content.rstrip(b"\0"))
            else:
                self._pax(content, long, every=kind == b"g")

    def _end(self) -> None:
        """Check that only padding follows the last entry, and that the gzip stream ends correctly."""
        while piece := self._stream.read(PIECE_BYTES):
            if piece.count(0) != len(piece):
                raise ArchiveRefused(f"{self._where()}: the file has data after the end of the tar; pack it again")

    def _check_sum(self, header: bytes) -> None:
        wanted = self._number(header[148:156], "checksum")
        found = sum(header) - sum(header[148:156]) + 8 * ord(" ")
        if wanted != found:
            raise ArchiveRefused(
                f"{self._where()}: a header has the checksum {wanted}, but it should be {found}; pack it again"
            )

    def _number(self, field: bytes, what: str) -> int:
        if field[0] == 0x80:  # GNU's base 256, positive
            return int.from_bytes(field[1:], "big")
        match = _OCTAL.match(field)
        if match is None:
            raise ArchiveRefused(f"{self._where()}: a header's {what} {field!r} is not an octal number; pack it again")
        return int(match.group(1) or b"0", 8)

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ArchiveRefused(f"{raw[:100]!r}: the name is not valid UTF-8; rename the file") from error

    def _extended(self, size: int) -> bytes:
        if size > self._account.limits.header_bytes:
            raise ArchiveRefused(
                f"{self._where()}: an extended header has {size} bytes, and the limit is"
                f" {self._account.limits.header_bytes}; use shorter names"
            )
        self._account.metadata(self._name or "the archive", size)
        content = self._exactly(size)
        self._exactly(-size % BLOCK)
        return content

    def _pax(self, content: bytes, long: dict[str, str], *, every: bool) -> None:
        while content:
            match = _PAX_LENGTH.match(content)
            length = int(match.group(1)) if match else 0
            record = content[match.end() : length] if match else b""
            key, equals, value = record.partition(b"=")
            if not equals or not value.endswith(b"\n") or length > len(content):
                raise ArchiveRefused(f"{self._where()}: a pax header is damaged; pack it again")
            content, value = content[length:], value[:-1]
            if key.startswith(b"GNU.sparse"):
                raise ArchiveRefused(f"{self._where()}: a file is sparse; pack it without tar's option --sparse")
            if key not in (b"path", b"linkpath", b"size"):
                continue
            if every:
                raise ArchiveRefused(
                    f"{self._where()}: a global pax header sets {key.decode()}, which is not supported; pack it without"
                    " global headers"
                )
            if key.decode() in long:
                raise ArchiveRefused(
                    f"{self._where()}: the extended headers of an entry set {key.decode()} twice; pack it again"
                )
            long[key.decode()] = self._text(value)

    def _entry(self, header: bytes, kind: bytes, size: int, long: dict[str, str]) -> TarEntry:
        name = long["path"] if "path" in long else self._short_name(header)
        self._name = name
        self._account.entry(name)
        self._account.metadata(name, len(name))
        if kind in _REFUSED:
            raise ArchiveRefused(
                f"{name!r}: it is {_REFUSED[kind]}, and a package can contain only files, directories and links;"
                " leave it out"
            )
        if kind not in _KINDS:
            raise ArchiveRefused(f"{name!r}: its entry type {kind!r} is unknown; leave it out")
        found = _KINDS[kind]
        if kind == b"\0" and name.endswith("/"):
            found = EntryKind.DIRECTORY
        if "size" in long:
            if not (long["size"].isascii() and long["size"].isdigit() and len(long["size"]) < 20):
                raise ArchiveRefused(f"{name!r}: its size {long['size'][:30]!r} is not a number; pack it again")
            size = int(long["size"])
        if found is EntryKind.FILE:
            self._account.file(name, size)
            self._left, self._padding = size, -size % BLOCK
        elif size:
            raise ArchiveRefused(
                f"{name!r}: it is a {found} and must have no content, but it has {size} bytes; pack it again"
            )
        target = ""
        if found in (EntryKind.SYMBOLIC_LINK, EntryKind.HARD_LINK):
            target = long["linkpath"] if "linkpath" in long else self._text(_until_nul(header[157:257]))
            self._account.metadata(name, len(target))
        mode = self._number(header[100:108], "mode")
        return TarEntry(name, found, size, bool(mode & 0o111), target, self._offset)

    def _short_name(self, header: bytes) -> str:
        name = _until_nul(header[:100])
        prefix = _until_nul(header[345:500]) if header[257:263] == b"ustar\0" else b""
        return self._text(prefix + b"/" + name if prefix else name)


def _until_nul(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
