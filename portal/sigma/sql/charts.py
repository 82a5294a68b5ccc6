"""The chart of a query's result: lines over time, or bars per name. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from portal import plots
from portal.plots import Plot, Series

_MOST_BARS, _MOST_LINES = 40, 7
_SCALE = 1000  # plots are drawn with integers
_DAY = dt.timedelta(days=1)
Row = Sequence[Any]
Column = tuple[str, str]


@dataclass(frozen=True, slots=True)
class NamedBar:
    """A bar of a chart, with its name. `width`: 0 to 1000; the longest bar has 1000."""

    name: str
    value: str
    width: int


@dataclass(frozen=True, slots=True)
class Chart:
    """The chart of a query's result: a plot over time, or bars with names. `title`: the name of the column that it
    shows.
    """

    title: str
    plot: Plot | None = None
    bars: tuple[NamedBar, ...] = ()


def chart_of(columns: Sequence[Column], rows: Sequence[Row], wanted: Sequence[str] = ()) -> Chart | None:
    """Return the chart of a result, or None if the types of its columns do not suit a chart.

    `columns`: the name and DuckDB's type of each column. `wanted`: the names of the columns for x and y and,
    optionally, of the column that names the lines. Without `wanted`, the first column is x, and the second one is y.
    """
    places = {name: place for place, (name, _) in enumerate(columns)}
    chosen = [places[name] for name in wanted if name in places] if wanted else list(range(min(2, len(columns))))
    if len(chosen) < 2 or len(rows) < 2:
        return None
    x, y, *by = chosen
    if not is_number(columns[y][1]):
        return None
    if columns[x][1].startswith(("TIMESTAMP", "DATE")):
        return _lines(columns[y][0], rows, x, y, by[0] if by else None)
    return _bars(columns[y][0], rows, x, y, by[0] if by else None)


def _bars(title: str, rows: Sequence[Row], x: int, y: int, by: int | None) -> Chart | None:
    shown = [row for row in rows if isinstance(row[y], int | float)][:_MOST_BARS]
    most = max((row[y] for row in shown), default=0)
    if most <= 0:
        return None
    return Chart(
        title,
        bars=tuple(
            NamedBar(
                f"{row[x]} ({row[by]})" if by is not None else str(row[x]),
                format_number(row[y]),
                round(1000 * max(row[y], 0) / most),
            )
            for row in shown
        ),
    )


def _lines(title: str, rows: Sequence[Row], x: int, y: int, by: int | None) -> Chart | None:
    known = [row for row in rows if row[x] is not None]
    moments = {row[x]: dt.datetime.fromisoformat(str(row[x])) for row in known}
    times = sorted(set(moments.values()))
    if len(times) < 2:
        return None
    names: dict[str, dict[dt.datetime, int]] = {}
    for row in known:
        name = str(row[by]) if by is not None else title
        if isinstance(row[y], int | float):
            names.setdefault(name, {})[moments[row[x]]] = round(row[y] * _SCALE)
    series = [Series(name, [values.get(at) for at in times]) for name, values in sorted(names.items())[:_MOST_LINES]]
    step = min((after - before for before, after in pairwise(times)), default=_DAY)
    plot = plots.lines(title, times, series, since=times[0], until=times[-1] + step, step=step, format_value=_unscaled)
    return Chart(title, plot=plot)


def _unscaled(value: int) -> str:
    return format_number(value / _SCALE)


def is_number(kind: str) -> bool:
    """Return whether a type of DuckDB is a number."""
    return kind.endswith("INT") or kind in ("INTEGER", "UINTEGER") or kind.startswith(("DOUBLE", "FLOAT", "DECIMAL"))


def format_number(value: float) -> str:
    """Return a number as text, with a comma between thousands. A number with a fraction has four significant digits, or
    one digit after the point if it is 1,000 or more.
    """
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.1f}"
