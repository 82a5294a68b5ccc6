"""Reads events of the journal in large batches, for replays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary.events import Event, unpacked
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.journal.sql import query

BATCH = 50_000
_SEQ_BITS = 20
# (event, revision, time in seconds since the epoch), as `CellState.apply_all` takes it
News = tuple[Event, int, float]

# PostgreSQL makes one JSON array of each batch, because one large value is decoded much faster than many rows.
_BATCH_OF = f"""
SELECT '[' || string_agg(news, ',') || ']', max(place) FROM (
    SELECT concat('[', data::text, ',', revision, ',', extract(epoch FROM time), ']') AS news,
        revision << {_SEQ_BITS} | seq AS place
    FROM scheduling_event WHERE cell_id = %(cell)s AND (revision, seq) > (%(revision)s, %(seq)s)
    AND revision <= %(upto)s AND kind = ANY(%(kinds)s) ORDER BY revision, seq LIMIT %(limit)s
) AS batch"""
_decoder = msgspec.json.Decoder(list[News])


def journal_news(cell_id: int, *, after: int, upto: int, kinds: Iterable[type]) -> Iterator[list[News]]:
    """Yield the events of the revisions from `after` + 1 to `upto`, in batches, oldest first. `kinds`: the classes of
    the events to return; other events are skipped.
    """
    revision, seq = after, (1 << _SEQ_BITS) - 1
    tags = [str(kind.__struct_config__.tag) for kind in kinds]  # type: ignore[attr-defined]
    values = {"cell": cell_id, "upto": upto, "kinds": tags, "limit": BATCH}
    while True:
        [(batch, last)] = query(_BATCH_OF, {**values, "revision": revision, "seq": seq})
        if batch is None:
            return
        yield [(unpacked(event), at, time) for event, at, time in _decoder.decode(batch)]
        revision, seq = last >> _SEQ_BITS, last & ((1 << _SEQ_BITS) - 1)


def first_after(cell_id: int, revision: int) -> int | None:
    """Return the first revision after `revision` that the journal contains, or None if there is none."""
    rows = query(
        "SELECT revision FROM scheduling_event WHERE cell_id = %s AND revision > %s ORDER BY revision LIMIT 1",
        [cell_id, revision],
    )
    return int(rows[0][0]) if rows else None


def follow(state: RecordedState, batches: Iterable[list[News]], *, upto: int) -> None:
    """Apply batches of events to a state, which is at the revision `upto` afterwards."""
    with collection_paused():
        for batch in batches:
            state.apply_all(batch)
        state.revision = max(state.revision, upto)
