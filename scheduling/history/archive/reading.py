"""Events that are only in the archive, for lists that show events of any age.

A list reads PostgreSQL first. When PostgreSQL has no older event, the list continues here with the same position, the
pair (revision, seq). Reading stops after `MOST_GROUPS` row groups, so that no request takes long. The page then
contains the position at which the next page continues.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from quota.selectors import tenants_visible
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import CapabilityKind, Principal, Scope
from scheduling.core.vocabulary.states import JobState
from scheduling.history.archive.store import EVENTS, local_file
from scheduling.models import ArchivedJob, ArchiveFile, ArchiveState, Cell, Event, Job
from scheduling.storage.files import NotThere, StoreAway

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

Position = tuple[int, int]
# A group has at most 8,192 events. For the events of a job, it takes 0.2 ms if it has none, and 3 ms otherwise.
MOST_GROUPS = 400
_SEARCHED = ["revision", "seq", "kind", "collection_id", "instance_index", "user"]
_END: Position = (2**63 - 1, 0)
_MOST_SEQ = 999_999_999  # above every sequence number


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """Events of the archive. `resume`: the position from which to continue if the search was not finished, or None."""

    events: list[Event]
    resume: Position | None = None


@dataclass(frozen=True, slots=True)
class ArchivedEvents:
    """A selection of a cell's archived events. `since`, `until`: the days of the oldest and of the newest event that
    may be found. `kinds`: the kinds of the events; empty for all kinds.

    `job_id`: only events of this job; with `task_index`, only those of its task with this index. Otherwise `everything`
    selects all events. If `everything` is false, the selection has the events of machines, and those of jobs of the
    tenants `users`; None for all tenants.
    """

    cell: Cell
    job_id: int | None = None
    since: dt.date = dt.date.min
    until: dt.date = dt.date.max
    kinds: Collection[str] = ()
    everything: bool = False
    users: Collection[str] | None = ()
    task_index: int | None = None

    def before(self, position: Position | None, *, limit: int) -> ArchivePage:
        """Return the newest events before a position, newest first. `position`: None for the end of the archive."""
        return self._page(position or _END, limit, newest_first=True)

    def after(self, position: Position, *, limit: int) -> ArchivePage:
        """Return the oldest events after a position, oldest first."""
        return self._page(position, limit, newest_first=False)

    def _page(self, position: Position, limit: int, *, newest_first: bool) -> ArchivePage:
        """Return at most `limit` events after or before a position, in the order of the search. `newest_first`: search
        backwards from the position. Raises `Rejected` if the archive cannot be read.
        """
        found: list[Event] = []
        floor = self.cell.journal_floor
        if floor == 0 or limit <= 0 or (position[0] > floor and not newest_first):
            return ArchivePage(found)
        groups = 0
        from scheduling.history.archive.parquet import UnreadableArchive, open_file  # few processes read the archive

        try:
            for file in self._files(position, newest_first=newest_first):
                try:
                    with local_file(file) as path, open_file(path, name=file.key) as opened:
                        for number in self._groups(opened, position, newest_first=newest_first):
                            if groups == MOST_GROUPS:
                                return ArchivePage(found, _edge(opened, number, newest_first=newest_first))
                            groups += 1
                            found += self._events(opened, number, position, newest_first=newest_first)
                            if len(found) >= limit:
                                return ArchivePage(found[:limit])
                except NotThere:  # it has just expired
                    continue
        except (StoreAway, UnreadableArchive) as error:
            detail = f"the archive with the older events cannot be read; try again later, or ask an SRE: {error}"
            raise Rejected("archive-away", detail, status=503) from error
        return ArchivePage(found)

    def _files(self, position: Position, *, newest_first: bool) -> Iterator[ArchiveFile]:
        files = ArchiveFile.objects.filter(
            cell=self.cell, table=EVENTS, state=ArchiveState.SOLE, day__range=(self.since, self.until)
        ).select_related("cell")
        if newest_first:
            return files.filter(first__lte=position[0]).order_by("-first").iterator()
        return files.filter(last__gte=position[0]).order_by("first").iterator()

    def _groups(self, file: pq.ParquetFile, position: Position, *, newest_first: bool) -> list[int]:
        """Return the row groups that may contain events of the selection, by their statistics."""
        jobs, revisions = map(file.schema_arrow.get_field_index, ("collection_id", "revision"))
        found = []
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            revision = group.column(revisions).statistics
            if newest_first and revision.min > position[0]:
                continue
            if not newest_first and (revision.max, _MOST_SEQ) <= position:
                continue
            job = group.column(jobs).statistics
            if self.job_id is None or (job.has_min_max and job.min <= self.job_id <= job.max):
                found.append(number)
        return found[::-1] if newest_first else found

    def _events(self, file: pq.ParquetFile, number: int, position: Position, *, newest_first: bool) -> list[Event]:
        import pyarrow.compute as pc

        if self.job_id is not None:
            jobs = file.read_row_group(number, columns=["collection_id"], use_threads=False)["collection_id"]
            if pc.index(jobs, self.job_id).as_py() < 0:
                return []
        searched = file.read_row_group(number, columns=_SEARCHED, use_threads=False)
        wanted = self._mask(searched, position, newest_first=newest_first)
        if not wanted.true_count:
            return []
        rows = file.read_row_group(number, use_threads=False).filter(wanted).to_pylist()
        return [_event(self.cell.id, row) for row in (reversed(rows) if newest_first else rows)]

    def _mask(self, rows: pa.Table, position: Position, *, newest_first: bool) -> pa.BooleanArray:
        import pyarrow as pa
        import pyarrow.compute as pc

        revision, seq = rows["revision"], rows["seq"]
        beyond = pc.less if newest_first else pc.greater
        same = pc.and_(pc.equal(revision, position[0]), beyond(seq, pa.scalar(position[1], pa.int32())))
        masks = [pc.or_(beyond(revision, position[0]), same), pc.less_equal(revision, self.cell.journal_floor)]
        if self.kinds:
            masks.append(pc.is_in(rows["kind"], value_set=pa.array(self.kinds, pa.string())))
        jobs = rows["collection_id"]
        if self.job_id is not None:
            masks.append(pc.equal(jobs, self.job_id))
            if self.task_index is not None:
                masks.append(pc.equal(rows["instance_index"], self.task_index))
        elif not self.everything:
            machines = pc.and_(pc.is_null(jobs), pc.starts_with(rows["kind"], "machine."))
            own = (
                pc.is_valid(jobs)
                if self.users is None
                else pc.is_in(rows["user"], value_set=pa.array(self.users, pa.string()))
            )
            masks.append(pc.or_(machines, own))
        found = masks[0]
        for mask in masks[1:]:
            found = pc.and_(found, mask)
        return pc.fill_null(found, False).combine_chunks()


def archived_events_of_job(job: Job, *, kinds: Collection[str] = (), task_index: int | None = None) -> ArchivedEvents:
    """Return the selection of the archived events of a job, or of its task with this index. Makes one query if the job
    has ended.
    """
    since, until = job.created_at.astimezone(dt.UTC).date(), dt.date.max
    if job.state == JobState.DEAD:
        # A job is archived after its last event.
        for at in ArchivedJob.objects.filter(pk=job.id).values_list("file__written_at", flat=True):
            until = at.astimezone(dt.UTC).date()
    return ArchivedEvents(job.cell, job.id, since=since, until=until, kinds=kinds, task_index=task_index)


def archived_events_of_cell(principal: Principal, cell: Cell) -> ArchivedEvents:
    """Return the selection of the archived events that the principal may see in the list of the cell's events."""
    if Scope.READ not in principal.scopes:
        return ArchivedEvents(cell)
    if principal.sre and principal.tenant is None:
        return ArchivedEvents(cell, everything=True)
    if principal.sre or principal.has(CapabilityKind.ANY_JOB, cell.name):
        return ArchivedEvents(cell, users=None if principal.tenant is None else [principal.tenant])
    return ArchivedEvents(cell, users=list(tenants_visible(principal).values_list("name", flat=True)))


def _edge(file: pq.ParquetFile, number: int, *, newest_first: bool) -> Position:
    """Return the position from which a search continues with row group `number`."""
    column = file.schema_arrow.get_field_index("revision")
    ends = file.metadata.row_group(number).column(column).statistics
    return (ends.max if newest_first else ends.min - 1, _MOST_SEQ)


def _event(cell_id: int, row: dict[str, Any]) -> Event:
    return Event(
        id=row["id"],
        cell_id=cell_id,
        revision=row["revision"],
        seq=row["seq"],
        time=row["time"].replace(tzinfo=dt.UTC),
        kind=row["kind"],
        version=row["version"],
        job_id=row["collection_id"],
        task_index=row["instance_index"],
        machine_id=row["machine_id"],
        actor=row["actor"],
        request_id=row["request_id"],
        caused_by_revision=row["caused_by_revision"],
        caused_by_seq=row["caused_by_seq"],
        data=msgspec.json.decode(row["data"]),
    )
