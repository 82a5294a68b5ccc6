"""A source of task names for a DNS resolver in tests: a journal in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from naming.following.news import DatedEvent, NamesSnapshot, NewsUnavailable, ZoneFacts
from scheduling.core.vocabulary.events import Event


@dataclass(slots=True)
class _Cell:
    facts: ZoneFacts
    journal: list[DatedEvent] = field(default_factory=list)


class MemoryNews:
    """A journal in memory. While `away` is true, every call fails as if PostgreSQL were down."""

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
        """Append `events` under the next revision of the cell, and return that revision."""
        with self._news:
            cell = self._cells[cell_id]
            old = cell.facts
            revision = old.revision + 1
            cell.facts = replace(old, revision=revision)
            cell.journal.extend(DatedEvent(revision, event, time.time()) for event in events)
            self._wake()
            return revision

    def restore(self, cell_id: int, revision: int) -> None:
        """Return the cell to an older revision, as an operator does who restores a backup of the database."""
        with self._news:
            cell = self._cells[cell_id]
            old = cell.facts
            ordinal = old.history_ordinal + 1
            cell.facts = replace(old, revision=revision, history_ordinal=ordinal, history_id=f"{self.name}-{ordinal}")
            cell.journal = [news for news in cell.journal if news.revision <= revision]
            self._wake()

    def forget(self, cell_id: int, revision: int) -> None:
        """Delete this revision and all older ones from the journal, as the archiving of old events does."""
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
