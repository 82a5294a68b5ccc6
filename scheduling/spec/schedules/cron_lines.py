"""Cron lines, and the moments at which they are due in a time zone. Pure.

    "30 2 * * 1-5", Europe/Berlin ── CronLine.next_after ─► 2026-11-30 01:30 UTC ─► 2026-12-01 01:30 UTC ─► …

The rule for daylight saving: a run is due at the first moment at which the local clock shows the time of the line or a
later time. So a local time that is skipped runs at the moment after the gap, and all skipped times run once together. A
local time that is repeated runs once, at its first occurrence.
"""

from __future__ import annotations

import bisect
import calendar
import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from zoneinfo import ZoneInfo

_MONTHS = {"JAN": 1, "FEB": 2, "MAR": 3, "APR": 4, "MAY": 5, "JUN": 6} | {
    "JUL": 7,
    "AUG": 8,
    "SEP": 9,
    "OCT": 10,
    "NOV": 11,
    "DEC": 12,
}
_DAYS = {"SUN": 0, "MON": 1, "TUE": 2, "WED": 3, "THU": 4, "FRI": 5, "SAT": 6}
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Name, lowest and highest value, names of values. Day 7 is Sunday too.
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_LONGEST_MONTHS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
MAX_LENGTH = 200  # characters of a line
MINUTES_OF_DAY = 1440
# The rarest day is 29 February on a given day of the week, which comes after at most 40 years.
_MOST_DAYS = 41 * 366
_PART = re.compile(r"(?:(\*)|([A-Z]{3}|\d{1,2})(?:-([A-Z]{3}|\d{1,2}))?)(?:/(\d{1,2}))?")


class CronLineError(ValueError):
    """The error for a cron line that is not valid. The message names the wrong field and says what to do."""


@dataclass(frozen=True)
class CronLine:
    """A parsed cron line. `days_or`: if both the days of the month and the days of the week are limited, a day matches
    if one of them matches; this is the rule of cron. Days of the week count from 0 (Sunday).
    """

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    days_or: bool

    @cached_property
    def times(self) -> tuple[int, ...]:
        """Return the times of a matching day, in minutes since midnight, sorted."""
        return tuple(hour * 60 + minute for hour in self.hours for minute in self.minutes)

    def matches_day(self, day: dt.date) -> bool:
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.days_or else of_month and of_week

    def least_minutes_between(self) -> int:
        """Return the shortest time between two runs, in minutes. The last run of a day and the first run of the next
        day count as neighbours, whatever the days of the line are.
        """
        times = self.times
        later = (*times[1:], times[0] + MINUTES_OF_DAY)
        return min(after - before for before, after in zip(times, later, strict=True))

    def next_after(self, moment: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
        """Return the first moment after `moment` at which a run is due, in UTC. `moment` has a time zone. Return None
        if there is none before the end of the calendar.
        """
        moment = moment.astimezone(dt.UTC)
        for local in self._local_times_after(moment.astimezone(zone).replace(tzinfo=None)):
            due = first_moment(local, zone)
            if due is None:
                return None
            if due > moment:
                return due
        return None

    def newest_between(self, after: dt.datetime, until: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
        """Return the last moment after `after` and not after `until` at which a run is due, in UTC, or None."""
        newest, end = self.next_after(after, zone), until
        if newest is None or newest > until:
            return None
        while end - newest > dt.timedelta(seconds=1):  # no run is due after `end`
            middle = newest + (end - newest) // 2
            later = self.next_after(middle, zone)
            if later is not None and later <= until:
                newest = later
            else:
                end = middle
        return newest

    def _local_times_after(self, local: dt.datetime) -> Iterator[dt.datetime]:
        """Yield the times of the line on a clock without a time zone, in order."""
        day = local.date()
        for _ in range(_MOST_DAYS):
            if self.matches_day(day):
                midnight = dt.datetime.combine(day, dt.time())
                first = bisect.bisect_right(self.times, (local - midnight).total_seconds() / 60)  # 0 on later days
                for minutes in self.times[first:]:
                    yield midnight + dt.timedelta(minutes=minutes)
            elif day.month not in self.months:  # the last day of this month
                day = day.replace(day=calendar.monthrange(day.year, day.month)[1])
            if day == dt.date.max:
                return
            day += dt.timedelta(days=1)


def first_moment(local: dt.datetime, zone: ZoneInfo) -> dt.datetime | None:
    """Return the first moment at which the clock of `zone` shows `local` or a later time, in UTC. Return None beyond
    the end of the calendar.
    """
    try:
        earlier = local.replace(tzinfo=zone, fold=0).astimezone(dt.UTC)
        if earlier.astimezone(zone).replace(tzinfo=None) == local:
            return earlier
        # The local time is skipped. The moment after the gap is between these two readings of it.
        low = local.replace(tzinfo=zone, fold=1).astimezone(dt.UTC)
    except (OverflowError, ValueError):
        return None
    low, high = min(low, earlier), max(low, earlier)
    while high - low > dt.timedelta(seconds=1):
        middle = low + dt.timedelta(seconds=(high - low) // dt.timedelta(seconds=1) // 2)
        if middle.astimezone(zone).replace(tzinfo=None) >= local:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=4096)
def parse(text: str) -> CronLine:
    """Return the parsed cron line: five fields, or a nickname such as @daily. Raises `CronLineError`."""
    if len(text) > MAX_LENGTH:
        raise CronLineError(f"the cron line has {len(text)} characters; give at most {MAX_LENGTH}")
    given = _NICKNAMES.get(text.strip().lower(), text)
    parts = given.split()
    if given.strip().startswith("@"):
        raise CronLineError(
            f"{text!r} is unknown; give five cron fields, such as `30 2 * * *`, or one of {', '.join(_NICKNAMES)}"
        )
    if len(parts) != len(_FIELDS):
        names = ", ".join(name for name, *_ in _FIELDS)
        raise CronLineError(f"{text!r} has {len(parts)} fields; give five: {names}, such as `30 2 * * *`")
    minutes, hours, days, months, weekdays = (_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True))
    weekdays = {day % 7 for day in weekdays}
    limited = not parts[2].startswith("*"), not parts[4].startswith("*")
    days_or = all(limited)
    if not days_or and all(day > _LONGEST_MONTHS[month - 1] for month in months for day in days):
        raise CronLineError(
            f"never runs: day of month {parts[2]} does not exist in month {parts[3]}; choose a day that exists"
        )
    return CronLine(
        tuple(sorted(minutes)), tuple(sorted(hours)), frozenset(days), frozenset(months), frozenset(weekdays), days_or
    )


def _values(text: str, name: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """Return the values of a field. Raises `CronLineError`, which names the field."""
    found: set[int] = set()
    for part in text.upper().split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise CronLineError(f"{name}: {part[:40]!r} is not valid; write *, 5, 1-5, */10 or a list such as 1,15")
        star, first, last, step = match.groups()
        if star:
            start, end = low, min(high, 6) if name == "day of week" else high
        else:
            start = _number(first, name, low, high, names)
            end = _number(last, name, low, high, names) if last else (high if step else start)
        if end < start:
            raise CronLineError(f"{name}: the range {part} ends before it starts; write the lower value first")
        if step is not None and not 1 <= int(step) <= high:
            raise CronLineError(f"{name}: the step of {part} is out of range; give 1 to {high}")
        found.update(range(start, end + 1, int(step or 1)))
    return found


def _number(text: str, name: str, low: int, high: int, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    if not text.isdecimal():
        known = f", or one of {', '.join(names)}" if names else ""
        raise CronLineError(f"{name}: {text!r} is not a number; give {low} to {high}{known}")
    if not low <= int(text) <= high:
        raise CronLineError(f"{name}: {text} is out of range; give {low} to {high}")
    return int(text)
