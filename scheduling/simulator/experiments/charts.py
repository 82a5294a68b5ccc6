"""SVG charts for the report: bars with error bars beside the paper's ranges, and lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from scheduling.simulator.experiments.experiment import LineChart, Row

WIDTH = 860
LABELS = 330
"""Width of the labels at the left of bars."""

_BAR, _GAP, _EDGE = 18, 14, 90
COLOURS = ("#1a73e8", "#d93025", "#188038", "#f29900")


def bar_chart(rows: Sequence[Row]) -> str:
    """Return one horizontal bar per row as SVG. A thin line shows the range of the trials, and a grey area the paper's
    range. All rows share one axis, so they need the same unit.
    """
    highest = max([0.0, *(max(row.value, row.high, row.paper_high or 0.0) for row in rows)])
    lowest = min([0.0, *(min(row.value, row.low) for row in rows)])
    span = (highest - lowest) or 1.0
    height = len(rows) * (_BAR + _GAP) + _GAP

    def x(value: float) -> float:
        return LABELS + (WIDTH - LABELS - _EDGE) * (value - lowest) / span

    parts = [_opening(WIDTH, height, "Bars: results of trials")]
    for number, row in enumerate(rows):
        y = _GAP + number * (_BAR + _GAP)
        middle = y + _BAR / 2
        if row.paper_low is not None and row.paper_high is not None:
            parts.append(_box(x(row.paper_low), y - 4, x(row.paper_high) - x(row.paper_low), _BAR + 8, "#dadce0"))
        left, right = sorted((x(0.0), x(row.value)))
        parts.append(_box(left, y, max(1.0, right - left), _BAR, COLOURS[0]))
        parts.append(_stroke(x(row.low), middle, x(row.high), middle, "#202124"))
        parts += [_stroke(x(end), middle - 5, x(end), middle + 5, "#202124") for end in (row.low, row.high)]
        parts.append(_text(LABELS - 8, middle + 4, row.label, anchor="end"))
        parts.append(_text(max(right, x(row.high), x(row.paper_high or 0.0)) + 6, middle + 4, format_value(row.value)))
    return "".join([*parts, "</svg>"])


def line_chart(chart: LineChart) -> str:
    """Return a chart with lines as SVG."""
    width, height, left, bottom, top = WIDTH, 300, 60, 40, 16
    points = [point for line in chart.lines.values() for point in line]
    if not points:
        return _opening(width, 20, chart.title) + _text(4, 14, "no points") + "</svg>"
    scale: Callable[[float], float] = math.log10 if chart.logarithmic else float
    first, last = (pick(scale(x) for x, _ in points) for pick in (min, max))
    most = max(y for _, y in points) or 1.0

    def x_of(value: float) -> float:
        return left + (width - left - 10) * (scale(value) - first) / ((last - first) or 1.0)

    def y_of(value: float) -> float:
        return height - bottom - (height - bottom - top) * value / most

    parts = [_opening(width, height + 22, chart.title)]
    for share in (0.0, 0.5, 1.0):
        y = y_of(most * share)
        parts += [_stroke(left, y, width - 10, y, "#dadce0"), _text(left - 6, y + 4, format_value(most * share), "end")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        at = first + (last - first) * share
        value = 10**at if chart.logarithmic else at
        parts.append(_text(x_of(value), height - bottom + 16, format_value(value), "middle"))
    parts.append(_text((left + width) / 2, height - 6, chart.x_label, "middle"))
    parts.append(_text(4, 12, chart.y_label))
    for number, (name, line) in enumerate(chart.lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        drawn = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at_x = left + number * (width - left) / len(chart.lines)
        parts += [_box(at_x, height + 6, 12, 12, colour), _text(at_x + 18, height + 16, name)]
    return "".join([*parts, "</svg>"])


def format_value(value: float) -> str:
    """Return a number with at most three significant digits, or as an integer if it is large."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _opening(width: int, height: int, label: str) -> str:
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" font-family="sans-serif" font-size="12">'
    )


def _box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'


def _stroke(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
