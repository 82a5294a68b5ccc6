"""Calendar days and months in a time zone, as instants (pure). Months are named by their first day.

A month begins at the first midnight of its first day, or at the first instant after it where clocks are put forward
over midnight, and ends where the next begins: months have no gaps and no overlaps, whatever daylight saving does.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

_MICROSECOND = dt.timedelta(microseconds=1)


def month_of(moment: dt.datetime, zone: str) -> dt.date:
    """The month that `moment` (aware) lies in."""
    month = moment.astimezone(ZoneInfo(zone)).date().replace(day=1)
    # If clocks are put back over the midnight between two months, the old month's last hour comes twice.
    return after(month) if moment >= begin_of(after(month), zone) else month


def bounds(month: dt.date, zone: str) -> tuple[dt.datetime, dt.datetime]:
    """Return begin and end of a month in UTC; the end is the begin of the next month."""
    return begin_of(month, zone), begin_of(after(month), zone)


def begin_of(day: dt.date, zone: str) -> dt.datetime:
    """The first instant of a day, in UTC."""
    return dt.datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(dt.UTC)


def day_of(moment: dt.datetime, zone: str) -> dt.date:
    day = moment.astimezone(ZoneInfo(zone)).date()
    return day + dt.timedelta(days=1) if moment >= begin_of(day + dt.timedelta(days=1), zone) else day


def after(month: dt.date) -> dt.date:
    """The month after."""
    return (month.replace(day=1) + dt.timedelta(days=31)).replace(day=1)


def last_instant(end: dt.datetime) -> dt.datetime:
    """Return the last microsecond before `end`."""
    return end - _MICROSECOND
