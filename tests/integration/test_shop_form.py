"""Tests of the form of the shop: it reads days in any time zone, quantities and lengths, and draws what is left."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from portal.sigma.shop.availability import HEIGHT, WIDTH, DayLeft, chart
from portal.sigma.shop.period import DAY, DayError, QuotaPeriod, day_read, instants, preset_last, preset_of
from portal.sigma.shop.request_form import Choices, fields_of, wish_read
from quota.vocabulary.resources import format_input

BERLIN, NEW_YORK, HAVANA = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York"), ZoneInfo("America/Havana")
UTC = ZoneInfo("UTC")
NOON = dt.datetime(2027, 3, 1, 12, tzinfo=dt.UTC)


def date(text: str) -> dt.date:
    return dt.date.fromisoformat(text)


def choices(zone: ZoneInfo = BERLIN, *, now: dt.datetime = NOON, longest: int = 366) -> Choices:
    return Choices(
        ["ubar", "foo"], ["cc", "dd"], ["production", "batch"], {"ubar": zone, "foo": UTC}, {"cc": longest}, now
    )


@pytest.mark.parametrize(
    "zone, day, hours, begins",
    [
        (BERLIN, "2027-03-28", 23, "2027-03-27T23:00"),
        (BERLIN, "2027-10-31", 25, "2027-10-30T22:00"),
        (NEW_YORK, "2027-03-14", 23, "2027-03-14T05:00"),
        (HAVANA, "2027-03-14", 23, "2027-03-14T05:00"),
        (HAVANA, "2027-11-07", 25, "2027-11-07T04:00"),
        (UTC, "2028-02-29", 24, "2028-02-29T00:00"),
    ],
    ids=["berlin-spring", "berlin-autumn", "new-york-spring", "havana-no-midnight", "havana-two-midnights", "leap"],
)
def test_a_day_is_as_long_as_it_is_there(zone, day, hours, begins) -> None:
    period = QuotaPeriod(date(day), date(day))
    starts_at, ends_at = instants(period, zone, now=NOON)
    assert ends_at - starts_at == dt.timedelta(hours=hours)
    assert starts_at.isoformat()[:16] == begins
    assert instants(QuotaPeriod(date(day) + DAY, date(day) + DAY), zone, now=NOON)[0] == ends_at, "no gap"


def test_of_today_only_what_is_left_is_sold() -> None:
    now = dt.datetime(2027, 3, 1, 23, 30, 59, 999, tzinfo=dt.UTC)
    today = now.astimezone(BERLIN).date()
    assert today == date("2027-03-02"), "in Berlin it is tomorrow already"
    starts_at, ends_at = instants(QuotaPeriod(today, today), BERLIN, now=now)
    assert (starts_at.isoformat(), ends_at.isoformat()) == ("2027-03-01T23:30:00+00:00", "2027-03-02T23:00:00+00:00")


@pytest.mark.parametrize(
    "name, first, last",
    [
        ("week", "2027-12-29", "2028-01-04"),
        ("month", "2027-01-01", "2027-01-31"),
        ("month", "2027-01-31", "2027-02-28"),
        ("month", "2028-01-31", "2028-02-29"),
        ("month", "2028-01-29", "2028-02-28"),
        ("month", "2027-12-15", "2028-01-14"),
        ("quarter", "2027-11-30", "2028-02-29"),
        ("quarter", "2027-02-01", "2027-04-30"),
    ],
)
def test_usual_lengths_end_where_people_expect(name, first, last) -> None:
    assert preset_last(name, date(first)) == date(last)
    assert preset_of(QuotaPeriod(date(first), date(last))) == name


@pytest.mark.parametrize(
    "text, ends, day",
    [
        ("2027-03-28", False, "2027-03-28"),
        ("2027-03-27T23:00:00Z", False, "2027-03-28"),
        ("2027-03-27T23:00:00Z", True, "2027-03-27"),
        ("2027-03-28T00:00:00", True, "2027-03-27"),
        ("2027-03-28T00:00:01+02:00", True, "2027-03-27"),
    ],
)
def test_an_instant_is_read_as_the_day_it_lies_on(text, ends, day) -> None:
    assert day_read(text, BERLIN, ends=ends) == date(day)


@pytest.mark.parametrize("text", ["", "x", "2027-02-29", "28.2.2027", "2027-02-28T25:00", "0001-01-01", "9999-12-31"])
def test_input_that_is_not_a_day_is_reported(text) -> None:
    with pytest.raises(DayError):
        day_read(text, BERLIN)


def test_the_days_of_a_tenant_are_those_of_its_time_zone() -> None:
    form = wish_read({"tenant": "ubar", "from": "2027-03-28", "until": "2027-03-28"}, choices())
    assert form.wish is not None
    assert form.wish.ends_at - form.wish.starts_at == dt.timedelta(hours=23)
    other = wish_read({"tenant": "foo", "from": "2027-03-28", "until": "2027-03-28"}, choices())
    assert other.wish is not None
    assert other.wish.ends_at - other.wish.starts_at == dt.timedelta(hours=24)


def test_yesterday_there_may_be_today_here() -> None:
    late = dt.datetime(2027, 3, 1, 23, 30, tzinfo=dt.UTC)
    assert "from" in wish_read({"tenant": "ubar", "from": "2027-03-01"}, choices(now=late)).errors
    assert "from" not in wish_read({"tenant": "foo", "from": "2027-03-01"}, choices(now=late)).errors


def test_the_longest_period_is_counted_in_days() -> None:
    most = {"from": "2027-03-02", "until": "2027-03-31"}
    assert wish_read(most, choices(longest=30)).wish is not None
    assert "sells at most 30" in wish_read(most | {"until": "2027-04-01"}, choices(longest=30)).errors["until"]


def test_a_wish_is_read_again_from_its_own_link() -> None:
    given = {"band": "batch", "cpu": "1500m", "ram": "3Gi", "disk": "1000", "accelerators": "2", "renew": "1"}
    form = wish_read(given | {"from": "2027-10-30", "until": "2027-11-02"}, choices())
    assert form.wish is not None
    assert wish_read(fields_of(form.wish), choices()).wish == form.wish


@pytest.mark.parametrize(
    "name, value, text",
    [("cpu", 1500, "1500m"), ("cpu", 2000, "2"), ("ram", 2**34, "16Gi"), ("ram", 1000, "1000"), ("disk", 0, "0")],
)
def test_a_quantity_is_written_as_the_form_takes_it(name, value, text) -> None:
    assert format_input(name, value) == text


def days(*left: int) -> list[DayLeft]:
    return [DayLeft(date("2027-03-01") + number * DAY, (value, 0, 0, 0, 0, 0)) for number, value in enumerate(left)]


def test_bars_join_equal_days_and_tell_which_are_too_few() -> None:
    drawn = chart(days(9, 9, 3, 9, 9, 9), 0, asked=5, period=QuotaPeriod(date("2027-03-02"), date("2027-03-05")))
    assert [(bar.tone, bar.left) for bar in drawn.bars] == [
        ("beside", 9),
        ("fits", 9),
        ("short", 3),
        ("fits", 9),
        ("beside", 9),
    ]
    assert (drawn.least, drawn.short_days, drawn.short_from) == (3, 1, date("2027-03-03"))
    assert round(sum(bar.width for bar in drawn.bars)) == WIDTH
    assert all(bar.y >= 0 and bar.y + bar.height <= HEIGHT + 0.01 for bar in drawn.bars)
    assert 0 < drawn.asked_y < HEIGHT


def test_what_is_over_sold_draws_as_nothing_left() -> None:
    drawn = chart(days(-7), 0, asked=0, period=QuotaPeriod(date("2027-03-01"), date("2027-03-01")))
    assert (drawn.bars[0].left, drawn.bars[0].height) == (0, 0)
    huge = chart(days(2**62), 0, asked=2**62, period=QuotaPeriod(date("2027-03-01"), date("2027-03-01")))
    assert 0 < huge.asked_y < HEIGHT
