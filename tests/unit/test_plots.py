"""Tests of line and bar charts over time: positions in the frame, gaps for missing data, and heights."""

from __future__ import annotations

import datetime as dt
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.plot_period import DAYS, period_of
from portal.plots import HEIGHT, WIDTH, Plot, Series, bars, lines

BEGIN = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


def drawn(values, *, times=None, step=HOUR, **more) -> Plot:
    hours = times if times is not None else [BEGIN + number * HOUR for number in range(len(values))]
    until = BEGIN + max(24, len(values)) * HOUR
    return lines("t", hours, [Series("a", values)], since=BEGIN, until=until, step=step, format_value=str, **more)


def points(piece: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in piece.split())]


def test_a_value_is_as_wide_as_the_time_it_stands_for() -> None:
    (piece,) = drawn([10]).lines[0].pieces
    (x0, y0), (x1, y1) = points(piece)
    assert (x0, x1) == (0, WIDTH / 24)
    assert y0 == y1 == 0


def test_where_nothing_is_known_the_line_has_a_hole() -> None:
    assert len(drawn([1, None, 3]).lines[0].pieces) == 2
    apart = [BEGIN, BEGIN + HOUR, BEGIN + 5 * HOUR]
    assert len(drawn([1, 2, 3], times=apart).lines[0].pieces) == 2
    assert drawn([1, None, 3]).lines[0].last == "3"
    assert drawn([None, None]).empty
    assert drawn([]).empty
    assert drawn([]).lines[0].last == "–"


@given(st.lists(st.one_of(st.none(), st.integers(-(10**6), 2**63)), max_size=60))
def test_lines_stay_inside_their_frame(values) -> None:
    for piece in drawn(values).lines[0].pieces:
        for x, y in points(piece):
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT


@given(st.lists(st.tuples(st.integers(-5, 2**63), st.integers(0, 2**63)), min_size=1, max_size=40))
def test_bars_stand_on_each_other_and_reach_their_sum(pairs) -> None:
    times = [BEGIN + number * DAY for number in range(len(pairs))]
    plot = bars(
        "t",
        times,
        [Series("a", [a for a, _ in pairs]), Series("b", [b for _, b in pairs])],
        since=BEGIN,
        until=BEGIN + 40 * DAY,
        step=DAY,
        format_value=str,
        label=lambda at: f"{at:%F}",
    )
    for bar in plot.bars:
        assert -1 <= float(bar.y) <= HEIGHT
        assert float(bar.y) + float(bar.height) <= HEIGHT + 0.2
        assert float(bar.x) + float(bar.width) <= WIDTH + 0.2
        assert re.fullmatch(r"-?[0-9.]+", bar.y)
    assert len(plot.bars) == sum((a > 0) + (b > 0) for a, b in pairs)


def test_a_running_sum_shows_its_limit_even_far_above_it() -> None:
    day = {"since": BEGIN, "until": BEGIN + DAY, "step": DAY, "format_value": str, "headroom": True, "unknown": "0"}
    plot = lines("t", [BEGIN], [Series("spent", [10])], limit=1000, **day)
    assert plot.limit == "1000"
    assert 0 < float(plot.limit_y) < HEIGHT / 10
    none = lines("t", [], [Series("spent", [])], limit=None, **day)
    assert (none.limit_y, none.empty, none.lines[0].last) == ("", True, "0")


@pytest.mark.parametrize("days", DAYS)
def test_a_period_is_of_whole_steps_and_holds_now(days) -> None:
    now = dt.datetime(2026, 3, 10, 13, 37, 11, tzinfo=dt.UTC)
    period = period_of({"days": str(days)}, now)
    assert period.since + dt.timedelta(days=days) == period.until
    assert period.until - period.step <= now < period.until
    assert (period.since.minute, period.since.second) == (0, 0)
    assert period.hourly == (days <= 14)
    assert period_of({"days": "²"}, now) == period_of({}, now)
