"""Parses periods, days and times in the options of commands. Days are in the tenant's time zone. Times must contain a
time zone. Pure.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import NamedTuple
from zoneinfo import ZoneInfo

from portal.cli.failure import CommandFailed, bad_usage

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}", re.ASCII)
_DURATION = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class TimeRange(NamedTuple):
    """A period in UTC, in whole seconds. If `begins` is None, the period begins when the portal receives the
    request.
    """

    begins: dt.datetime | None
    ends: dt.datetime

    def body(self) -> dict[str, str]:
        """Return the period as fields of a request to the API."""
        fields = {"ends_at": self.ends.isoformat()}
        return fields | ({"starts_at": self.begins.isoformat()} if self.begins is not None else {})


def zone(name: str) -> ZoneInfo:
    """Return the time zone `name`. Raises `CommandFailed` if this machine has no data about the time zone."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        problem = (
            f"this machine has no data about the tenant's time zone {name}; install tzdata, "
            "or write times such as 2027-01-31T00:00:00Z"
        )
        raise CommandFailed("no-time-zone", problem) from error


def period(begin: str | None, until: str | None, days: int | None, *, time_zone: str, now: dt.datetime) -> TimeRange:
    """Return the period that the options `--from` (`begin`), `--until` and `--days` describe. Raises `CommandFailed` if
    a value is not valid, or if not exactly one of `--until` and `--days` is given.

    Days are in the time zone `time_zone`. The day of `--until` belongs to the period. If the first day is today, the
    period begins now.
    """
    if (until is None) == (days is None):
        raise bad_usage("the end is missing or given twice: use --until or --days", until="use --until or --days")
    home = zone(time_zone)
    first = _moment("from", begin, home) if begin is not None else now
    begins: dt.datetime | None = None if begin is None or _is_today(begin, home, now) else first
    if until is not None:
        ends = _moment("until", until, home, after=1)
    else:
        assert days is not None
        ends = _after(first, days, home, exactly=begin is not None and not _DAY.fullmatch(begin))
    if ends <= (begins or now):
        raise bad_usage(f"the period ends at {ends.isoformat()}, before it begins: give a later end", until="too early")
    return TimeRange(begins, ends)


def end(name: str, text: str, *, time_zone: str) -> dt.datetime:
    """Return the time that `text` stands for. If `text` is a day, return the end of that day. Raises `CommandFailed` if
    `text` is neither. `name`: the name of the option, for the error message.
    """
    return _moment(name, text, zone(time_zone), after=1)


def duration_s(text: str) -> int | None:
    """Return the number of seconds in a duration such as `30m`. Return None if `text` is not a duration."""
    match = _DURATION.fullmatch(text)
    return int(match[1]) * _UNITS_S[match[2]] if match else None


def format_window(seconds: float) -> str:
    """Return a number of seconds in the largest unit of which it is a multiple, for example `1 hour`."""
    number = round(seconds)
    for unit_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if number % unit_s == 0:
            return f"{number // unit_s} {unit}{'' if number == unit_s else 's'}"
    return f"{number} s"


def month(text: str) -> str:
    """Return `text` if it is a month such as `2027-01`. Raises `CommandFailed` otherwise."""
    if not _MONTH.fullmatch(text) or not 1 <= int(text[5:]) <= 12:
        raise bad_usage(f"{text!r} is not a month: write it like 2027-01", month="not a month")
    return text


def day(name: str, text: str) -> str:
    """Return `text` if it is a day such as `2027-01-31`. Raises `CommandFailed` otherwise. `name`: the name of the
    option, for the error message.
    """
    try:
        if _DAY.fullmatch(text):
            return dt.date.fromisoformat(text).isoformat()
    except ValueError:
        pass  # for example, the 31st of June
    raise bad_usage(f"--{name} {text!r} is not a day: write it like 2027-01-31", **{name: "not a day"})


def _is_today(text: str, home: ZoneInfo, now: dt.datetime) -> bool:
    return _DAY.fullmatch(text) is not None and text == now.astimezone(home).date().isoformat()


def _moment(name: str, text: str, home: ZoneInfo, *, after: int = 0) -> dt.datetime:
    """Return the time that `text` stands for, in UTC. If `text` is a day, return the start of the day that comes
    `after` days later.

    Raises `CommandFailed` if `text` is neither a time nor a day.
    """
    try:
        if _DAY.fullmatch(text):
            wanted = dt.date.fromisoformat(text) + dt.timedelta(days=after)
            return dt.datetime.combine(wanted, dt.time(), home).astimezone(dt.UTC)
        moment = dt.datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(dt.UTC).replace(microsecond=0)
    except (ValueError, OverflowError) as error:
        raise _no_moment(name, text) from error
    raise _no_moment(name, text)


def _after(first: dt.datetime, days: int, home: ZoneInfo, *, exactly: bool) -> dt.datetime:
    """Return the time that is `days` days after `first`. If `exactly` is False, return the beginning of the day that
    contains this time, in the time zone `home`. Raises `CommandFailed` if the time is after the year 9999.
    """
    try:
        if exactly:
            return first + dt.timedelta(days=days)
        last = first.astimezone(home).date() + dt.timedelta(days=days)
        return dt.datetime.combine(last, dt.time(), home).astimezone(dt.UTC)
    except OverflowError as error:
        raise bad_usage(
            f"--days {days} is too many: the calendar ends in year 9999; use fewer days", days="too many"
        ) from error


def _no_moment(name: str, text: str) -> CommandFailed:
    cure = "write a day like 2027-01-31, or a time with its zone like 2027-01-31T08:00+01:00"
    return bad_usage(f"--{name} {text!r} is not a day or a time: {cure}", **{name: "not a day or a time"})
