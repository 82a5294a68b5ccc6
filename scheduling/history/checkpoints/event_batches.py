"""Reads events in large batches, for replays: those that PostgreSQL has, and before them those of the archive.

archive, up to `Cell.journal_floor` ──► batches ──► state
journal, all later revisions ─────────► batches ──┘
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary.events import Event, ReservationsSet, unpacked
from scheduling.history.archive.store import EVENTS, local_file
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.journal.sql import query
from scheduling.models import ArchiveFile, ArchiveState, Cell
from scheduling.storage.files import NotThere, StoreAway

if TYPE_CHECKING:
    from pyarrow import parquet as pq

BATCH = 50_000
_SEQ_BITS = 20
_LAST_SEQ = (1 << _SEQ_BITS) - 1  # above every sequence number
_COLUMNS = ["revision", "seq", "time", "kind", "data"]
# (event, revision, time in seconds since the epoch), as `CellState.apply_all` takes it
News = tuple[Event, int, float]
Position = tuple[int, int]  # revision, sequence number

# PostgreSQL makes one JSON array of each batch, because one large value is decoded much faster than many rows. The
# floor belongs to the same snapshot as the rows: no event above it has been dropped.
_BATCH_OF = f"""
SELECT '[' || string_agg(news, ',') || ']', max(place),
    (SELECT journal_floor FROM scheduling_cell WHERE id = %(cell)s)
FROM (
    SELECT concat('[', data::text, ',', revision, ',', extract(epoch FROM time), ']') AS news,
        revision << {_SEQ_BITS} | seq AS place
    FROM scheduling_event WHERE cell_id = %(cell)s AND (revision, seq) > (%(revision)s, %(seq)s)
    AND revision <= %(upto)s AND kind = ANY(%(kinds)s) ORDER BY revision, seq LIMIT %(limit)s
) AS batch"""
_decoder = msgspec.json.Decoder(list[News])


class EventsMissing(Exception):
    """Raised if events are neither in the journal nor in the archive. The message says which, and why."""


def news_between(cell: Cell, *, after: int, upto: int, kinds: Iterable[type]) -> Iterator[list[News]]:
    """Yield the events of the revisions from `after` + 1 to `upto`, in batches, oldest first. `kinds`: the classes of
    the events to return; other events are skipped.

    Raises `EventsMissing` if events of this range no longer exist, and `Rejected` if the archive cannot be read.
    """
    if upto <= after:
        return
    tags = [str(kind.__struct_config__.tag) for kind in kinds]  # type: ignore[attr-defined]
    _check_beginning(cell, after)
    position = (after, _LAST_SEQ)
    while True:
        values = {"cell": cell.id, "upto": upto, "kinds": tags, "limit": BATCH}
        [(batch, last, floor)] = query(_BATCH_OF, {**values, "revision": position[0], "seq": position[1]})
        archived = (min(floor, upto), _LAST_SEQ)
        if position < archived:
            yield from _archived_news(cell, position, archived[0], tags)
            position = archived
        elif batch is None:
            return
        else:
            yield _decoded(batch)
            position = last >> _SEQ_BITS, last & _LAST_SEQ


def numbers_between(cell: Cell, *, after: int, upto: int) -> Counter[str]:
    """Return the number of events of the revisions from `after` + 1 to `upto`, by kind. Raises the errors of
    `news_between`.
    """
    counts: Counter[str] = Counter()
    if upto <= after:
        return counts
    _check_beginning(cell, after)
    # One statement, as above: no event above the floor that it returns has been dropped.
    rows = query(
        "SELECT c.journal_floor, e.kind, count(e.kind) FROM scheduling_cell AS c LEFT JOIN scheduling_event AS e"
        " ON e.cell_id = %s AND e.revision > %s AND e.revision <= %s AND e.revision > c.journal_floor"
        " WHERE c.id = %s GROUP BY 1, 2",
        [cell.id, after, upto, cell.id],
    )
    counts.update({kind: number for _, kind, number in rows if number})
    for content, number in _archived_groups(cell, after + 1, min(rows[0][0], upto)):
        group = content.read_row_group(number, columns=["revision", "kind"], use_threads=False)
        kinds = zip(group["revision"].to_pylist(), group["kind"].to_pylist(), strict=True)
        counts.update(kind for revision, kind in kinds if after < revision <= upto)
    return counts


def _check_beginning(cell: Cell, after: int) -> None:
    """Raise `EventsMissing` unless the event after the revision `after` exists."""
    archived = ArchiveFile.objects.filter(cell=cell, table=EVENTS, last__gt=after, first__lte=after + 1)
    if archived.exists():
        return  # `_archived_news` checks whether the file still exists
    rows = query(
        "SELECT revision FROM scheduling_event WHERE cell_id = %s AND revision > %s ORDER BY revision LIMIT 1",
        [cell.id, after],
    )
    begins = rows[0][0] if rows else "none"
    if begins != after + 1:
        raise EventsMissing(
            f"the events after revision {after} are missing: the next revision in PostgreSQL is {begins}, and the"
            " archive does not contain the revisions between; give a later revision or time"
        )


def _archived_news(cell: Cell, position: Position, upto: int, tags: list[str]) -> Iterator[list[News]]:
    """Yield the archived events after `position` up to the revision `upto`, one batch per row group."""
    first = position[0] + (position[1] == _LAST_SEQ)
    for content, number in _archived_groups(cell, first, upto):
        if batch := _events_of_group(content, number, position, upto, tags):
            yield batch


def _archived_groups(cell: Cell, first: int, last: int) -> Iterator[tuple[pq.ParquetFile, int]]:
    """Yield the row groups of the archive that contain revisions from `first` to `last`, each with its open file."""
    files = ArchiveFile.objects.filter(cell=cell, table=EVENTS, last__gte=first, first__lte=last)
    for file in files.select_related("cell").order_by("first"):
        with _opened(file) as content:
            for number in _groups(content, first, last):
                yield content, number


def _groups(content: pq.ParquetFile, first: int, last: int) -> Iterator[int]:
    """Yield the row groups that contain revisions from `first` to `last`, by their statistics."""
    column = content.schema_arrow.get_field_index("revision")
    for number in range(content.num_row_groups):
        ends = content.metadata.row_group(number).column(column).statistics
        if ends.max >= first and ends.min <= last:
            yield number


@contextmanager
def _opened(file: ArchiveFile) -> Iterator[pq.ParquetFile]:
    """Open a file of the archive. Raises `EventsMissing` if it was deleted, and `Rejected` if it cannot be read."""
    from scheduling.history.archive.parquet import UnreadableArchive, open_file  # few processes read the archive

    missing = (
        f"the events of the revisions {file.first} to {file.last} ({file.day}) are no longer in the archive, which"
        " keeps files for the cell's `archive_keep_days`; give a later revision or time"
    )
    if file.state == ArchiveState.DELETED:
        raise EventsMissing(missing)
    try:
        with local_file(file) as path, open_file(path, name=file.key) as content:
            yield content
    except NotThere:
        raise EventsMissing(missing) from None
    except (StoreAway, UnreadableArchive, OSError) as error:
        detail = f"the archive with the older events cannot be read; try again later, or ask an SRE: {error}"
        raise Rejected("archive-away", detail, status=503) from error


def _events_of_group(
    content: pq.ParquetFile, number: int, position: Position, upto: int, tags: list[str]
) -> list[News]:
    import pyarrow as pa
    import pyarrow.compute as pc

    group = content.read_row_group(number, columns=_COLUMNS, use_threads=False)
    revision, (first, seq) = group["revision"], position
    wanted = pc.and_(
        pc.is_in(group["kind"], value_set=pa.array(tags, pa.string())),
        pc.and_(
            pc.less_equal(revision, upto),
            pc.or_(
                pc.greater(revision, first),
                pc.and_(pc.equal(revision, first), pc.greater(group["seq"], pa.scalar(seq, pa.int32()))),
            ),
        ),
    )
    rows = group.filter(wanted)
    columns = (rows["data"], rows["revision"], rows["time"].cast(pa.int64()))
    texts = [
        f"[{data},{at},{time_us / 1e6!r}]"
        for data, at, time_us in zip(*(column.to_pylist() for column in columns), strict=True)
    ]
    return _decoded(f"[{','.join(texts)}]")


def _decoded(batch: str) -> list[News]:
    news = _decoder.decode(batch)
    for place, (event, revision, time) in enumerate(news):
        if type(event) is ReservationsSet:
            news[place] = (unpacked(event), revision, time)
    return news


def archived_revision_at(cell: Cell, time: dt.datetime, *, after: int) -> int:
    """Return the last archived revision of a cell that was not later than `time`, or `after` if there is none above it.

    Raises `EventsMissing` if the revision is unknown because events after `after` were deleted, and `Rejected` if the
    archive cannot be read.
    """
    day = time.astimezone(dt.UTC).date()
    files = ArchiveFile.objects.filter(cell=cell, table=EVENTS, last__gt=after, day__lte=day)
    for file in files.select_related("cell").order_by("-first"):
        if file.day < day:
            return int(file.last)
        with _opened(file) as content:
            found = _last_not_later(content, time)
        if found is not None:
            return max(found, after)
    return after


def _last_not_later(content: pq.ParquetFile, time: dt.datetime) -> int | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    limit = pa.scalar(time.astimezone(dt.UTC).replace(tzinfo=None), pa.timestamp("us"))
    for number in reversed(range(content.num_row_groups)):
        group = content.read_row_group(number, columns=["revision", "time"], use_threads=False)
        found = pc.max(group["revision"].filter(pc.less_equal(group["time"], limit))).as_py()
        if found is not None:
            return int(found)
    return None


def follow(state: RecordedState, batches: Iterable[list[News]], *, upto: int) -> None:
    """Apply batches of events to a state, which is at the revision `upto` afterwards."""
    with collection_paused():
        for batch in batches:
            state.apply_all(batch)
        state.revision = max(state.revision, upto)
