"""The market's clock: one function returns the time, so that a test can run through a year in a second.

with clock.at(moment):
    orders_advance()
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from zoneinfo import ZoneInfo

from django.utils import timezone

_set: ContextVar[dt.datetime | None] = ContextVar("market_clock", default=None)


def now() -> dt.datetime:
    """The time, aware, in UTC."""
    return _set.get() or timezone.now()


@contextmanager
def at(moment: dt.datetime) -> Iterator[None]:
    """Set the clock to `moment` inside the block, for this thread or task."""
    token = _set.set(moment)
    try:
        yield
    finally:
        _set.reset(token)


def format_time(moment: dt.datetime, zone: str = "UTC") -> str:
    """A time for people, with its zone: `2027-01-31 13:05 CET`. `zone`: a name of the IANA database."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}"
