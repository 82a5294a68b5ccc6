"""States of past moments that a process keeps, so that steps to neighbouring moments are quick.

    revision wanted ─┬─ a kept state at or before it ─► events since ─► state
                     └─ the nearest checkpoint ─► anchor, kept ─► copy ─► events since ─► state, kept

If a later revision is requested, the events up to it are applied to a kept state. For steps backwards, the keeper also
stores an *anchor*: the state at most `BACK` revisions before the one that was requested first. Anchors never change.
Events are applied to a copy of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from quota.vocabulary.errors import Rejected
from scheduling.history.checkpoints.event_batches import EventsMissing, follow, news_between
from scheduling.history.checkpoints.folder import own_checkpoints
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.history.moments.copying import copied
from scheduling.models import Cell

# The most states that are kept, and the most tasks that they have in all. One state is always kept.
MOST_STATES = 4
MOST_TASKS = 500_000
# How many revisions before the wanted one the anchor is.
BACK = 500
# A kept state further back than this is not used: the nearest checkpoint may be nearer.
NEAR = 5_000


@dataclass(slots=True)
class _Kept:
    cell_id: int
    history: str
    state: RecordedState
    anchor: bool


class StateKeeper:
    """Keeps the states of a few past moments in memory, and drops the ones that have not been used for the longest
    time.
    """

    def __init__(self) -> None:
        self._kept: list[_Kept] = []

    def state(self, cell: Cell, revision: int) -> RecordedState:
        """Return the state of a cell at a revision. It stays valid until the next call, which may change it. Raises
        `Rejected` if the revision does not exist or cannot be rebuilt.
        """
        if not 0 <= revision <= cell.revision:
            return state_at(cell, revision=revision)  # raises the error for this revision
        found = self._nearest(cell, revision)
        if found is not None and found.state.revision == revision:
            self._keep(found)
            return found.state
        state = self._moved(cell, found, revision) if found is not None else None
        if state is None:
            anchor = self._anchor(cell, revision)
            state = self._moved(cell, anchor, revision) if anchor is not None else None
        if state is None:
            state = state_at(cell, revision=revision)
        self._keep(_Kept(cell.id, str(cell.history_id), state, anchor=False))
        return state

    def _nearest(self, cell: Cell, revision: int) -> _Kept | None:
        """Return the newest kept state at or before a revision. Return None if it is too far back, because a checkpoint
        may be nearer.
        """
        own = [
            one
            for one in self._kept
            if (one.cell_id, one.history) == (cell.id, str(cell.history_id))
            and revision - NEAR <= one.state.revision <= revision
            and one.state.extra_resources == tuple(cell.extra_resources)
        ]
        return max(own, key=lambda one: (one.state.revision, not one.anchor), default=None)

    def _anchor(self, cell: Cell, revision: int) -> _Kept | None:
        """Keep and return a new anchor: a state at most `BACK` revisions before `revision`. Return None if there is
        none.
        """
        own = [one.header for one in own_checkpoints(cell)]
        begin = max((header.revision for header in own if header.revision <= revision), default=0)
        place = max(begin, revision - BACK)
        if place in (0, revision):
            return None
        try:
            anchor = _Kept(cell.id, str(cell.history_id), state_at(cell, revision=place), anchor=True)
        except Rejected:  # the revision itself may still be there, or the next call says what is missing
            return None
        self._keep(anchor)
        return anchor

    def _moved(self, cell: Cell, kept: _Kept, revision: int) -> RecordedState | None:
        """Return the state at a revision, made from the kept state `kept` of an earlier revision: the events between
        the two are applied. Return None if some of these events are missing.
        """
        if kept.anchor:
            state = copied(kept.state)
        else:
            self._kept.remove(kept)  # if an event cannot be applied, the state is not valid any more
            state = kept.state
        kinds = list(state._handlers)
        try:
            follow(state, news_between(cell, after=state.revision, upto=revision, kinds=kinds), upto=revision)
        except EventsMissing:
            return None
        return state

    def _keep(self, kept: _Kept) -> None:
        self._kept = [one for one in self._kept if one is not kept]
        self._kept.append(kept)
        while len(self._kept) > 1 and (len(self._kept) > MOST_STATES or self._tasks() > MOST_TASKS):
            self._kept.pop(0)

    def _tasks(self) -> int:
        return sum(len(one.state.tasks.id) for one in self._kept)
