"""Cron lines against a slow model: a clock that is read minute by minute, in any zone and at changes of its offset."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given
from hypothesis import strategies as st

from scheduling.spec.schedules import cron_lines

_ZONES = sorted(available_timezones() - {"localtime", "Factory"})
_MINUTE = dt.timedelta(minutes=1)


def _changes(zone: ZoneInfo, year: int) -> Iterator[dt.datetime]:
    """Yield the hours of a year in which the offset of the zone changes."""
    hour = dt.datetime(year, 1, 1, tzinfo=dt.UTC)
    while hour.year == year:
        later = hour + dt.timedelta(hours=6)
        if hour.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            yield hour
        hour = later


def _model(text: str, zone: ZoneInfo, start: dt.datetime, end: dt.datetime) -> list[dt.datetime]:
    """Return the moments after `start` and until `end` at which the line is due. The clock starts days before `start`,
    because a time that the clock has shown before is not due again.
    """
    fields = zip(text.split(), _BOUNDS, strict=True)
    minutes, hours, days, months, weekdays = (_field(part, *bounds) for part, bounds in fields)
    either = not text.split()[2].startswith("*") and not text.split()[4].startswith("*")
    at = start - dt.timedelta(hours=27)
    shown = at.astimezone(zone).replace(tzinfo=None, second=0)
    found = []
    while at <= end:
        local = at.astimezone(zone).replace(tzinfo=None, second=0)
        due = False
        while shown < local:  # usually one minute; more at a gap
            shown += _MINUTE
            of_month, of_week = shown.day in days, shown.isoweekday() % 7 in {day % 7 for day in weekdays}
            day_matches = of_month or of_week if either else of_month and of_week
            if shown.minute in minutes and shown.hour in hours and shown.month in months and day_matches:
                due = True
        if due and at > start:
            found.append(at)
        at += _MINUTE
    return found


_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def _field(text: str, low: int, high: int) -> set[int]:
    body, _, step = text.partition("/")
    values = range(low, high + 1) if body == "*" else [int(part) for part in body.split(",")]
    return {value for position, value in enumerate(values) if position % int(step or 1) == 0}


def _numbers(low: int, high: int) -> st.SearchStrategy[str]:
    some = st.lists(st.integers(low, high), min_size=1, max_size=3).map(lambda values: ",".join(map(str, values)))
    return st.one_of(st.just("*"), some, st.integers(1, high or 1).map(lambda step: f"*/{step}"))


@given(data=st.data(), zone=st.sampled_from(_ZONES), year=st.integers(1990, 2037))
def test_moments_of_a_line_are_those_of_a_clock_that_is_read_minute_by_minute(
    data: st.DataObject, zone: str, year: int
) -> None:
    place = ZoneInfo(zone)
    changes = list(_changes(place, year))
    near = data.draw(st.sampled_from(changes)) if changes else dt.datetime(year, 3, 1, tzinfo=dt.UTC)
    hours = st.one_of(st.just("*"), _numbers(0, 23), st.just("0,1,2,3"))
    text = " ".join(
        data.draw(field)
        for field in (_numbers(0, 59), hours, st.just("*") | _numbers(1, 28), st.just("*"), _numbers(0, 6))
    )
    start = near - dt.timedelta(minutes=data.draw(st.integers(0, 1200)))
    end = start + dt.timedelta(hours=36)
    line, at, found = cron_lines.parse(text), start, []
    while (due := line.next_after(at, place)) is not None and due <= end:
        found.append(due)
        at = due
    assert found == _model(text, place, start, end)
