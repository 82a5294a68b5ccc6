"""Copies closed days of the journal and of usage, ended jobs and metered hours to the archive. Then deletes from
PostgreSQL the rows that are in the archive and old.

    rows ─► draft ─► read back ─► store ─► hashed in the store ─► manifest
    partition: all rows in the manifest, files hashed again ─► marked ─► detached ─► dropped
    ended jobs: in the manifest and in the index, file hashed again ─► marked ─► deleted, in bounded transactions
    old specs, metered hours: file recorded in the manifest and rows deleted in one transaction
    month of metered hours: no row is left ─► dropped

The archiver may be killed at any point: the next run repeats the step. A file of a day has the same name when it is
written again, and files that are not in the manifest are deleted. A row of the manifest is written only after the file
was verified. A session lock of PostgreSQL per cell makes sure that only one archiver runs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pyarrow as pa
import structlog
from django.db import transaction
from django.utils import timezone

from quota.models import metered_months
from quota.models.metered_hours import LONGEST_WAIT_S, HoursInUse, held_by_archiver
from scheduling.history.archive import ended_jobs, metered, old_specs, parquet, retention
from scheduling.history.archive.ended_jobs import ENDED, EndedJobs
from scheduling.history.archive.job_rows import rows_of_jobs
from scheduling.history.archive.metered import MeteredHours
from scheduling.history.archive.old_specs import OldSpecs
from scheduling.history.archive.parquet import UnreadableArchive
from scheduling.history.archive.retention import TABLES, DayRange, OldPartition
from scheduling.history.archive.store import EVENTS, USAGE, sha256_of
from scheduling.history.archive.tables import ARCHIVE_TABLES, rows_of
from scheduling.journal import partitions
from scheduling.journal.sql import execute, query
from scheduling.models import ArchiveFile, ArchiveState, Cell, Event
from scheduling.storage.files import DamagedFile, FileStore, NotThere, StoreAway
from scheduling.usage import usage_windows

log = structlog.get_logger(__name__)

_LOCK = "scheduling_archive"
USAGE_LOCK = 0  # no cell has this id


class ArchiveFailed(Exception):
    """Raised if rows could not be archived, and are still in PostgreSQL. The message names the problem and the cure."""


@dataclass(slots=True)
class Archived:
    """The result of a run of the archiver: numbers of written files, rows and bytes, of dropped partitions, of jobs
    deleted from PostgreSQL, and of deleted files.
    """

    files: int = 0
    rows: int = 0
    bytes: int = 0
    partitions: int = 0
    jobs: int = 0
    deleted: int = 0


class Archiver:
    """Archives into the store `files`. `at`: a function that is called at each step, with the name of the step; tests
    use it.
    """

    def __init__(self, files: FileStore, *, at: Callable[[str], None] = lambda step: None) -> None:
        self._files, self._at = files, at
        self.done = Archived()

    def run(self, *, now: dt.datetime) -> Archived:
        """Archive the closed days and the ended jobs of all cells, and delete archived rows and files that are old.
        Return how many. Raises `ArchiveFailed` at the end if a cell failed; the other cells are still archived.
        """
        failures = []
        for cell in Cell.with_history.order_by("id"):
            try:
                with archive_lock(cell.id) as own:
                    if own:
                        self.archive_cell(cell, now=now)
            except (ArchiveFailed, StoreAway) as error:
                failures.append(f"cell {cell.name}: {error}")
        try:
            with archive_lock(USAGE_LOCK) as own:
                if own:
                    self._drop_usage(now=now)
                    self._drop_metered(now=now)
        except (ArchiveFailed, StoreAway) as error:
            failures.append(str(error))
        if failures:
            raise ArchiveFailed("; ".join(failures))
        return self.done

    def archive_cell(self, cell: Cell, *, now: dt.datetime) -> None:
        """Archive all closed days of a cell, then drop its old partitions of events, its ended jobs, specs and metered
        hours that are old, and its expired files.
        """
        self._check_key(cell)
        for table in TABLES:
            while (wanted := retention.next_range(cell, table, now=now)) is not None:
                self._store(cell, wanted)
        for old in retention.old_partitions_of_events(cell, now=now):
            self._drop_events(cell, old)
        partitions.drop_detached(Event._meta.db_table)
        # The events and the usage of the jobs are archived by now. They are stored with the names of the jobs' tenants.
        self._delete_jobs(cell, now=now)
        while (jobs := ended_jobs.next_jobs(cell, now=now)) is not None:
            self._store(cell, jobs)
            self._delete_jobs(cell, now=now)
        while (specs := old_specs.next_specs(cell, now=now)) is not None:
            self._store(cell, specs)
        while (hours := metered.next_hours(cell, now=now)) is not None:
            self._store(cell, hours)
        for file in retention.expired_files(cell, now=now):
            self._files.delete(file.key)
            self._at("deleted")
            with transaction.atomic():
                ended_jobs.forget(file)
                ArchiveFile.objects.filter(pk=file.pk).update(state=ArchiveState.DELETED)
            self.done.deleted += 1

    def _store(self, cell: Cell, wanted: DayRange, *, generation: int = 0) -> ArchiveFile:
        return self.store(cell, wanted, _rows(cell, wanted), generation=generation)

    def store(
        self,
        cell: Cell,
        wanted: DayRange,
        groups: Iterable[pa.Table],
        *,
        generation: int = 0,
        state: ArchiveState | None = None,
    ) -> ArchiveFile:
        """Write the rows of one range to the store, verify the file there, and record it in the manifest. The caller
        has the lock of the cell.

        `groups`: the rows, as tables that become one row group each. `generation`: how often an erasure has replaced
        the file. `state`: the new state of the file, if it is not the default for a new file. Raises `ArchiveFailed` if
        the file cannot be written, or differs from the rows when it is read back.
        """
        table = ARCHIVE_TABLES[wanted.table]
        file = ArchiveFile(
            cell=cell, table=wanted.table, day=wanted.day, first=wanted.first, last=wanted.last, rows=0, bytes=0
        )
        file.generation = generation
        draft = self._files.spool() / f"archive-{cell.history_id}"  # the lock of the cell protects it
        try:
            self._at("began")
            try:
                written = parquet.write(draft, table, cell.recorded_name, groups)
                self._at("written")
                if parquet.read_back(draft) != written:
                    raise ArchiveFailed(
                        f"the local copy of the archive file {file.key} does not contain the rows that were written to"
                        " it; check the disk. The next run of the archiver writes the file again"
                    )
            except (OSError, UnreadableArchive) as error:
                raise ArchiveFailed(f"cannot write {file.key} to {draft.parent}: {error}; check the disk") from error
            if written.rows and not (wanted.first <= written.first and written.last <= wanted.last):
                raise ArchiveFailed(
                    f"{file.key} contains rows of {written.first} to {written.last}, but should contain only rows of"
                    f" {wanted.first} to {wanted.last}; report this as a bug"
                )
            file.rows, file.content = written.rows, written.content
            file.bytes, file.sha256 = draft.stat().st_size, parquet.sha256(draft)
            file.schema_version, file.written_at = table.version, timezone.now()
            self._at("verified")
            self._clear(cell, wanted)
            self._files.put(file.key, draft)
            self._at("stored")
        finally:
            draft.unlink(missing_ok=True)
        self._check(file)
        self._at("checked")
        with _recording(file, wanted):
            recorded, _ = ArchiveFile.objects.update_or_create(
                cell=cell,
                table=wanted.table,
                first=wanted.first,
                defaults={
                    name: getattr(file, name)
                    for name in (
                        *("day", "last", "generation", "rows", "bytes"),
                        *("sha256", "content", "schema_version", "written_at"),
                    )
                }
                | ({"state": state.value} if state else {}),
            )
            if isinstance(wanted, EndedJobs):
                ended_jobs.index(recorded, wanted.jobs)
            elif isinstance(wanted, OldSpecs):
                old_specs.delete(recorded, wanted)
            elif isinstance(wanted, MeteredHours):
                if not metered.delete(recorded, wanted):
                    raise ArchiveFailed(f"metered hours of {file.key} have just changed; the next run archives them")
                self._at("moved")
        self._at("recorded")
        self.done.files, self.done.rows = self.done.files + 1, self.done.rows + file.rows
        self.done.bytes += file.bytes
        log.info("archived", file=file.key, rows=file.rows, bytes=file.bytes)
        return file

    def _clear(self, cell: Cell, wanted: DayRange) -> None:
        """Delete files of the table that the manifest does not contain. A killed archiver has left them. For ended
        jobs, old specs and metered hours, the files of all days are searched, because this run may have chosen other
        rows than the killed one. For other tables, only the files of the same day are searched.
        """
        folder, files = f"{cell.folder}/{wanted.table}", ArchiveFile.objects.filter(cell=cell, table=wanted.table)
        if not isinstance(wanted, EndedJobs | OldSpecs | MeteredHours):
            folder, files = f"{folder}/day={wanted.day:%Y-%m-%d}", files.filter(day=wanted.day)
        known = {file.key for file in files.select_related("cell")}
        for found in list(self._files.listing(folder)):
            if found.key not in known:
                self._files.delete(found.key)

    def _check_key(self, cell: Cell) -> None:
        """Raise `UnknownKey` if the newest file of the cell is encrypted with a key that is missing. Otherwise nobody
        would notice the lost setting, and new files would have another key or no encryption.
        """
        newest = ArchiveFile.objects.filter(cell=cell, rows__gt=0).exclude(state=ArchiveState.DELETED).order_by("-id")
        if (file := newest.select_related("cell").first()) is not None:
            with suppress(NotThere, DamagedFile), self._files.read(file.key) as chunks:
                next(chunks, b"")

    def _check(self, file: ArchiveFile) -> None:
        """Compare the file in the store with the checksum in the manifest. Raises `ArchiveFailed` if the file is
        damaged.
        """
        if sha256_of(self._files, file.key) != file.sha256:
            raise ArchiveFailed(
                f"{file.key} in the archive is damaged or missing; check the store of BORG_ARCHIVE. PostgreSQL keeps"
                " the rows, and the next run writes the file again"
            )

    def _keep_only_in_archive(self, files: list[ArchiveFile]) -> None:
        """Check files before PostgreSQL drops their rows, and mark each file as the only copy (`SOLE`). A damaged file
        is written again first.
        """
        for file in files:
            try:
                self._check(file)
            except ArchiveFailed as error:
                log.warning(
                    "a file of the archive is damaged or missing, so the archiver writes it again from PostgreSQL",
                    file=file.key,
                    reason=str(error),
                )
                days = DayRange(file.table, file.day, file.first, file.last)
                wanted = ended_jobs.jobs_of_file(file) if file.table == ENDED else days
                self._store(file.cell, wanted, generation=file.generation)
        ids = [file.pk for file in files]
        ArchiveFile.objects.filter(pk__in=ids, state=ArchiveState.STORED).update(state=ArchiveState.SOLE)

    def _delete_jobs(self, cell: Cell, *, now: dt.datetime) -> None:
        """Delete the rows of old jobs that are in the archive."""
        files = ended_jobs.files_to_clear(cell, now=now)
        self._keep_only_in_archive([file for file in files if file.state == ArchiveState.STORED])
        self._at("jobs marked")
        while gone := ended_jobs.delete_some(cell, now=now):
            self._at("jobs deleted")
            self.done.jobs += gone
            log.info("rows of ended jobs deleted", cell=cell.name, jobs=gone)

    def _drop_events(self, cell: Cell, old: OldPartition) -> None:
        files = _files_that_cover([cell.id], EVENTS, old)
        if execute("SELECT 1 FROM scheduling_cell WHERE id = %s AND journal_floor < %s", [cell.id, old.last]):
            self._keep_only_in_archive(files)
            execute("UPDATE scheduling_cell SET journal_floor = %s WHERE id = %s", [old.last, cell.id])
        self._drop(Event._meta.db_table, old)

    def _drop_usage(self, *, now: dt.datetime) -> None:
        cells = list(Cell.with_history.order_by("id").values_list("id", flat=True))
        for old in retention.old_partitions_of_usage(now=now):
            self._keep_only_in_archive(_files_that_cover(cells, USAGE, old))
            self._drop(usage_windows.TABLE, old)
        partitions.drop_detached(usage_windows.TABLE)

    def _drop_metered(self, *, now: dt.datetime) -> None:
        """Drop the months of metered hours that have no rows any more in PostgreSQL."""
        for name in metered_months.empty_months(now=now):
            self._at("emptied")
            if metered_months.drop(name):
                self._at("dropped")
                log.info("partition dropped", partition=name)
            else:
                log.info(
                    "cannot drop an old partition of the metered hours, because it is in use; the next run tries again",
                    partition=name,
                )

    def _drop(self, table: str, old: OldPartition) -> None:
        self._at("marked")
        partitions.detach(table, old.name)
        self._at("detached")
        partitions.drop_detached(table)
        self._at("dropped")
        self.done.partitions += 1
        log.info("partition dropped", partition=old.name)


def _rows(cell: Cell, wanted: DayRange) -> Iterator[pa.Table]:
    if isinstance(wanted, EndedJobs | OldSpecs):
        return rows_of_jobs(wanted)
    if isinstance(wanted, MeteredHours):
        return metered.rows_of_hours(wanted)
    return rows_of(cell.id, wanted)


def _files_that_cover(cells: list[int], table: str, old: OldPartition) -> list[ArchiveFile]:
    """Return the files of these cells whose rows the partition `old` of PostgreSQL also contains."""
    found = ArchiveFile.objects.filter(
        cell__in=cells, table=table, state=ArchiveState.STORED, first__lte=old.last, last__gte=old.first
    )
    return list(found.select_related("cell").order_by("cell", "first"))


@contextmanager
def _recording(file: ArchiveFile, wanted: DayRange) -> Iterator[None]:
    """Open the transaction that records a file. Metered hours are moved by it, so it waits until nobody reads them."""
    try:
        with held_by_archiver() if isinstance(wanted, MeteredHours) else transaction.atomic():
            yield
    except HoursInUse as error:
        raise ArchiveFailed(
            f"the metered hours of {file.key} stay in PostgreSQL, because reports read metered hours without a pause"
            f" for {LONGEST_WAIT_S:.0f} seconds; the next run archives these hours"
        ) from error


@contextmanager
def archive_lock(number: int) -> Iterator[bool]:
    """Take the lock of the archive of cell `number` (its id) for the `with` block. Yield False if another archiver has
    the lock.
    """
    ((own,),) = query("SELECT pg_try_advisory_lock(hashtext(%s), %s)", [_LOCK, number])
    try:
        yield own
    finally:
        if own:
            query("SELECT pg_advisory_unlock(hashtext(%s), %s)", [_LOCK, number])
