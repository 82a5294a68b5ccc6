"""Writes the tables that are derived from the journal to the archive, so that queries need not convert events.

    a file of events ─► Conversion ─► one file per derived table, of the same day and the same revisions

A query then reads only the columns and row groups that it needs, and other programs can read the files (Spark). These
files can be written again at any time from the files of events. A file of events for which one of them is missing is
converted whenever a query reads it (`process/loading.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.parquet import ParquetFile

from scheduling.history.archive.archiver import ArchiveFailed, Archiver, archive_lock
from scheduling.history.archive.parquet import UnreadableArchive, open_file
from scheduling.history.archive.retention import DayRange
from scheduling.history.archive.tables import ROWS_PER_GROUP
from scheduling.history.infrastore.archive_files import Manifest
from scheduling.history.infrastore.columns import DERIVED
from scheduling.history.infrastore.tables import BEFORE, OF_EVENTS, Conversion, JobFacts, machines_after
from scheduling.journal.sql import query
from scheduling.models import ArchiveFile, ArchiveState, Cell
from scheduling.storage.files import FileStore, NotThere, StoreAway

# The rows of archived jobs are no longer in PostgreSQL, except for those that were copied back.
_FACTS = """
SELECT j.id, coalesce(e.pseudonym, t.name), j.name, j.kind, j.priority, j.latency_sensitive, coalesce(j.alloc_set_id, 0)
FROM (
    SELECT id, cell_id, tenant_id, name, kind, priority, latency_sensitive, alloc_set_id, ended_at FROM scheduling_job
    UNION ALL
    SELECT id, cell_id, tenant_id, name, kind, priority, latency_sensitive, alloc_set_id, ended_at
    FROM scheduling_archivedjob AS a WHERE NOT EXISTS (SELECT FROM scheduling_job AS k WHERE k.id = a.id)
) AS j JOIN quota_tenant AS t ON t.id = j.tenant_id LEFT JOIN scheduling_erasure AS e ON e.tenant_id = t.id
WHERE j.cell_id = %(cell)s AND (j.id = ANY(%(jobs)s) OR j.ended_at IS NULL OR j.ended_at >= %(day)s)"""

# Events that are converted at a time. One event may have the reservations of thousands of tasks.
_AT_ONCE = 2_000


def derive(files: FileStore, archiver: Archiver) -> None:
    """Write the missing files of derived tables, for all cells. `files`: the store of the archive; `archiver` writes to
    it.

    Cells that another archiver works on are left out. Raises `ArchiveFailed` at the end if a cell failed; the other
    cells are still done, and the next call continues with the first file that is missing.
    """
    failures = []
    for cell in Cell.with_history.order_by("id"):
        try:
            with archive_lock(cell.id) as own:
                manifest = Manifest(cell, DERIVED)
                for name in DERIVED if own else ():
                    _derive(files, archiver, manifest, name)
        except (ArchiveFailed, StoreAway, UnreadableArchive) as error:
            failures.append(f"cell {cell.name}: {error}")
    if failures:
        raise ArchiveFailed("; ".join(failures))


def _derive(files: FileStore, archiver: Archiver, manifest: Manifest, name: str) -> None:
    conversion, following = Conversion({}), None
    for file in manifest.underived(name):
        if file.first != following:
            earlier = [one for one in manifest.files(name) if one.first < file.first]
            conversion = Conversion({}, _machines_after(files, name, earlier))
        following = file.last + 1
        with _opened(files, file) as opened:
            conversion.jobs = _facts(file, _jobs_in(opened))
            groups = _in_groups(conversion.tables(events)[name] for events in _events(opened, DERIVED[name]))
            # PostgreSQL has no rows of these tables.
            wanted = DayRange(name, file.day, file.first, file.last)
            archiver.store(file.cell, wanted, groups, state=ArchiveState.SOLE)


@contextmanager
def _opened(files: FileStore, file: ArchiveFile) -> Iterator[ParquetFile]:
    try:
        with files.local(file.key) as path, open_file(path, name=file.key) as opened:
            yield opened
    except NotThere as error:
        raise ArchiveFailed(f"{file.key} is missing in the archive; restore it from a backup") from error


def _events(file: ParquetFile, kinds: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the events of some kinds in their order, a few at a time."""
    wanted = pa.array(kinds, pa.string())
    for number in range(file.num_row_groups):
        found = pc.is_in(file.read_row_group(number, columns=["kind"], use_threads=False)["kind"], value_set=wanted)
        if pc.any(found).as_py():
            events = file.read_row_group(number, columns=list(OF_EVENTS), use_threads=False).filter(found)
            yield from map(pa.Table.from_batches, ([batch] for batch in events.to_batches(_AT_ONCE)))


def _in_groups(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of `tables` again in tables of `ROWS_PER_GROUP` rows. The last one may have fewer."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= ROWS_PER_GROUP:
            joined = pa.concat_tables(waiting)
            whole = joined.num_rows // ROWS_PER_GROUP * ROWS_PER_GROUP
            yield from (joined.slice(begin, ROWS_PER_GROUP) for begin in range(0, whole, ROWS_PER_GROUP))
            waiting = [joined.slice(whole)]
    if any(one.num_rows for one in waiting):
        yield pa.concat_tables(waiting)


def _jobs_in(file: ParquetFile) -> list[int]:
    """Return the ids of the jobs that the events of a file belong to."""
    parts = (
        pc.unique(file.read_row_group(number, columns=["collection_id"], use_threads=False)["collection_id"])
        for number in range(file.num_row_groups)
    )
    return sorted(set(chain.from_iterable(part.drop_null().to_pylist() for part in parts)))


def _facts(file: ArchiveFile, jobs: Sequence[int]) -> dict[int, JobFacts]:
    """Return the facts of `jobs`, and those of all jobs that had not ended before the day of the file. A tenant that
    was erased appears under its pseudonym.
    """
    rows = query(_FACTS, {"cell": file.cell_id, "jobs": list(jobs), "day": file.day})
    return {row[0]: JobFacts._make(row[1:]) for row in rows}


def _machines_after(files: FileStore, name: str, earlier: Sequence[ArchiveFile]) -> dict[int, dict[str, str]]:
    """Return the attributes of each machine, by machine id, after the last row of the files `earlier`. They are files
    of the derived table `name`. The result is empty for tables that do not describe machines.
    """
    if name not in BEFORE:
        return {}
    return machines_after(name, chain.from_iterable(_rows(files, one, BEFORE[name]) for one in earlier))


def _rows(files: FileStore, file: ArchiveFile, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    with _opened(files, file) as opened:
        table = opened.read(columns=list(columns), use_threads=False)
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))
