"""Property tests of the calendar of sold quota, compared with a slow version that looks at every hour."""

from __future__ import annotations

import datetime as dt
import itertools
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from quota.vocabulary import calendar
from quota.vocabulary.calendar import Span
from quota.vocabulary.resources import SIZE, Vector

START = dt.datetime(2027, 3, 27, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
EDGE = 2**63 - 1

moments = st.integers(0, 60).map(lambda n: START + n * HOUR)
vectors = st.tuples(st.integers(0, 9), st.sampled_from([0, 1, EDGE]), *(st.just(0) for _ in range(SIZE - 2)))
spans = st.lists(
    st.builds(Span, moments, st.one_of(st.none(), moments), vectors), max_size=12
)  # some periods end before they begin
periods = st.tuples(moments, moments).filter(lambda pair: pair[0] < pair[1])


def sold_at(spans: list[Span], moment: dt.datetime) -> Vector:
    """Return the total amounts sold at a moment. A period includes its beginning and excludes its end."""
    there = [s for s in spans if s.begins_at <= moment and (s.ends_at is None or moment < s.ends_at)]
    return tuple(sum(span.amounts[i] for span in there) for i in range(SIZE))


def hours(begin: dt.datetime, end: dt.datetime) -> list[dt.datetime]:
    """Return the full hours of a period. All changes in these tests are at full hours, so no other instants matter."""
    return [begin + n * HOUR for n in range(int((end - begin) / HOUR))]


def most(spans: list[Span], begin: dt.datetime, end: dt.datetime) -> Vector:
    levels = [sold_at(spans, moment) for moment in hours(begin, end)]
    return tuple(max(level[i] for level in levels) for i in range(SIZE))


@given(spans, periods)
def test_the_peak_of_a_period_is_the_most_at_any_instant(spans: list[Span], period: tuple) -> None:
    assert calendar.peak(calendar.steps(spans), *period) == most(spans, *period)


@given(spans, periods, vectors)
def test_what_is_left_is_the_least_at_any_instant(spans: list[Span], period: tuple, limit: Vector) -> None:
    expected = tuple(a - b for a, b in zip(limit, most(spans, *period), strict=True))
    assert calendar.left(limit, calendar.steps(spans), *period) == expected


@given(spans, moments, vectors)
def test_excesses_cover_exactly_when_too_much_is_sold(spans: list[Span], after: dt.datetime, limit: Vector) -> None:
    found = calendar.excesses(limit, calendar.steps(spans), after)
    for before, behind in itertools.pairwise(found):
        assert before.ends_at is not None
        assert before.ends_at < behind.begins_at
    for moment in hours(after, START + 70 * HOUR):
        over = any(has > most for has, most in zip(sold_at(spans, moment), limit, strict=True))
        inside = [e for e in found if e.begins_at <= moment and (e.ends_at is None or moment < e.ends_at)]
        assert bool(inside) == over
    for excess in found:
        end = excess.ends_at or START + 70 * HOUR
        highest = most(spans, excess.begins_at, end)
        assert excess.short == tuple(max(0, a - b) for a, b in zip(highest, limit, strict=True))


@given(spans, vectors, st.integers(1, 30), moments, st.integers(0, 9))
def test_the_earliest_start_is_the_first_at_which_it_fits(
    spans: list[Span], limit: Vector, length: int, after: dt.datetime, wanted: int
) -> None:
    sold = calendar.steps(spans)
    ask = (wanted, *(0,) * (SIZE - 1))
    turns = sorted({START, *(step.at for step in sold)})
    room = [
        calendar.CalendarStep(at, tuple(a - b for a, b in zip(limit, sold_at(spans, at), strict=True))) for at in turns
    ]
    fits = [
        moment
        for moment in hours(after, START + 70 * HOUR)
        if wanted == 0 or wanted <= limit[0] - most(spans, moment, moment + length * HOUR)[0]
    ]
    found = calendar.earliest(room, ask, length * HOUR, after)
    assert found == (fits[0] if fits else None)


@given(
    spans,
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "Asia/Kathmandu"]),
    st.integers(1, 5),
)
def test_days_are_those_of_the_time_zone(spans: list[Span], name: str, count: int) -> None:
    zone = ZoneInfo(name)
    first = START.astimezone(zone).date()
    rows = calendar.days(calendar.steps(spans), first, count, zone)
    assert [row.date for row in rows] == [first + n * calendar.DAY for n in range(count)]
    quarter = dt.timedelta(minutes=15)
    for row in rows:
        inside = [row.begins_at + n * quarter for n in range(int((row.ends_at - row.begins_at) / quarter))]
        assert {moment.astimezone(zone).date() for moment in inside} == {row.date}
        levels = [sold_at(spans, moment) for moment in inside]
        assert row.sold == tuple(max(level[i] for level in levels) for i in range(SIZE))


@given(moments, st.integers(0, 60 * 24 * 400), st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]))
def test_whole_days_left_end_with_the_period(begin: dt.datetime, minutes: int, name: str) -> None:
    zone, end = ZoneInfo(name), begin + minutes * dt.timedelta(minutes=1)
    moment = calendar.whole_days_left(begin, end, zone)
    assert begin <= moment <= end
    there, here = (m.astimezone(zone).replace(tzinfo=None) for m in (end, moment))
    assert moment == end or not (there - here) % calendar.DAY or _skipped(here, zone)
    assert moment - begin <= calendar.DAY + 2 * HOUR


def _skipped(moment: dt.datetime, zone: ZoneInfo) -> bool:
    """Return whether the zone's clock is changed within two hours of this local time."""
    before = (moment - 2 * HOUR).replace(tzinfo=zone).utcoffset()
    return before != (moment + 2 * HOUR).replace(tzinfo=zone).utcoffset()
