"""The interface between the follower and the source of journal events.

`naming.following.journal_news.JournalNews` reads PostgreSQL; `MemoryNews` holds a journal of its own and can be away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from scheduling.core.vocabulary.events import Event


class NewsUnavailable(Exception):
    """The source can't be reached now. Answers go on from memory; the follower asks again."""


class NewsUnreadable(Exception):
    """The journal can't be followed from here: an event is unknown, or older ones are gone. Take a snapshot."""


class DatedEvent(NamedTuple):
    """An event and its revision. `at`: when it was written, seconds since the epoch; 0 if unknown."""

    revision: int
    event: Event
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ZoneFacts:
    """Facts of a zone. `history_id`: changes after a restore, and in another database. `start`: first serial of its
    zone.
    """

    cell_id: int
    name: str
    revision: int
    history_ordinal: int = 1
    history_id: str = ""
    start: int = 0


@dataclass(frozen=True, slots=True)
class NamesSnapshot:
    """A cell's names at `revision`, as events that make an empty table equal to them.

    `names_revision`: of the last event that could change a name; the serial continues from it.
    """

    revision: int
    names_revision: int
    history_ordinal: int
    events: Sequence[Event]
    history_id: str = ""


class NewsSource(Protocol):
    """A source of changes. All calls block and come from one thread. They raise `NewsUnavailable` and
    `NewsUnreadable`.
    """

    def cells(self) -> list[ZoneFacts]: ...

    def snapshot(self, cell_id: int) -> NamesSnapshot: ...

    def tail(self, cell_id: int, after: int) -> list[DatedEvent]:
        """Return whole revisions after `after`, oldest first, possibly not all of them."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a cell may have changed, at most `timeout_s` seconds."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Cell:
    facts: ZoneFacts
    journal: list[DatedEvent] = field(default_factory=list)


class MemoryNews:
    """A journal in memory. While `away` is set every call fails as when PostgreSQL is down. `name`: of its history."""

    def __init__(self, name: str = "memory") -> None:
        self.name = name
        self.away = False
        self._cells: dict[int, _Cell] = {}
        self._news = threading.Condition()
        self._unheard = False

    def add_cell(self, cell_id: int, name: str, *, start: int = 0) -> None:
        with self._news:
            self._cells[cell_id] = _Cell(ZoneFacts(cell_id, name, 0, 1, f"{self.name}-1", start))
            self._wake()

    def remove_cell(self, cell_id: int) -> None:
        with self._news:
            del self._cells[cell_id]
            self._wake()

    def write(self, cell_id: int, events: Iterable[Event]) -> int:
        """Appends `events` under the cell's next revision and returns it."""
        with self._news:
            cell = self._cells[cell_id]
            old = cell.facts
            revision = old.revision + 1
            cell.facts = replace(old, revision=revision)
            cell.journal.extend(DatedEvent(revision, event, time.time()) for event in events)
            self._wake()
            return revision

    def restore(self, cell_id: int, revision: int) -> None:
        """Go back to an older revision, as a restored database would."""
        with self._news:
            cell = self._cells[cell_id]
            old = cell.facts
            ordinal = old.history_ordinal + 1
            cell.facts = replace(old, revision=revision, history_ordinal=ordinal, history_id=f"{self.name}-{ordinal}")
            cell.journal = [news for news in cell.journal if news.revision <= revision]
            self._wake()

    def forget(self, cell_id: int, revision: int) -> None:
        """Drop what is not newer, as archived revisions are dropped."""
        with self._news:
            cell = self._cells[cell_id]
            cell.journal = [news for news in cell.journal if news.revision > revision]

    def _wake(self) -> None:
        self._unheard = True
        self._news.notify_all()

    def _cell(self, cell_id: int) -> _Cell:
        if self.away or cell_id not in self._cells:
            raise NewsUnavailable("cannot reach the source of cell changes")
        return self._cells[cell_id]

    def cells(self) -> list[ZoneFacts]:
        if self.away:
            raise NewsUnavailable("cannot reach the source of cell changes")
        with self._news:
            return [cell.facts for cell in self._cells.values()]

    def snapshot(self, cell_id: int) -> NamesSnapshot:
        with self._news:
            cell = self._cell(cell_id)
            events = [news.event for news in cell.journal]
            last = cell.journal[-1].revision if cell.journal else 0
            facts = cell.facts
            return NamesSnapshot(facts.revision, last, facts.history_ordinal, events, facts.history_id)

    def tail(self, cell_id: int, after: int) -> list[DatedEvent]:
        with self._news:
            return [news for news in self._cell(cell_id).journal if news.revision > after]

    def wait(self, timeout_s: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._unheard, timeout_s)
            self._unheard = False

    def close(self) -> None:
        pass
