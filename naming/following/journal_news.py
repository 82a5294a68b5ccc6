"""Reads names from PostgreSQL: at the start all rows, later only the changes in the journal. Redis reports when there
are new changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

import msgspec
from django.db import DatabaseError, InterfaceError, connection

from naming.following import names_from_database
from naming.following.news import DatedEvent, NamesSnapshot, NewsUnavailable, NewsUnreadable, ZoneFacts
from scheduling.journal import journal, wakeups

P = ParamSpec("P")
T = TypeVar("T")

# Options of libpq that detect a broken network within seconds. `tcp_user_timeout` is in milliseconds, the rest in s.
_CONNECTION = {
    "connect_timeout": 2,
    "tcp_user_timeout": 5_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
_POLL_S = 0.25  # between two reads of the journal while Redis is unreachable


class JournalNews:
    """Reads names and their changes from PostgreSQL. Use this object in only one thread. `cells`: the names of the
    cells to read; empty: all cells.
    """

    def __init__(self, *, cells: Sequence[str] = ()) -> None:
        self._only = frozenset(cells)
        self._waiter: wakeups.Waiter | None = None
        self._waits_for: tuple[int, ...] = ()
        self._configured = False

    def cells(self) -> list[ZoneFacts]:
        cells = self._followed()
        # A notification before the subscription is lost, so the cells are read again after a new subscription.
        return self._followed() if self._subscribe(facts.cell_id for facts in cells) else cells

    def snapshot(self, cell_id: int) -> NamesSnapshot:
        try:
            return self._read(names_from_database.snapshot, cell_id)
        except LookupError as error:
            raise NewsUnavailable(f"cannot read the names of a cell: {error}; the resolver tries again") from error

    def tail(self, cell_id: int, after: int) -> list[DatedEvent]:
        try:
            records = self._read(journal.tail, cell_id, after=after, limit=20_000)
        except msgspec.ValidationError as error:
            raise NewsUnreadable(str(error)) from error
        return [DatedEvent(record.revision, record.event, record.time.timestamp()) for record in records]

    def wait(self, timeout_s: float) -> None:
        if self._waiter is None:
            time.sleep(timeout_s)  # there is no cell yet
        else:
            self._waiter.wait(timeout_s if self._waiter.hears else min(timeout_s, _POLL_S))

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None
        connection.close()

    def _followed(self) -> list[ZoneFacts]:
        cells = self._read(names_from_database.cell_facts)
        return [facts for facts in cells if not self._only or facts.name in self._only]

    def _subscribe(self, cell_ids: Iterable[int]) -> bool:
        """Subscribe to Redis notifications about changes of these cells. Return whether the subscription is new or
        different.
        """
        ids = tuple(sorted(cell_ids))
        if ids == self._waits_for:
            return False
        if self._waiter is not None:
            self._waiter.close()
        self._waiter = wakeups.Waiter(ids) if ids else None
        self._waits_for = ids
        if self._waiter is not None:
            self._waiter.wait(0.0)
        return True

    def _read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._configured:
            connection.settings_dict["OPTIONS"] = {**connection.settings_dict["OPTIONS"], **_CONNECTION}
            self._configured = True
        try:
            return function(*args, **kwargs)
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            raise NewsUnavailable(str(error).strip()) from error
