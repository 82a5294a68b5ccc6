"""The state of a cell at any revision or time: the nearest checkpoint before it, and the events since. Events that
PostgreSQL no longer has come from the archive.

checkpoint at revision 4,000 ─► state ─► events of the revisions 4,001 to 4,711 ─► state at revision 4,711
"""

from __future__ import annotations

import datetime as dt

import structlog

from quota.vocabulary.errors import invalid
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.event_batches import EventsMissing, archived_revision_at, follow, news_between
from scheduling.history.checkpoints.file import CheckpointError
from scheduling.history.checkpoints.folder import own_checkpoints
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.tables import state_of
from scheduling.journal.sql import query
from scheduling.models import Cell
from scheduling.storage.files import StoreAway

log = structlog.get_logger(__name__)


def state_at(cell: Cell, *, revision: int | None = None, time: dt.datetime | None = None) -> RecordedState:
    """Return the state of a cell at a revision, or after the last change before a time, or at present. Raises
    `Rejected` if the cell never had this revision, if events that are needed no longer exist or contradict the
    checkpoint, or if the archive cannot be read.
    """
    now = int(query("SELECT revision FROM scheduling_cell WHERE id = %s", [cell.id])[0][0])
    if time is not None:
        revision = revision_at(cell, time, newest=now)
    wanted = now if revision is None else revision
    if not 0 <= wanted <= now:
        raise invalid("revision", f"{wanted} is not a revision of cell {cell.name}; give 0 to {now}")
    state = _nearest(cell, wanted)
    checkpoint = state.revision
    try:
        follow(state, news_between(cell, after=checkpoint, upto=wanted, kinds=list(state._handlers)), upto=wanted)
    except EventsMissing as missing:
        detail = (
            f"revision {wanted} of cell {cell.name} cannot be rebuilt: the nearest checkpoint before it is at revision"
            f" {checkpoint}, and {missing}"
        )
        raise invalid("revision", detail, "history-missing") from None
    except LookupError as error:
        detail = (
            f"revision {wanted} of cell {cell.name} cannot be rebuilt, because the journal contradicts the checkpoint"
            f" at revision {checkpoint} ({error}); look at the report of `manage.py validate`"
        )
        raise invalid("revision", detail, "history-damaged") from error
    return state


def replay(cell_id: int) -> RecordedState | None:
    """Return the present state of a cell, from its newest checkpoint and the events since. Return None if there is no
    checkpoint and the first events no longer exist. Raises `Rejected` if the archive cannot be read.
    """
    cell = Cell.objects.get(pk=cell_id)
    state = _nearest(cell, cell.revision)
    try:
        news = news_between(cell, after=state.revision, upto=cell.revision, kinds=list(state._handlers))
        follow(state, news, upto=cell.revision)
    except EventsMissing:
        return None
    return state


def revision_at(cell: Cell, time: dt.datetime, *, newest: int) -> int:
    """Return the revision that the cell had at a time. Raises `Rejected` if this was before all that is stored, or if
    the archive cannot be read.
    """
    at = time.timestamp()
    known = [one.header.revision for one in own_checkpoints(cell) if one.header.taken_at <= at]
    low, high = max(known, default=0), newest
    while low < high:  # times ascend with revisions, because both are taken while the cell is locked
        middle = (low + high + 1) // 2
        rows = query(
            "SELECT revision, time FROM scheduling_event WHERE cell_id = %s AND revision >= %s"
            " ORDER BY revision, seq LIMIT 1",
            [cell.id, middle],
        )
        if rows and rows[0][1] <= time:
            low = max(middle, min(int(rows[0][0]), high))
        else:
            high = middle - 1
    try:
        low = archived_revision_at(cell, time, after=low)
    except EventsMissing as missing:
        detail = f"the revision at {time.isoformat()} is unknown, because {missing}"
        raise invalid("time", detail, "history-missing") from None
    if low == 0 and not known and time < cell.created_at:
        raise invalid("time", f"{time.isoformat()} is before cell {cell.name} was created; give a later time")
    return low


def _nearest(cell: Cell, revision: int) -> RecordedState:
    """Return the state from the newest readable checkpoint at or before a revision, or an empty state."""
    extra = tuple(cell.extra_resources)
    for stored in own_checkpoints(cell):
        if stored.header.revision > revision:
            continue
        try:
            with stored.open() as source:
                header, tables = file.read(source)
            return state_of(tables, extra_resources=extra, revision=header.revision)
        except (OSError, CheckpointError, LookupError, StoreAway) as error:
            log.warning("checkpoint skipped", cell=cell.name, revision=stored.header.revision, error=str(error))
    return RecordedState(extra)
