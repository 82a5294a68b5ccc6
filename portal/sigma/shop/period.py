"""Conversion between the days that users enter and the start and end instants of the period that is sold, in the
tenant's time zone. Pure.
"""

from __future__ import annotations

import calendar
import datetime as dt
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quota.vocabulary.calendar import midnight

DAY = dt.timedelta(days=1)
PRESETS = {"week": gettext_lazy("a week"), "month": gettext_lazy("a month"), "quarter": gettext_lazy("3 months")}
# The last day for which the portal can compute a price.
FARTHEST = dt.date(9998, 12, 31)


class DayError(ValueError):
    """The error for a text that is not a day. The message gives an example of a valid day."""


class QuotaPeriod(NamedTuple):
    """The days for which quota is requested. `first` and `last` are included."""

    first: dt.date
    last: dt.date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1

    def moved(self, first: dt.date) -> QuotaPeriod:
        """Return a period of the same length that starts on `first`."""
        return QuotaPeriod(first, first + (self.last - self.first))


def day_read(text: str, zone: ZoneInfo, *, ends: bool = False) -> dt.date:
    """Return the day that a text such as `2026-12-01` or `2026-12-01T00:00:00Z` means in the time zone `zone`. Raises
    `DayError` if the text is not a day.

    `ends`: whether the text is the end of a period. Midnight is then the end of the day before.
    """
    given = text.strip()
    try:
        if len(given) > 10:
            instant = dt.datetime.fromisoformat(given)
            if instant.tzinfo is None:
                instant = instant.replace(tzinfo=zone)
            local = instant.astimezone(zone)
            day = (local - dt.timedelta(microseconds=1)).date() if ends else local.date()
        else:
            day = dt.date.fromisoformat(given)
    except (ValueError, OverflowError):
        raise DayError(_("%r is not a day; give a day such as 2026-12-31") % given[:40]) from None
    if not dt.date(2000, 1, 1) <= day <= FARTHEST:
        raise DayError(_("the day %s is too early or too late; give a day from 2000-01-01 to 9998-12-31") % given[:40])
    return day


def instants(period: QuotaPeriod, zone: ZoneInfo, *, now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """Return the start and the end (not included) of a period in UTC. If it starts today, its start is `now`."""
    starts_at = midnight(period.first, zone)
    if period.first == now.astimezone(zone).date():
        starts_at = max(starts_at, now.replace(second=0, microsecond=0))
    return starts_at, midnight(period.last + DAY, zone)


def preset_last(name: str, first: dt.date) -> dt.date:
    """Return the last day of a week, month or quarter that starts on `first`. `name`: a key of `PRESETS`."""
    if name == "week":
        return first + 6 * DAY
    months = {"month": 1, "quarter": 3}[name]
    year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
    length = calendar.monthrange(year, month + 1)[1]
    if first.day > length:
        return dt.date(year, month + 1, length)
    return dt.date(year, month + 1, first.day) - DAY


def preset_of(period: QuotaPeriod) -> str:
    """Return the preset (a key of `PRESETS`) that is as long as the period, or "" if there is none."""
    return next((name for name in PRESETS if preset_last(name, period.first) == period.last), "")
