"""Periods of orders as people type them: days in the tenant's time zone, or moments with their own (pure)."""

from __future__ import annotations

import datetime as dt
import re
from typing import NamedTuple
from zoneinfo import ZoneInfo

from portal.cli.failure import CommandFailed, bad_usage

_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_MONTH = re.compile(r"[0-9]{4}-[0-9]{2}", re.ASCII)


class TimeRange(NamedTuple):
    """Period in UTC, in whole seconds. `begins` is None for "now" by the portal's clock."""

    begins: dt.datetime | None
    ends: dt.datetime

    def body(self) -> dict[str, str]:
        fields = {"ends_at": self.ends.isoformat()}
        return fields | ({"starts_at": self.begins.isoformat()} if self.begins is not None else {})


def zone(name: str) -> ZoneInfo:
    """Return the time zone. Raises `CommandFailed` if this machine does not know it."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise CommandFailed(
            "no-time-zone",
            f"this machine does not know the tenant's time zone {name}; install tzdata, "
            "or write times with a zone, such as 2027-01-31T00:00:00Z",
        ) from error


def period(begin: str | None, until: str | None, days: int | None, *, time_zone: str, now: dt.datetime) -> TimeRange:
    """Return the period of `--from`, `--until` and `--days`. Raises `CommandFailed`.

    Days are in the tenant's time zone, and the day of `--until` is included. A period from today begins now.
    """
    if (until is None) == (days is None):
        raise bad_usage("the end is missing or given twice: use either --until or --days", until="give it, or --days")
    home = zone(time_zone)
    first = _moment("from", begin, home) if begin is not None else now
    begins: dt.datetime | None = None if begin is None or _is_today(begin, home, now) else first
    if until is not None:
        ends = _moment("until", until, home, after=1)
    else:
        assert days is not None
        ends = _after(first, days, home, exactly=begin is not None and not _DAY.fullmatch(begin))
    if ends <= (begins or now):
        raise bad_usage(
            f"the period would end at {ends.isoformat()}, before it begins: give a later end", until="too early"
        )
    return TimeRange(begins, ends)


def end(name: str, text: str, *, time_zone: str) -> dt.datetime:
    """Return the end of the given day, or the given time. Raises `CommandFailed`."""
    return _moment(name, text, zone(time_zone), after=1)


def month(text: str) -> str:
    """Return a month such as `2027-01`. Raises `CommandFailed`."""
    if not _MONTH.fullmatch(text) or not 1 <= int(text[5:]) <= 12:
        raise bad_usage(f"{text!r} is not a month: write it like 2027-01", month="not a month")
    return text


def day(name: str, text: str) -> str:
    """Return a day such as `2027-01-31`. Raises `CommandFailed`."""
    try:
        if _DAY.fullmatch(text):
            return dt.date.fromisoformat(text).isoformat()
    except ValueError:
        pass  # such as the 31st of June: reported below
    raise bad_usage(f"--{name} {text!r} is not a day: write it like 2027-01-31", **{name: "not a day"})


def _is_today(text: str, home: ZoneInfo, now: dt.datetime) -> bool:
    return _DAY.fullmatch(text) is not None and text == now.astimezone(home).date().isoformat()


def _moment(name: str, text: str, home: ZoneInfo, *, after: int = 0) -> dt.datetime:
    """Return the midnight that begins a day (`after`: days to add), or the given time. Raises `CommandFailed`."""
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
    """Return the time `days` later: at midnight, counting the first day, or to the second. Raises `CommandFailed`."""
    try:
        if exactly:
            return first + dt.timedelta(days=days)
        last = first.astimezone(home).date() + dt.timedelta(days=days)
        return dt.datetime.combine(last, dt.time(), home).astimezone(dt.UTC)
    except OverflowError as error:
        raise bad_usage(f"--days {days} goes beyond the end of the calendar", days="too many") from error


def _no_moment(name: str, text: str) -> CommandFailed:
    cure = "write a day like 2027-01-31, or a time with its zone like 2027-01-31T08:00+01:00"
    return bad_usage(f"--{name} {text!r} is not a day or a time: {cure}", **{name: "not a day or a time"})
