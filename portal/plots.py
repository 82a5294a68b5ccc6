"""Plots of values over time, as lines and bars of an SVG image. Pure.

Each value applies to a period. The value's part of the line is as wide as this period. A line has a gap where a value
is unknown.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 160
COLOURS = 7


@dataclass(frozen=True, slots=True)
class Series:
    """The values of one quantity over time, with a name. `values`: one value for each time of the plot, or None if a
    value is unknown. `limit`: whether the line is drawn like the line of a limit.
    """

    name: str
    values: Sequence[int | None]
    limit: bool = False


@dataclass(frozen=True, slots=True)
class PlottedLine:
    """A line of a plot.

    `pieces`: the parts of the line between gaps, each as the attribute `points` of an SVG `polyline`. `last`: the
    newest value as text. `limit`: whether the line is drawn like the line of a limit.
    """

    name: str
    colour: int
    pieces: tuple[str, ...]
    last: str
    limit: bool = False

    @property
    def style(self) -> str:
        """Return the CSS classes of the line."""
        return "plot-limit" if self.limit else f"plot-line plot-{self.colour}"


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A bar of a plot. `x`, `y`, `width`, `height`: numbers in units of the SVG image, as text."""

    colour: int
    x: str
    y: str
    width: str
    height: str
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """The texts and positions of a plot, for the template that draws it as SVG.

    `top`, `middle`: values at the upper edge and at half of the height, as text. `ticks`: times at the left edge, in
    the middle and at the right edge. `limit`: the value of the limit line, as text; `limit_y`: the vertical position
    of that line in the image. `rows`: the same values for a table: for each time its text, and a text for each of
    `lines`. `xs`: the horizontal position of each row in the image.
    """

    title: str
    lines: tuple[PlottedLine, ...]
    bars: tuple[ChartBar, ...]
    top: str
    ticks: tuple[str, str, str]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    limit_y: str = ""
    limit: str = ""
    width: int = WIDTH
    height: int = HEIGHT
    middle: str = ""
    xs: tuple[str, ...] = ()

    @property
    def placed_rows(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return the rows of the table with their horizontal positions: (position, time, values)."""
        return [(x, *row) for x, row in zip(self.xs, self.rows, strict=True)]

    @property
    def keys(self) -> list[PlottedLine]:
        """Return the lines that the legend lists with their name, colour and newest value."""
        return [line for line in self.lines if line.last]

    @property
    def empty(self) -> bool:
        """Return whether the plot has neither lines nor bars."""
        return not any(line.pieces for line in self.lines) and not self.bars


def lines(
    title: str,
    times: Sequence[dt.datetime],
    series: Sequence[Series],
    *,
    since: dt.datetime,
    until: dt.datetime,
    step: dt.timedelta,
    format_value: Callable[[int], str],
    limit: int | None = None,
    headroom: bool = False,
    unknown: str = "–",
) -> Plot:
    """Return a plot of step lines. Each value applies for the time `step`, or until the time of the next value if that
    is earlier.

    If `limit` is given, the upper edge is the limit, or a little above the largest value if that value is larger. With
    `headroom`, the upper edge is always above the limit. `unknown`: the text in the legend if no value is known.
    """
    most = max((value for one in series for value in one.values if value is not None), default=0)
    top = limit if limit and most <= limit and not headroom else _upper_edge(max(most, limit or 0))
    drawn = []
    for number, one in enumerate(series):
        known = [(at, value) for at, value in zip(times, one.values, strict=True) if value is not None]
        drawn.append(
            PlottedLine(
                one.name,
                number % COLOURS + 1,
                tuple(_pieces(known, since=since, until=until, step=step, top=top)),
                format_value(known[-1][1]) if known else unknown,
                one.limit,
            )
        )
    y, limit_text = ("", "") if not limit else (f"{max(1.0, HEIGHT * (1 - limit / top)):.1f}", format_value(limit))
    zone = since.tzinfo
    rows = _rows([f"{at.astimezone(zone):%Y-%m-%d %H:%M}" for at in times], series, format_value, unknown)
    return Plot(
        title,
        tuple(drawn),
        (),
        format_value(top),
        _ticks(since, until),
        rows,
        limit_y=y,
        limit=limit_text,
        middle=format_value(top // 2) if top > 1 else "",
        xs=_xs(times, since, until) if rows else (),
    )


def bars(
    title: str,
    times: Sequence[dt.datetime],
    series: Sequence[Series],
    *,
    since: dt.datetime,
    until: dt.datetime,
    step: dt.timedelta,
    format_value: Callable[[int], str],
    label: Callable[[dt.datetime], str],
) -> Plot:
    """Return a plot of stacked bars, one per time. Negative and unknown values count as 0."""
    sums = [sum(max(0, one.values[place] or 0) for one in series) for place in range(len(times))]
    top = _upper_edge(max(sums, default=0))
    found = []
    for place, at in enumerate(times):
        x = _x(at, since, until)
        width = max(1.0, (_x(at + step, since, until) - x) * 0.85)
        base = 0
        for number, one in enumerate(series):
            value = max(0, one.values[place] or 0)
            if value:
                height = max(0.5, HEIGHT * value / top)
                found.append(
                    ChartBar(
                        number % COLOURS + 1,
                        f"{x:.1f}",
                        f"{HEIGHT - HEIGHT * base / top - height:.1f}",
                        f"{width:.1f}",
                        f"{height:.1f}",
                        f"{label(at)}: {one.name} {format_value(value)}",
                    )
                )
                base += value
    keys = tuple(
        PlottedLine(one.name, number % COLOURS + 1, (), format_value(sum(value or 0 for value in one.values)))
        for number, one in enumerate(series)
    )
    rows = _rows([label(at) for at in times], series, format_value, "–")
    return Plot(
        title,
        keys,
        tuple(found),
        format_value(top),
        _ticks(since, until),
        rows,
        middle=format_value(top // 2) if top > 1 else "",
        xs=_xs(times, since, until) if rows else (),
    )


def _rows(
    times: Sequence[str], series: Sequence[Series], format_value: Callable[[int], str], unknown: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    columns = [[unknown if value is None else format_value(value) for value in one.values] for one in series]
    return tuple(zip(times, zip(*columns, strict=True), strict=True)) if columns else ()


def _pieces(
    known: Sequence[tuple[dt.datetime, int]], *, since: dt.datetime, until: dt.datetime, step: dt.timedelta, top: int
) -> list[str]:
    pieces: list[list[str]] = []
    before: dt.datetime | None = None
    for place, (at, value) in enumerate(known):
        if before is None or at - before > step * 1.5:
            pieces.append([])
        # Days of 23 and 25 hours cause no gap and no overlap.
        end = min([at + step, until, *(following for following, _ in known[place + 1 : place + 2])])
        y = f"{HEIGHT * (1 - max(0, value) / top):.1f}"
        pieces[-1] += [f"{_x(at, since, until):.1f},{y}", f"{_x(end, since, until):.1f},{y}"]
        before = at
    return [" ".join(piece) for piece in pieces]


def _xs(times: Sequence[dt.datetime], since: dt.datetime, until: dt.datetime) -> tuple[str, ...]:
    return tuple(f"{_x(at, since, until):.1f}" for at in times)


def _x(at: dt.datetime, since: dt.datetime, until: dt.datetime) -> float:
    share = (at - since) / (until - since)
    return WIDTH * min(max(share, 0.0), 1.0)


def _upper_edge(most: int) -> int:
    """Return the value at the upper edge of a plot. It is a little above the largest value `most`, and never zero."""
    return max(1, most + most // 20)


def _ticks(since: dt.datetime, until: dt.datetime) -> tuple[str, str, str]:
    form = "%m-%d %H:%M" if until - since <= dt.timedelta(days=3) else "%Y-%m-%d"
    middle = since + (until - since) / 2
    return since.strftime(form), middle.strftime(form), until.strftime(form)
