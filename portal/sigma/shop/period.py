"""Days as people name them and instants as they are sold: first and last day, in the tenant's time zone. Pure."""

from __future__ import annotations

import calendar
import datetime as dt
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from quota.vocabulary.calendar import midnight

DAY = dt.timedelta(days=1)
PRESETS = {
    "week": gettext_lazy("a week"),
    "month": gettext_lazy("a month"),
    "quarter": gettext_lazy("3 months"),
}
# Beyond this no calendar is drawn and no price is told.
FARTHEST = dt.date(9998, 12, 31)


class DayError(ValueError):
    """A day that can't be read; its message says what is accepted."""


class QuotaPeriod(NamedTuple):
    """Both days are part of it."""

    first: dt.date
    last: dt.date

    @property
    def days(self) -> int:
        return (self.last - self.first).days + 1

    def moved(self, first: dt.date) -> QuotaPeriod:
        """As many days from another one on."""
        return QuotaPeriod(first, first + (self.last - self.first))


def day_read(text: str, zone: ZoneInfo, *, ends: bool = False) -> dt.date:
    """`2026-12-01`, or an instant such as `2026-12-01T00:00:00Z` as the day it lies on.

    `ends`: the instant is an end, so midnight belongs to the day before. Raises `DayError`.
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
        raise DayError(_("%r is not a day; give one such as 2026-12-31") % given[:40]) from None
    if not dt.date(2000, 1, 1) <= day <= FARTHEST:
        raise DayError(_("%s is too far away to be sold") % given[:40])
    return day


def instants(period: QuotaPeriod, zone: ZoneInfo, *, now: dt.datetime) -> tuple[dt.datetime, dt.datetime]:
    """From when until when in UTC, end excluded. Of today only what is left of it: the past is not sold."""
    starts_at = midnight(period.first, zone)
    if period.first == now.astimezone(zone).date():
        starts_at = max(starts_at, now.replace(second=0, microsecond=0))
    return starts_at, midnight(period.last + DAY, zone)


def preset_last(name: str, first: dt.date) -> dt.date:
    """The last day of a week, month or quarter that begins with `first`. From 31 January a month ends in February."""
    if name == "week":
        return first + 6 * DAY
    months = {"month": 1, "quarter": 3}[name]
    year, month = divmod(first.year * 12 + first.month - 1 + months, 12)
    length = calendar.monthrange(year, month + 1)[1]
    if first.day > length:
        return dt.date(year, month + 1, length)
    return dt.date(year, month + 1, first.day) - DAY


def preset_of(period: QuotaPeriod) -> str:
    """Which preset a period is, "" for none."""
    return next((name for name in PRESETS if preset_last(name, period.first) == period.last), "")
