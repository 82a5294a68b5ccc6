"""Property tests of billing months: in any time zone they leave no gap, and each instant lies in exactly one."""

from __future__ import annotations

import datetime as dt
from zoneinfo import available_timezones

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quota.vocabulary import months

ZONES = sorted(zone for zone in available_timezones() if "/" in zone or zone == "UTC")
MOMENTS = st.datetimes(min_value=dt.datetime(1990, 1, 1), max_value=dt.datetime(2090, 1, 1), timezones=st.just(dt.UTC))


@given(MOMENTS, st.sampled_from(ZONES))
@example(dt.datetime(2009, 11, 1, 3, 0, tzinfo=dt.UTC), "America/St_Johns")  # 00:01 goes back to 23:01 of October
@example(dt.datetime(2024, 2, 29, 23, 59, tzinfo=dt.UTC), "UTC")
@example(dt.datetime(2011, 12, 31, 0, 0, tzinfo=dt.UTC), "Pacific/Apia")  # Apia had no 30th of December
def test_each_instant_lies_in_its_month_and_day(moment: dt.datetime, zone: str) -> None:
    begin, end = months.bounds(months.month_of(moment, zone), zone)
    assert begin <= moment < end
    day = months.day_of(moment, zone)
    assert months.begin_of(day, zone) <= moment < months.begin_of(day + dt.timedelta(days=1), zone)


@given(st.dates(min_value=dt.date(1990, 1, 1), max_value=dt.date(2090, 1, 1)), st.sampled_from(ZONES))
def test_months_follow_each_other_and_last_as_long_as_months_do(day: dt.date, zone: str) -> None:
    month = day.replace(day=1)
    begin, end = months.bounds(month, zone)
    assert end == months.bounds(months.after(month), zone)[0]
    assert dt.timedelta(days=26, hours=20) <= end - begin <= dt.timedelta(days=31, hours=4) + dt.timedelta(days=1)
    assert months.month_of(begin, zone) == month
    assert months.month_of(months.last_instant(end), zone) == month


@pytest.mark.parametrize(
    "zone, month, hours",
    [
        ("UTC", dt.date(2024, 2, 1), 29 * 24),
        ("UTC", dt.date(2023, 2, 1), 28 * 24),
        ("Europe/Berlin", dt.date(2026, 3, 1), 31 * 24 - 1),
        ("Europe/Berlin", dt.date(2026, 10, 1), 31 * 24 + 1),
        ("Australia/Lord_Howe", dt.date(2026, 4, 1), 30 * 24 + 0.5),
        ("Asia/Kathmandu", dt.date(2026, 12, 1), 31 * 24),
    ],
)
def test_known_months(zone: str, month: dt.date, hours: float) -> None:
    begin, end = months.bounds(month, zone)
    assert end - begin == dt.timedelta(hours=hours)
