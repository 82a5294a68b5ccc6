"""The file format of checkpoints: sections of columns, each with a checksum. Pure.

    magic (8 bytes) | format version, length and CRC of the header (3 × uint32) | header, JSON | section | section | …

A section is one Arrow table in Arrow's stream format, compressed with Zstandard. The header lists the sections with
their sizes and SHA-256 sums. A reader ignores sections that it does not know. A change that older readers would misread
increases `FORMAT`.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

if TYPE_CHECKING:
    import pyarrow

MAGIC = b"BORGCKPT"
FORMAT = 1
_PREFIX = struct.Struct("<8sIII")
# Larger headers come only from damaged files.
_LARGEST_HEADER = 1 << 24
_LARGEST_SECTION = 1 << 31


class CheckpointError(ValueError):
    """The error for a file that is not a readable checkpoint. `section`: the damaged section; `header` if the header
    itself is damaged.
    """

    def __init__(self, section: str, problem: str) -> None:
        super().__init__(f"Cannot read the checkpoint: {problem}")
        self.section = section


class Section(msgspec.Struct, frozen=True):
    """A section of a file. `bytes`: its size in the file; `raw_bytes`: its size without compression."""

    name: str
    rows: int
    bytes: int
    raw_bytes: int
    sha256: str


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header of a checkpoint: which cell it describes, and when. `taken_at`: seconds since the epoch. `history`:
    the id of the cell's history (`Cell.history_id`); only revisions of the same history, and of those that the cell
    continues, belong together. `redacted`: names, commands and environments are replaced by hashes. `events`: grows by
    1 with each event of the journal, so the difference of two checkpoints that belong together is the number of events
    between them; 0 in older files. `settings`: the cell's settings, as they were stored when the file was written;
    empty in older files.
    """

    cell: str
    revision: int
    taken_at: float
    history: str
    extra_resources: tuple[str, ...] = ()
    redacted: bool = False
    events: int = 0
    settings: dict[str, Any] = {}
    sections: tuple[Section, ...] = ()

    @property
    def taken(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.taken_at, dt.UTC)

    @property
    def bytes(self) -> int:
        """Return the size of all sections in the file, in bytes."""
        return sum(section.bytes for section in self.sections)


def write(file: BinaryIO, header: Header, tables: dict[str, pyarrow.Table]) -> Header:
    """Write a checkpoint to `file`. Return the header with its sections."""
    payloads = {name: _pack(table) for name, table in tables.items()}
    sections = tuple(
        Section(name, tables[name].num_rows, len(packed), raw_bytes, hashlib.sha256(packed).hexdigest())
        for name, (packed, raw_bytes) in payloads.items()
    )
    header = msgspec.structs.replace(header, sections=sections)
    encoded = msgspec.json.encode(header)
    file.write(_PREFIX.pack(MAGIC, FORMAT, len(encoded), zlib.crc32(encoded)))
    file.write(encoded)
    for packed, _ in payloads.values():
        file.write(packed)
    return header


def read_header(file: BinaryIO) -> Header:
    """Return the header of a checkpoint, and leave `file` at its first section. Raises `CheckpointError` if the header
    cannot be read.
    """
    prefix = file.read(_PREFIX.size)
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise CheckpointError("header", "the file does not begin like a checkpoint; give another file")
    _, version, length, checksum = _PREFIX.unpack(prefix)
    if version > FORMAT:
        problem = (
            f"the file has format version {version}, and this release reads versions up to {FORMAT}; upgrade Borg"
            " Portal"
        )
        raise CheckpointError("header", problem)
    encoded = file.read(length) if length <= _LARGEST_HEADER else b""
    if version < 1 or len(encoded) < length or zlib.crc32(encoded) != checksum:
        raise CheckpointError("header", "the header of the file is damaged; use another copy or an earlier checkpoint")
    try:
        return msgspec.json.decode(encoded, type=Header)
    except msgspec.MsgspecError as error:
        problem = f"the header of the file does not have the expected form ({error}); save the checkpoint again"
        raise CheckpointError("header", problem) from error


def read(file: BinaryIO) -> tuple[Header, dict[str, pyarrow.Table]]:
    """Return the header and the tables of a checkpoint, by name of the section. Raises `CheckpointError` if a section
    is missing in part or was changed, or if the file continues after the last section.
    """
    header = read_header(file)
    tables = {section.name: _unpack(section, packed) for section, packed in _payloads(file, header)}
    return header, tables


def verify(file: BinaryIO) -> Header:
    """Read a checkpoint completely, and return its header. Raises `CheckpointError` if a checksum is wrong, a section
    is missing in part, or the file continues after the last section.
    """
    header = read_header(file)
    for _ in _payloads(file, header):
        pass
    return header


def _payloads(file: BinaryIO, header: Header) -> Iterator[tuple[Section, bytes]]:
    for section in header.sections:
        packed = file.read(section.bytes)
        if len(packed) < section.bytes:
            problem = (
                f"the file is truncated, because its section {section.name} has only {len(packed)} of {section.bytes}"
                " bytes; use another copy or an earlier checkpoint"
            )
            raise CheckpointError(section.name, problem)
        if hashlib.sha256(packed).hexdigest() != section.sha256:
            problem = (
                f"the section {section.name} is damaged, because its checksum differs; use another copy or an earlier"
                " checkpoint"
            )
            raise CheckpointError(section.name, problem)
        yield section, packed
    if file.read(1):
        last = header.sections[-1].name if header.sections else "header"
        problem = f"the file has more bytes after its last section, {last}; use another copy or an earlier checkpoint"
        raise CheckpointError(last, problem)


def _pack(table: pyarrow.Table) -> tuple[bytes, int]:
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    raw = sink.getvalue()
    return pyarrow.compress(raw, codec="zstd", asbytes=True), raw.size


def _unpack(section: Section, packed: bytes) -> pyarrow.Table:
    import pyarrow

    if section.raw_bytes > _LARGEST_SECTION:
        problem = (
            f"the section {section.name} would have {section.raw_bytes} bytes without compression, and at most"
            f" {_LARGEST_SECTION} are read; give another file"
        )
        raise CheckpointError(section.name, problem)
    try:
        raw = pyarrow.decompress(packed, decompressed_size=section.raw_bytes, codec="zstd")
        with pyarrow.ipc.open_stream(raw) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        problem = f"the section {section.name} is not a valid table ({error}); save the checkpoint again"
        raise CheckpointError(section.name, problem) from error
    return table
