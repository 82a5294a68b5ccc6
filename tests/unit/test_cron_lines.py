"""Tests of cron lines at known changes of the clock, and of lines that are not valid."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from scheduling.spec.schedules import cron_lines


def due(text: str, zone: str, after: str, number: int = 1) -> list[str]:
    """Return the next due times after a time in UTC, in the zone."""
    place, at, found = ZoneInfo(zone), dt.datetime.fromisoformat(after).replace(tzinfo=dt.UTC), []
    for _ in range(number):
        moment = cron_lines.parse(text).next_after(at, place)
        assert moment is not None
        at = moment
        found.append(f"{at.astimezone(place):%m-%d %H:%M %z}")
    return found


@pytest.mark.parametrize(
    ("text", "zone", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),  # a gap
        ("*/15 2 * * *", "Europe/Berlin", "2026-03-28 12:00", ["03-29 03:00 +0200", "03-30 02:00 +0200"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),  # repeated
        ("*/30 * * * *", "Europe/Berlin", "2026-10-25 00:00", ["10-25 02:30 +0200", "10-25 03:00 +0100"]),
        ("0 12 30 12 *", "Pacific/Apia", "2011-12-29 00:00", ["12-31 00:00 +1400"]),  # a day that does not exist
        ("0 0 29 2 *", "UTC", "2026-01-01 00:00", ["02-29 00:00 +0000"]),
        ("0 9 13 * FRI", "UTC", "2026-11-12 00:00", ["11-13 09:00 +0000", "11-20 09:00 +0000"]),  # either day
        ("0 9 * * 7", "UTC", "2026-11-28 00:00", ["11-29 09:00 +0000"]),
        ("@monthly", "UTC", "2026-11-28 00:00", ["12-01 00:00 +0000"]),
    ],
)
def test_due_times_at_known_changes(text: str, zone: str, after: str, expected: list[str]) -> None:
    assert due(text, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("30 2 30 2 *", "never runs"),
        ("0 0 31 4,6,9,11 *", "never runs"),
        ("60 * * * *", "minute: 60 is out of range"),
        ("* 24 * * *", "hour: 24"),
        ("* * 0 * *", "day of month: 0"),
        ("* * * 13 *", "month: 13"),
        ("* * * * 8", "day of week: 8"),
        ("* * * * FOO", "day of week: 'FOO'"),
        ("5-1 * * * *", "minute: the range"),
        ("*/0 * * * *", "minute: the step"),
        ("* * * *", "give five"),
        ("@fortnightly", "unknown"),
        ("1" * 300, "at most 200"),
    ],
)
def test_a_line_that_is_not_valid_names_its_field(text: str, problem: str) -> None:
    with pytest.raises(cron_lines.CronLineError, match=problem):
        cron_lines.parse(text)


@pytest.mark.parametrize("line", ["* * * * *", "*/7 3 * * *", "30 2 * * *", "0 0 1 1 *", "59 23 29 2 *"])
@pytest.mark.parametrize("hours", [0.01, 1.0, 30.0, 72.0])
def test_the_newest_time_is_the_last_one_before_the_end(line: str, hours: float) -> None:
    zone, parsed = ZoneInfo("Europe/Berlin"), cron_lines.parse(line)
    after = dt.datetime(2026, 10, 24, 23, 59, 30, tzinfo=dt.UTC)  # the day before the clock is set back
    until = after + dt.timedelta(hours=hours)
    newest, at = None, parsed.next_after(after, zone)
    while at is not None and at <= until:
        newest, at = at, parsed.next_after(at, zone)
    assert parsed.newest_between(after, until, zone) == newest
    if newest is not None:
        assert parsed.newest_between(after, newest, zone) == newest  # the end is included
