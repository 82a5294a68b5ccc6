"""The journal of a cell (the change log of §3.1). It contains an event for each change of the cell.

    with journal.write(cell_id, principal) as entry:      # BEGIN; locks the cell's row; takes the next revision
        ... change rows ...
        entry.append(events.TaskPlaced(...))              # each change has an event, and each event a change
    # COMMIT; then readers are woken, coalesced

    for record in journal.tail(cell_id, after=revision): ...

Revisions are committed in ascending order: a reader that has read revision N never finds a new smaller one later. To
keep the lock short, writers check their input before they take the lock, and write many changes in one revision.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from django.db import transaction

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event
from scheduling.core.vocabulary.task_events import Cause
from scheduling.journal import copy_rows, wakeups
from scheduling.journal.copy_rows import NULL
from scheduling.journal.sql import query

# Rows of one transaction at most (DESIGN §2): larger changes go in several revisions.
CHUNK = 5_000
# Revisions of one cell per partition of the table; the function `scheduling_event_partition_make` of the database knows
# the number too.
PARTITION = 100_000
# The Celery task creates partitions ahead. If it has not run for long, a writer creates the next one at this revision
# of the current one.
_LATEST = PARTITION // 4 * 3

_COLUMNS = (
    "cell_id, revision, seq, time, kind, version, job_id, task_index, machine_id, actor, request_id, "
    "caused_by_revision, caused_by_seq, data"
)
_SELECT = (
    "SELECT revision, seq, time, actor, request_id, data::text, caused_by_revision, caused_by_seq"
    " FROM scheduling_event WHERE cell_id = %s"
)


class JournalRecord(msgspec.Struct, frozen=True, gc=False):
    """An event of the journal with the columns of its row, such as the revision and the actor."""

    revision: int
    seq: int
    time: dt.datetime
    actor: str
    request_id: str
    event: Event
    caused_by: Cause | None = None


class JournalEntry:
    """The events of a revision that is being written. They are written together at the end of the `with` block of
    `write`.
    """

    def __init__(self, cell_id: int, revision: int, time: dt.datetime, principal: Principal) -> None:
        self.cell_id = cell_id
        self.revision = revision
        self.time = time
        self.events: list[Event] = []  # in order: the place of each is its sequence number
        self._principals: list[Principal] = []
        self._causes: list[Cause | None] = []
        self._lines: list[str] = []
        # What all rows of the revision share, before and after the columns that differ.
        self._head = f"{cell_id}\t{revision}\t"
        self._time = f"\t{time.isoformat()}\t"
        self.act_as(principal)

    def act_as(self, principal: Principal) -> None:
        """Set `principal` as the author of the events that are appended from now on. The events of one revision can
        have different authors.
        """
        self.principal = principal
        self._who = f"\t{copy_rows.text(principal.name)}\t{copy_rows.text(principal.request_id)}\t"

    def append(self, event: Event, *, caused_by: Cause | None = None) -> Cause:
        """Add an event to the revision. Return a reference to the event. Later calls can use it as `caused_by`."""
        seq = len(self.events)
        job_id, index = getattr(event, "job_id", None), getattr(event, "index", None)
        cause = f"{caused_by.revision}\t{caused_by.seq}" if caused_by else f"{NULL}\t{NULL}"
        self.events.append(event)
        self._principals.append(self.principal)
        self._causes.append(caused_by)
        self._lines.append(
            f"{self._head}{seq}{self._time}{event.__struct_config__.tag}\t{events.VERSION}"
            f"\t{NULL if job_id is None else job_id}\t{NULL if index is None else index}"
            f"\t{getattr(event, 'machine_id', None) or NULL}{self._who}{cause}"
            f"\t{copy_rows.json_text(events.encode(event))}\n"
        )
        return Cause(self.revision, seq)

    def extend(self, many: Iterable[Event], *, caused_by: Cause | None = None) -> None:
        for event in many:
            self.append(event, caused_by=caused_by)

    def __len__(self) -> int:
        return len(self.events)

    def records(self) -> list[JournalRecord]:
        """Return the events of this revision as the records that readers of the journal will get after the commit."""
        rows = zip(self.events, self._principals, self._causes, strict=True)
        return [
            JournalRecord(self.revision, seq, self.time, who.name, who.request_id, event, cause)
            for seq, (event, who, cause) in enumerate(rows)
        ]

    def lines(self) -> list[str]:
        """Return the events of this revision as rows in the text format of PostgreSQL's COPY, for `write_lines`."""
        return self._lines

    def _flush(self) -> None:
        write_lines(self._lines)


def write_lines(lines: Iterable[str]) -> None:
    """Insert events into the journal. `lines`: the rows of the events in the text format of PostgreSQL's COPY."""
    copy_rows.lines("scheduling_event", _COLUMNS, lines)


class _NothingToSay(Exception):
    """Raised inside `write` if its `with` block appended no events. It causes a rollback of the transaction."""


@contextmanager
def write(cell_id: int, principal: Principal) -> Iterator[JournalEntry]:
    """Run the `with` block as one atomic change of a cell. The change gets the next revision of the cell.

    Locks the cell's row until the end of the outermost transaction. Lock rows of other tables only after this, in the
    order of their ids. A block that appends no event is rolled back. Readers are woken when the outermost transaction
    has committed. Raises `Conflict` for a study cell (a copy, which nobody can change), and for a deleted cell.
    """
    try:
        with transaction.atomic():
            entry = _begin(cell_id, principal)
            yield entry
            if not entry:
                raise _NothingToSay
            entry._flush()
            revision = entry.revision
            transaction.on_commit(lambda: wakeups.publish(cell_id, revision))
    except _NothingToSay:
        pass


def _begin(cell_id: int, principal: Principal) -> JournalEntry:
    rows = query(
        "UPDATE scheduling_cell SET revision = revision + 1 WHERE id = %s"
        " RETURNING revision, clock_timestamp(), name, study_of IS NOT NULL, deleted_at",
        [cell_id],
    )
    if not rows:
        raise LookupError(f"there is no cell with id {cell_id}; it may have been deleted")
    revision, time, name, is_study, deleted_at = rows[0]
    if deleted_at is not None:
        detail = (
            f"cell {name} was deleted on {deleted_at.astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC, and nobody can change it;"
            " make the change in another cell"
        )
        raise Conflict("cell-deleted", detail)
    if is_study:
        detail = (
            f"cell {name} is a study cell, which nobody can change; make the change in another cell, or simulate it"
            " with `borgctl faux`"
        )
        raise Conflict("study-cell", detail)
    if revision % PARTITION == _LATEST:
        query("SELECT scheduling_event_partition_make(%s, %s)", [cell_id, revision + PARTITION])
    return JournalEntry(cell_id, revision, time, principal)


def tail(
    cell_id: int, *, after: int, limit: int = 50_000, known: Mapping[int, Sequence[JournalRecord]] | None = None
) -> list[JournalRecord]:
    """Return the records of the revisions after the revision `after`, oldest first, at most about `limit` records. A
    revision is always returned completely.

    `known`: records that the caller already has, by revision. They are not read from the database.
    """
    own = sorted(revision for revision in known or () if revision > after)
    rows = query(
        f"{_SELECT} AND revision > %s AND NOT revision = ANY(%s) ORDER BY revision, seq LIMIT %s",
        [cell_id, after, own, limit],
    )
    if len(rows) >= limit:
        # The rest of the last revision. The order of revisions is the order of commits, so later ones of the caller's
        # own follow in the next call.
        last, seq = rows[-1][:2]
        rows += query(f"{_SELECT} AND revision = %s AND seq > %s ORDER BY seq", [cell_id, last, seq])
        own = [revision for revision in own if revision < last]
    records = [_record(row) for row in rows]
    if own:
        assert known is not None
        records += [record for revision in own for record in known[revision]]
        records.sort(key=_place)
    return records


def _place(record: JournalRecord) -> tuple[int, int]:
    return record.revision, record.seq


def _record(row: tuple[Any, ...]) -> JournalRecord:
    revision, seq, time, actor, request_id, data, cause_revision, cause_seq = row
    cause = Cause(cause_revision, cause_seq) if cause_revision is not None else None
    return JournalRecord(revision, seq, time, actor, request_id, events.decode(data), cause)


def newest(cell_id: int) -> int:
    """Return the newest revision of the cell."""
    rows = query("SELECT revision FROM scheduling_cell WHERE id = %s", [cell_id])
    if not rows:
        raise LookupError(f"there is no cell with id {cell_id}; it may have been deleted")
    return int(rows[0][0])


def ensure_partitions(*, ahead: int = 2) -> int:
    """Create the missing partitions of the journal for the next `ahead` x `PARTITION` revisions of each cell. Study
    cells (copies, which nobody can change) and deleted cells need none. Return how many partitions were created.
    Writers are not blocked.
    """
    rows = query(
        "SELECT count(*) FILTER (WHERE scheduling_event_partition_make(id, revision + part * %s))"
        " FROM scheduling_cell, generate_series(0, %s) AS part WHERE study_of IS NULL AND deleted_at IS NULL",
        [PARTITION, ahead],
    )
    return int(rows[0][0])
