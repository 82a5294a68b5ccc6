"""The interface through which a resolver reads the events of cell journals.

`naming.following.journal_news.JournalNews` implements the interface with PostgreSQL. Tests use a journal in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from scheduling.core.vocabulary.events import Event


class NewsUnavailable(Exception):
    """The error if the journal is unreachable. The resolver then answers from memory and tries again later."""


class NewsUnreadable(Exception):
    """The error if the journal contains an unknown event, or if some of its events are missing. The resolver then reads
    all names again.
    """


class DatedEvent(NamedTuple):
    """An event of a journal and its revision. `at`: the time at which the event was written, in seconds since the
    epoch; 0 if this time is unknown.
    """

    revision: int
    event: Event
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ZoneFacts:
    """Facts of a cell and its DNS zone. `history_id`: an id of the cell's database. The id changes when the database is
    restored from a backup or replaced by another, or the cell is restored in place. `start`: the zone's first serial.
    """

    cell_id: int
    name: str
    revision: int
    history_ordinal: int = 1
    history_id: str = ""
    start: int = 0


@dataclass(frozen=True, slots=True)
class NamesSnapshot:
    """The names of a cell at the journal revision `revision`. `events`: events that fill an empty `NameTable` with the
    names.

    `names_revision`: the revision of the last event that could change a name. The zone's serial number depends on it.
    """

    revision: int
    names_revision: int
    history_ordinal: int
    events: Sequence[Event]
    history_id: str = ""


class NewsSource(Protocol):
    """A source of journal events. All its methods block the calling thread. They raise `NewsUnavailable` if the source
    is unreachable.
    """

    def cells(self) -> list[ZoneFacts]: ...

    def snapshot(self, cell_id: int) -> NamesSnapshot: ...

    def tail(self, cell_id: int, after: int) -> list[DatedEvent]:
        """Return the events that follow revision `after`, oldest first. Raises `NewsUnreadable` if one of these events
        is unknown or missing.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a cell may have changed, but at most `timeout_s` seconds."""
        ...

    def close(self) -> None: ...
