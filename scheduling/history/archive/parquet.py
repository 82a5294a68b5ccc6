"""Files of the archive: writing them, reading them back completely, and opening files of any known version.

The metadata of a file name its table, its cell and the version of its schema. The checksum `content` covers the rows
and does not depend on how Parquet stores them, so that a file can be compared with the rows of PostgreSQL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet as pq

from scheduling.history.archive.tables import ARCHIVE_TABLES, ROWS_PER_GROUP, ArchiveTable

_TABLE, _VERSION, _CELL = b"borg.table", b"borg.schema_version", b"borg.cell"


class UnreadableArchive(Exception):
    """Raised if a file of the archive cannot be read. The message names the file, the problem and the cure."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The number of rows in a file, and their checksum `content`. `first`, `last`: the smallest and the largest value
    of the column `ArchiveTable.place`; 0 if there are no rows.
    """

    rows: int
    first: int
    last: int
    content: str


class _Summary:
    """Computes the `Contents` of a file while its rows are written or read, one row group at a time."""

    def __init__(self, table: ArchiveTable) -> None:
        self._table, self._hash = table, hashlib.sha256()
        self._rows, self._first, self._last = 0, 0, 0

    def add(self, group: pa.Table) -> None:
        places = group[self._table.place]
        ends = pc.min_max(places.cast(pa.int64()))
        self._first = ends["min"].as_py() if self._rows == 0 else min(self._first, ends["min"].as_py())
        self._last = max(self._last, ends["max"].as_py())
        self._rows += group.num_rows
        self._hash.update(_digest(group))

    def contents(self) -> Contents:
        per_place = 1_000_000 if pa.types.is_timestamp(self._table.types[self._table.place]) else 1
        return Contents(self._rows, self._first // per_place, self._last // per_place, self._hash.hexdigest())


def write(path: Path, table: ArchiveTable, cell: str, groups: Iterable[pa.Table]) -> Contents:
    """Write tables of at most `ROWS_PER_GROUP` rows to a new file, one row group each, and sync it to the disk. Return
    what was written. Raises `OSError` if the disk is full.
    """
    summary = _Summary(table)
    schema = table.schema.with_metadata({_TABLE: table.name, _VERSION: str(table.version), _CELL: cell})
    with path.open("wb") as file:
        with pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in table.dictionaries if name in table.types],
            column_encoding={
                name: "DELTA_BINARY_PACKED"
                for name, kind in table.types.items()
                if (pa.types.is_int64(kind) or pa.types.is_int32(kind)) and name not in table.dictionaries
            },
            write_statistics=True,
        ) as writer:
            for group in groups:
                writer.write_table(group, row_group_size=ROWS_PER_GROUP)
                summary.add(group)
        file.flush()
        os.fsync(file.fileno())
    return summary.contents()


def open_file(path: Path, *, name: str = "") -> pq.ParquetFile:
    """Open a file of the archive. `name`: its name in errors. Raises `UnreadableArchive` if it is damaged, or if a
    newer version has written it.
    """
    name = name or str(path)
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableArchive(f"{name} is damaged: {error}; restore the file from a backup of the archive") from error
    metadata = file.schema_arrow.metadata or {}
    table = ARCHIVE_TABLES.get(metadata.get(_TABLE, b"").decode())
    if table is None or not metadata.get(_VERSION, b"").isdigit():
        raise UnreadableArchive(
            f"{name} is not a file of the archive, because its metadata does not contain a table and a version; restore"
            " the file from a backup of the archive"
        )
    version = int(metadata[_VERSION])
    if version > table.version:
        raise UnreadableArchive(
            f"{name} has version {version} of the schema of {table.name}, and this release reads versions up to"
            f" {table.version}; upgrade to the release that wrote the file"
        )
    return file


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_back(path: Path) -> Contents:
    """Read a file completely, and return the number, range and checksum of its rows. Raises `UnreadableArchive` if it
    is damaged.
    """
    with open_file(path) as file:
        table = ARCHIVE_TABLES[file.schema_arrow.metadata[_TABLE].decode()]
        summary = _Summary(table)
        try:
            for group in range(file.num_row_groups):
                summary.add(file.read_row_group(group, use_threads=False))
        except (pa.ArrowException, OSError) as error:
            raise UnreadableArchive(f"{path} is damaged: {error}; restore the file from a backup") from error
        return summary.contents()


def _digest(group: pa.Table) -> bytes:
    found = hashlib.sha256()
    for column in group.columns:
        _add_column(found, column.combine_chunks())
    return found.digest()


def _add_column(found: Any, array: pa.Array) -> None:
    """Add the values of an array to the hash object `found`. Equal arrays give equal hashes, whatever bytes Arrow
    stores in the places of nulls.
    """
    found.update(_bytes(pc.is_null(array).cast(pa.uint8())))
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    if pa.types.is_struct(array.type):
        for part in array.flatten():
            _add_column(found, part)
    elif pa.types.is_list(array.type):
        found.update(_bytes(pc.fill_null(pc.list_value_length(array), 0)))
        _add_column(found, pc.list_flatten(array))
    elif pa.types.is_string(array.type):
        filled = pc.fill_null(array, "")
        found.update(_bytes(pc.binary_length(filled)))
        _, offsets, data = filled.buffers()
        ends = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
        if data is not None and len(ends):
            found.update(memoryview(data)[ends[0] : ends[-1]])
    else:
        numbers = array.cast(pa.int64()) if pa.types.is_timestamp(array.type) else array
        found.update(_bytes(pc.fill_null(numbers, pa.scalar(0, numbers.type))))


def _bytes(array: pa.Array) -> Any:
    return np.ascontiguousarray(array.to_numpy(zero_copy_only=False)).view(np.uint8)
