"""The full journal beside the journal: for each revision the number of its events and a digest of their bytes.

    PostgreSQL, after each commit ─► `note` ─► a file that nothing deletes
    archive, PostgreSQL at the end ─► the same digests ─► `compare`

A digest covers every column of every event, as text, and `data` byte by byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from scheduling.models import Cell

# The columns in PostgreSQL and in the archive.
_COLUMNS = {
    "id": "id",
    "revision": "revision",
    "seq": "seq",
    "(extract(epoch FROM time) * 1000000)::bigint": "time_us",
    "kind": "kind",
    "version": "version",
    "job_id": "collection_id",
    "task_index": "instance_index",
    "machine_id": "machine_id",
    "actor": "actor",
    "request_id": "request_id",
    "caused_by_revision": "caused_by_revision",
    "caused_by_seq": "caused_by_seq",
    "data": "data",
}
_LINE = " || '|' || ".join(f"coalesce(({column})::text, '')" for column in _COLUMNS)
_DIGESTS = (
    f"SELECT revision, count(*), encode(sha256(convert_to(string_agg({_LINE}, E'\\n' ORDER BY seq), 'UTF8')), 'hex')"
    " FROM scheduling_event WHERE cell_id = %s AND revision > %s GROUP BY revision ORDER BY revision"
)
# revision, number of events, digest
Noted = tuple[int, int, str]


@dataclass(slots=True)
class Comparison:
    """What differs between the witness and the archive with PostgreSQL: revisions that are missing, that are in two
    files, and whose bytes differ.
    """

    revisions: int = 0
    events: int = 0
    missing: list[int] = field(default_factory=list)
    twice: list[int] = field(default_factory=list)
    differ: list[int] = field(default_factory=list)


class Witness:
    """The file of one cell. A run that continues an earlier one continues its file."""

    def __init__(self, cell_id: int, file: Path) -> None:
        self._cell_id, self._file = cell_id, file
        file.touch()
        self._last = max((revision for revision, _, _ in self._noted()), default=0)

    def note(self) -> None:
        """Note the revisions that were committed since the last call."""
        from scheduling.journal.sql import query

        found = query(_DIGESTS, [self._cell_id, self._last])
        with self._file.open("a") as out:
            out.writelines(f"{revision} {number} {digest}\n" for revision, number, digest in found)
        self._last = found[-1][0] if found else self._last

    def compare(self, cell: Cell) -> Comparison:
        """Read all files of the archive and all rows of PostgreSQL. Each revision that was noted is in exactly one
        file of the archive, or only in PostgreSQL, and rows that PostgreSQL has beside the archive are equal.
        """
        from scheduling.history.archive.retention import archived_until
        from scheduling.journal.sql import query

        found: dict[int, tuple[int, str]] = {}
        result = Comparison()
        for revision, number, digest in _archived(cell):
            if revision in found:
                result.twice.append(revision)
            found[revision] = (number, digest)
        until = archived_until(cell, "events")
        for revision, number, digest in query(_DIGESTS, [cell.id, 0]):
            if revision > until:
                found[revision] = (number, digest)
            elif found.get(revision) != (number, digest):
                result.differ.append(revision)
        for revision, number, digest in self._noted():
            result.revisions, result.events = result.revisions + 1, result.events + number
            if revision not in found:
                result.missing.append(revision)
            elif found.pop(revision) != (number, digest):
                result.differ.append(revision)
        result.twice += found  # revisions that nobody committed
        return result

    def _noted(self) -> Iterator[Noted]:
        with self._file.open() as lines:
            for line in lines:
                revision, number, digest = line.split()
                yield int(revision), int(number), digest


def _archived(cell: Cell) -> Iterator[Noted]:
    from scheduling.history.archive import parquet
    from scheduling.history.archive.store import store
    from scheduling.models import ArchiveFile, ArchiveState

    files = ArchiveFile.objects.filter(cell=cell, table="events").exclude(state=ArchiveState.DELETED)
    for file in files.select_related("cell").order_by("first"):
        with store().local(file.key) as path, parquet.open_file(path, name=file.key) as opened:
            yield from _digests(opened.read())


def _digests(table: pa.Table) -> Iterator[Noted]:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [table[name].cast(pa.string()) for name in _COLUMNS.values()]
    lines = pc.binary_join_element_wise(*texts, "|", null_handling="replace", null_replacement="").to_pylist()
    revisions = table["revision"].to_pylist()
    first = 0
    for place in range(1, len(lines) + 1):
        if place == len(lines) or revisions[place] != revisions[first]:
            digest = hashlib.sha256("\n".join(lines[first:place]).encode()).hexdigest()
            yield revisions[first], place - first, digest
            first = place
