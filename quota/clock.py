"""The market's clock. All code reads the time from one function, so that a test can simulate a year in a second.

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
    """Return the current time in UTC."""
    return _set.get() or timezone.now()


@contextmanager
def at(moment: dt.datetime) -> Iterator[None]:
    """Set the clock to `moment` during the `with` block, only for the calling thread or asyncio task."""
    token = _set.set(moment)
    try:
        yield
    finally:
        _set.reset(token)


def format_time(moment: dt.datetime, zone: str = "UTC") -> str:
    """Return a time as text with its zone, such as `2027-01-31 13:05 CET`. `zone`: a name of the IANA database."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}"
