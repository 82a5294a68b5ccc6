"""Bar charts of the quota that a cell can still sell on each day, compared with the requested amount, as SVG. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple

from portal.sigma.shop.period import QuotaPeriod
from portal.sigma.shop.resource_labels import LABELS
from quota.vocabulary.resources import NAMES, Vector

WIDTH, HEIGHT = 600, 96


class DayLeft(NamedTuple):
    """A day, with the lowest amount of each resource that is free at any time of this day."""

    day: dt.date
    left: Vector


@dataclass(frozen=True, slots=True)
class AvailabilityBar:
    """A bar of the chart. It covers consecutive days with the same free amount. `tone`: the colour of the bar. It is
    `fits` or `short` for days inside the requested period, and `beside` for days outside.
    """

    x: float
    y: float
    width: float
    height: float
    tone: str
    first: dt.date
    last: dt.date
    left: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A bar chart of the free amount of one resource on several days, compared with the requested amount. `asked_y`:
    the vertical position of the line for the requested amount.

    `least`: the lowest free amount in the requested period. `short_days`: the number of days of this period on which
    less than the requested amount is free. `short_from`: the first of these days.
    """

    name: str
    label: str
    bars: tuple[AvailabilityBar, ...]
    asked: int
    asked_y: float
    least: int
    short_from: dt.date | None
    short_days: int
    width: ClassVar[int] = WIDTH
    height: ClassVar[int] = HEIGHT


def chart(days: Sequence[DayLeft], resource: int, *, asked: int, period: QuotaPeriod) -> Chart:
    """Return a chart of the free amount of one resource on each day. `resource`: the index of the resource in `NAMES`.
    `asked`: the requested amount. `period`: the requested days. `days`: consecutive days, at least one.
    """
    left = [max(0, day.left[resource]) for day in days]
    # Leave space between the line of the requested amount and the frame.
    top = (max(asked, *left) or 1) * 21 // 20 + 1
    step = WIDTH / len(days)
    inside = [place for place, day in enumerate(days) if period.first <= day.day <= period.last]
    short = [place for place in inside if left[place] < asked]

    def amount_and_tone(place: int) -> tuple[int, str]:
        return left[place], "short" if place in short else "fits" if place in inside else "beside"

    bars = []
    for (amount, tone), run in groupby(range(len(days)), key=amount_and_tone):
        first, *others = run
        height = HEIGHT * amount / top
        bars.append(
            AvailabilityBar(
                x=round(first * step, 2),
                y=round(HEIGHT - height, 2),
                width=round((1 + len(others)) * step, 2),
                height=round(height, 2),
                tone=tone,
                first=days[first].day,
                last=days[first + len(others)].day,
                left=amount,
            )
        )
    return Chart(
        name=NAMES[resource],
        label=str(LABELS[NAMES[resource]]),
        bars=tuple(bars),
        asked=asked,
        asked_y=round(HEIGHT * (1 - asked / top), 2),
        least=min((left[place] for place in inside), default=0),
        short_from=days[short[0]].day if short else None,
        short_days=len(short),
    )
