"""The free quota of a cell per day as bars of an SVG, compared with the requested amount. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from portal.sigma.shop.period import QuotaPeriod
from quota.vocabulary.resources import Vector

WIDTH, HEIGHT = 600, 96


class DayLeft(NamedTuple):
    """The least free amounts at any time of a day."""

    day: dt.date
    left: Vector


@dataclass(frozen=True, slots=True)
class AvailabilityBar:
    """Consecutive days with the same free amount, as a rectangle. `tone`: `fits`, `short`, or `beside` the period."""

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
    """One resource over the days. `least`: least free amount in the period; `most`: the value at the upper edge."""

    resource: int
    bars: tuple[AvailabilityBar, ...]
    asked: int
    asked_y: float
    most: int
    least: int
    short_from: dt.date | None
    short_days: int


def chart(days: Sequence[DayLeft], resource: int, *, asked: int, period: QuotaPeriod) -> Chart:
    """Return the chart of a resource. `days`: at least one, in order, without gaps."""
    most = max(asked, *(max(0, day.left[resource]) for day in days)) or 1
    # Leave space between the line of the requested amount and the frame.
    top = most * 21 // 20 + 1
    step = WIDTH / len(days)
    bars = []
    inside = [day for day in days if period.first <= day.day <= period.last]
    short = [day for day in inside if day.left[resource] < asked]

    def kind(place: int) -> tuple[int, str]:
        day = days[place]
        left = max(0, day.left[resource])
        if not period.first <= day.day <= period.last:
            return left, "beside"
        return left, "short" if left < asked else "fits"

    for (left, tone), run in groupby(range(len(days)), key=kind):
        places = list(run)
        height = HEIGHT * left / top
        bars.append(
            AvailabilityBar(
                round(places[0] * step, 2),
                round(HEIGHT - height, 2),
                round(len(places) * step, 2),
                round(height, 2),
                tone,
                days[places[0]].day,
                days[places[-1]].day,
                left,
            )
        )
    return Chart(
        resource,
        tuple(bars),
        asked,
        round(HEIGHT * (1 - asked / top), 2),
        top,
        min((max(0, day.left[resource]) for day in inside), default=0),
        short[0].day if short else None,
        len(short),
    )
