"""Tests of days and renewals when clocks change, months end, and years have a leap day."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from quota.vocabulary import calendar

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = dt.timedelta(hours=1)


def berlin(*given: int) -> dt.datetime:
    return dt.datetime(*given, tzinfo=BERLIN).astimezone(dt.UTC)


@pytest.mark.parametrize(
    ("date", "hours"),
    [(dt.date(2027, 3, 28), 23), (dt.date(2027, 3, 29), 24), (dt.date(2027, 10, 31), 25)],
    ids=["clock-forward", "usual", "clock-back"],
)
def test_a_day_has_as_many_hours_as_its_zone_gives_it(date: dt.date, hours: int) -> None:
    (day,) = calendar.days((), date, 1, BERLIN)
    assert day.ends_at - day.begins_at == hours * HOUR


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (berlin(2027, 3, 1), berlin(2027, 4, 1), berlin(2027, 5, 2)),
        (berlin(2027, 10, 30), berlin(2027, 10, 31), berlin(2027, 11, 1)),
        (berlin(2028, 2, 28), berlin(2028, 2, 29), berlin(2028, 3, 1)),
        (berlin(2027, 3, 27, 12), berlin(2027, 3, 27, 18), berlin(2027, 3, 28)),
    ],
    ids=["over-dst", "day-of-25-hours", "leap-day", "hours"],
)
def test_a_renewal_is_as_long_by_days_of_its_zone(begin: dt.datetime, end: dt.datetime, expected: dt.datetime) -> None:
    assert calendar.following(begin, end, BERLIN) == expected


@pytest.mark.parametrize(
    ("now", "end", "expected"),
    [
        (berlin(2027, 3, 27, 12), berlin(2027, 3, 30), berlin(2027, 3, 28)),
        (berlin(2027, 3, 28), berlin(2027, 3, 30), berlin(2027, 3, 28)),
        (berlin(2027, 3, 29, 0, 1), berlin(2027, 3, 30), berlin(2027, 3, 30)),
        (berlin(2027, 4, 1), berlin(2027, 3, 30), berlin(2027, 3, 30)),
    ],
    ids=["over-dst", "at-midnight", "none", "past"],
)
def test_only_whole_days_are_left(now: dt.datetime, end: dt.datetime, expected: dt.datetime) -> None:
    assert calendar.whole_days_left(now, end, BERLIN) == expected


def test_a_day_without_sales_adds_no_step() -> None:
    assert calendar.steps([]) == ()
