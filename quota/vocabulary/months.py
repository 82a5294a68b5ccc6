"""Converts days and months of a time zone to instants in UTC (pure). A month is represented by its first day.

A month begins at the first midnight of its first day, or just after it if the clock skips midnight. A month ends where
the next month begins, so daylight saving time causes no gaps and no overlaps.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

# Metered hours stay in PostgreSQL for at least 31 days after the end of their month (UTC). So the hours of this month
# and of the last one are there.
LEAST_METERED_DAYS = 31
_MICROSECOND = dt.timedelta(microseconds=1)


def month_of(moment: dt.datetime, zone: str) -> dt.date:
    """Return the month that contains `moment`, which has a time zone."""
    month = moment.astimezone(ZoneInfo(zone)).date().replace(day=1)
    # If the clock is set back over the midnight between two months, the last hour of the old month occurs twice.
    return after(month) if moment >= begin_of(after(month), zone) else month


def bounds(month: dt.date, zone: str) -> tuple[dt.datetime, dt.datetime]:
    """Return the start and the end of a month in UTC. The end is the start of the next month."""
    return begin_of(month, zone), begin_of(after(month), zone)


def begin_of(day: dt.date, zone: str) -> dt.datetime:
    """Return the first instant of a day, in UTC."""
    return dt.datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)


def day_of(moment: dt.datetime, zone: str) -> dt.date:
    day = moment.astimezone(ZoneInfo(zone)).date()
    return day + dt.timedelta(days=1) if moment >= begin_of(day + dt.timedelta(days=1), zone) else day


def after(month: dt.date) -> dt.date:
    """Return the next month."""
    return (month.replace(day=1) + dt.timedelta(days=31)).replace(day=1)


def last_instant(end: dt.datetime) -> dt.datetime:
    """Return the last microsecond before `end`."""
    return end - _MICROSECOND
