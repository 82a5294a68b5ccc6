"""The interface between the follower and the source of journal events.

`naming.following.journal_news.JournalNews` implements it with PostgreSQL; tests use a journal in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scheduling.core.vocabulary.events import Event


class NewsUnavailable(Exception):
    """The error if the source of events is unreachable. The resolver then answers from memory, and the follower
    retries.
    """


class NewsUnreadable(Exception):
    """The error if the journal has an unknown event, or lacks events. The follower then reads a snapshot."""


class DatedEvent(NamedTuple):
    """An event and its revision. `at`: the time at which it was written, in seconds since the epoch; 0 if unknown."""

    revision: int
    event: Event
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ZoneFacts:
    """Facts of a cell and its zone. `history_id`: an id of the cell's database that changes when the database is
    restored from a backup or replaced by another. `start`: the first serial number of the zone.
    """

    cell_id: int
    name: str
    revision: int
    history_ordinal: int = 1
    history_id: str = ""
    start: int = 0


@dataclass(frozen=True, slots=True)
class NamesSnapshot:
    """The names of a cell at the journal revision `revision`, as events that fill an empty table.

    `names_revision`: the revision of the last event that could change a name. The serial depends on it.
    """

    revision: int
    names_revision: int
    history_ordinal: int
    events: Sequence[Event]
    history_id: str = ""


class NewsSource(Protocol):
    """A source of journal events. The methods block, so only one separate thread calls them. They raise
    `NewsUnavailable` if the source is unreachable.
    """

    def cells(self) -> list[ZoneFacts]: ...

    def snapshot(self, cell_id: int) -> NamesSnapshot: ...

    def tail(self, cell_id: int, after: int) -> list[DatedEvent]:
        """Return the next complete revisions after `after`, oldest first. Raises `NewsUnreadable` if the journal lacks
        events or has an unknown event.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a cell may have changed, at most `timeout_s` seconds."""
        ...

    def close(self) -> None: ...
