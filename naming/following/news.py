"""The interface between the follower and the source of journal events.

`naming.following.journal_news.JournalNews` implements it with PostgreSQL; tests use a journal in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
