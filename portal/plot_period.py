"""The period that the plots of a page cover. The URL of the page sets the period."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass

DAYS = (1, 7, 14, 30, 90, 365)
# In longer periods, each point of a plot covers a day instead of an hour.
HOURLY_DAYS = 14
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ReportPeriod:
    """A period of whole hours or whole days in UTC. The current hour or day is the last one in it."""

    days: int
    since: dt.datetime
    until: dt.datetime
    step: dt.timedelta

    @property
    def hourly(self) -> bool:
        """Return whether each point of a plot covers an hour. Otherwise each point covers a day."""
        return self.step == HOUR


def period_of(given: Mapping[str, str], now: dt.datetime, *, default: int = 7) -> ReportPeriod:
    """Return a period of some days that ends with the current hour or day. The URL parameter `days` in `given` sets the
    number of days. If it is missing or not one of `DAYS`, the number is `default`.
    """
    text = given.get("days", "")
    days = int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else default
    days = days if days in DAYS else default
    hour = now.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)
    if days <= HOURLY_DAYS:
        until, step = hour + HOUR, HOUR
    else:
        until, step = hour.replace(hour=0) + DAY, DAY
    return ReportPeriod(days, until - days * DAY, until, step)
