"""The period of a page with plots, which the URL of the page names."""

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
    """A period of whole hours or days in UTC. The last hour or day contains the present time."""

    days: int
    since: dt.datetime
    until: dt.datetime
    step: dt.timedelta

    @property
    def hourly(self) -> bool:
        """Return whether each point covers an hour."""
        return self.step == HOUR


def period_of(given: Mapping[str, str], now: dt.datetime, *, default: int = 7) -> ReportPeriod:
    """Return the period of the last days up to now. The URL parameter `days` in `given` sets the number of days. If it
    is missing or not one of `DAYS`, the period has `default` days.
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
