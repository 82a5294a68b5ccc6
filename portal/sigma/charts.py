"""Small charts of what a task used, as the points of lines in an SVG. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _

from quota.resources import NAMES, describe
from scheduling.models import InstanceUsage

WIDTH, HEIGHT = 600, 120
# Windows further apart than this many of their own length have something missing between them.
GAP = 1.5


@dataclass(frozen=True, slots=True)
class Line:
    """`pieces`: points of unbroken stretches, as SVG's `polyline` takes them."""

    name: str
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`most`: the value at its upper edge, in the unit of the values; `limit_y`: where the limit lies, None above."""

    lines: tuple[Line, ...]
    most: float
    limit_y: float | None


def usage_charts(
    windows: Sequence[InstanceUsage], *, since: dt.datetime, until: dt.datetime
) -> list[dict[str, object]]:
    """CPU and memory of a task, for `sigma/parts/usage.html`; none without a window."""
    if not windows:
        return []
    last = windows[-1]
    drawn = [
        (
            _("CPU"),
            "cpu",
            1000,
            [
                (_("mean"), [window.average_usage_cpus for window in windows]),
                (_("90 % below"), [window.cpu_usage_distribution[9] for window in windows]),
            ],
            last.assigned_cpus,
        ),
        (
            _("Memory"),
            "ram",
            1,
            [
                (_("mean"), [float(window.average_usage_memory) for window in windows]),
                (_("most"), [float(window.maximum_usage_memory) for window in windows]),
                (_("page cache"), [float(window.page_cache_memory) for window in windows]),
            ],
            float(last.assigned_memory),
        ),
    ]
    result: list[dict[str, object]] = []
    for title, resource, scale, values, limit in drawn:
        made = chart(windows, values, limit=limit, since=since, until=until)
        shown = {
            name: describe(NAMES.index(resource), int(scale * value))
            for name, value in (("most", made.most), ("limit", limit), ("now", values[0][1][-1]))
        }
        result.append({"title": title, "chart": made, "width": WIDTH, "height": HEIGHT, **shown})
    return result


def chart(
    windows: Sequence[InstanceUsage],
    values: Sequence[tuple[str, Sequence[float]]],
    *,
    limit: float,
    since: dt.datetime,
    until: dt.datetime,
) -> Chart:
    """Lines of `values`, each as long as `windows`, over the time from `since` to `until`."""
    most = max([value for _, line in values for value in line], default=0.0)
    if 0 < limit <= 3 * most:
        most = max(most, limit)
    most = most * 1.05 or 1.0
    span_s = (until - since).total_seconds()
    lines = []
    for name, line in values:
        pieces: list[list[str]] = []
        before: InstanceUsage | None = None
        for window, value in zip(windows, line, strict=True):
            if before is None or window.start_time - before.end_time > GAP * (
                before.end_time - before.start_time
            ):
                pieces.append([])
            x = WIDTH * (window.end_time - since).total_seconds() / span_s
            pieces[-1].append(f"{x:.1f},{HEIGHT * (1 - value / most):.1f}")
            before = window
        lines.append(Line(name, tuple(" ".join(piece) for piece in pieces)))
    limit_y = round(HEIGHT * (1 - limit / most), 1) if 0 < limit <= most else None
    return Chart(tuple(lines), most, limit_y)
