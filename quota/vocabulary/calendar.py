"""Computes how much quota is sold and available over time. This module uses no database.

    spans ─► steps ─► peak, left, earliest, excesses, days

A *step function* is a tuple of `CalendarStep`s. From the time `at` of a step until the next step, the amounts in
`level` are sold. Before the first step, nothing is sold. All times have a time zone. A span does not include its end
`ends_at`; None means no end. Quantities are Python integers, which may exceed 64 bits.
"""

from __future__ import annotations

import datetime as dt
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import NamedTuple
from zoneinfo import ZoneInfo

from quota.vocabulary.resources import ZERO, Vector

DAY = dt.timedelta(days=1)


class Span(NamedTuple):
    """A time span in which `amounts` are sold.

    The span starts at `begins_at`, and does not include its end `ends_at` (None: no end).
    """

    begins_at: dt.datetime
    ends_at: dt.datetime | None
    amounts: Vector


class CalendarStep(NamedTuple):
    at: dt.datetime
    level: Vector


class Excess(NamedTuple):
    """A continuous period in which more is sold than may be sold.

    `short`: for each resource, the largest amount that is missing at any time of the period.
    """

    begins_at: dt.datetime
    ends_at: dt.datetime | None
    short: Vector

    def overlaps(self, begins_at: dt.datetime, ends_at: dt.datetime | None) -> bool:
        return (self.ends_at is None or begins_at < self.ends_at) and (ends_at is None or ends_at > self.begins_at)


class Day(NamedTuple):
    """A day in a time zone, which has 23 to 25 hours.

    `sold`: the largest amounts that are sold at any time of the day.
    """

    date: dt.date
    begins_at: dt.datetime
    ends_at: dt.datetime
    sold: Vector


def steps(spans: Iterable[Span]) -> tuple[CalendarStep, ...]:
    """Return the sum of the spans as a step function. Spans that end before they begin are ignored.

    Each resource is summed separately, which is fast because most spans have only a few resources.
    """
    changes: list[dict[dt.datetime, int]] = [defaultdict(int) for _ in ZERO]
    for begins_at, ends_at, amounts in spans:
        if ends_at is not None and ends_at <= begins_at:
            continue
        for change, amount in zip(changes, amounts, strict=True):
            if amount:
                change[begins_at] += amount
                if ends_at is not None:
                    change[ends_at] -= amount
    moments = sorted(set().union(*changes))
    columns = [
        accumulate(map(change.get, moments, repeat(0))) if change else repeat(0, len(moments)) for change in changes
    ]
    found: list[CalendarStep] = []
    before = ZERO
    for moment, level in zip(moments, zip(*columns, strict=True), strict=True):
        if level != before:
            found.append(CalendarStep(moment, level))
            before = level
    return tuple(found)


def peak(sold: Sequence[CalendarStep], begins_at: dt.datetime, ends_at: dt.datetime | None) -> Vector:
    """Return, per resource, the largest amount that is sold at any time of a period."""
    first = max(0, bisect_right(sold, begins_at, key=_at) - 1)
    last = len(sold) if ends_at is None else bisect_left(sold, ends_at, lo=first, key=_at)
    levels = [level for _, level in sold[first:last]]
    return tuple(map(max, zip(ZERO, *levels, strict=True)))


def from_(sold: Sequence[CalendarStep], after: dt.datetime) -> list[CalendarStep]:
    """Return the steps of `sold` after the time `after`, with an additional first step at `after` itself.

    The first step has the amounts that are sold at that time.
    """
    first = bisect_right(sold, after, key=_at)
    return [CalendarStep(after, sold[first - 1].level if first else ZERO), *sold[first:]]


def left(
    limit: Sequence[int], sold: Sequence[CalendarStep], begins_at: dt.datetime, ends_at: dt.datetime | None
) -> Vector:
    """Return, per resource, the smallest amount that is left of `limit` in a period.

    The amount of a resource is negative if more than its limit is sold.
    """
    return tuple(a - b for a, b in zip(limit, peak(sold, begins_at, ends_at), strict=True))


def earliest(
    free: Sequence[CalendarStep], amounts: Sequence[int], length: dt.timedelta, after: dt.datetime
) -> dt.datetime | None:
    """Return the first time, not before `after`, from which `amounts` are free for the whole time `length`. Return None
    if there is no such time.

    `free`: the free amounts over time, as steps. The first step must not be later than `after`.
    """
    candidate = after
    for _, end, level in _pieces(free, after):
        if end is not None and end <= candidate:
            continue
        if all(wanted == 0 or wanted <= has for wanted, has in zip(amounts, level, strict=True)):
            if end is None or candidate + length <= end:
                return candidate
        elif end is None:
            return None
        else:
            candidate = end
    return None


def excesses(limit: Sequence[int], sold: Sequence[CalendarStep], after: dt.datetime) -> list[Excess]:
    """Return the periods from `after` on in which more is sold than `limit`.

    Periods that follow each other without a gap are joined.
    """
    found: list[Excess] = []
    for begin, end, level in _pieces(sold, after):
        if end is not None and end <= after:
            continue
        short = tuple(max(0, has - most) for has, most in zip(level, limit, strict=True))
        if not any(short):
            continue
        begin = max(begin, after)
        if found and found[-1].ends_at == begin:
            found[-1] = Excess(found[-1].begins_at, end, tuple(map(max, found[-1].short, short)))
        else:
            found.append(Excess(begin, end, short))
    return found


def days(sold: Sequence[CalendarStep], first: dt.date, count: int, zone: ZoneInfo) -> list[Day]:
    """Return `count` days of the time zone `zone`, from the date `first` on. The running time is linear in `count` plus
    `len(sold)`.
    """
    midnights = [midnight(first + n * DAY, zone) for n in range(count + 1)]
    rows: list[Day] = []
    position = 0
    for number, (begin, end) in enumerate(pairwise(midnights)):
        while position + 1 < len(sold) and sold[position + 1].at <= begin:
            position += 1
        following = position
        while following < len(sold) and sold[following].at < end:
            following += 1
        rows.append(Day(first + number * DAY, begin, end, peak(sold[position:following], begin, end)))
    return rows


def midnight(date: dt.date, zone: ZoneInfo) -> dt.datetime:
    """Return the instant, in UTC, at which the day `date` starts in the time zone `zone`.

    If the clocks skip midnight on that day, the day starts at the next existing time.
    """
    return dt.datetime.combine(date, dt.time(), zone).astimezone(dt.UTC)


def following(begins_at: dt.datetime, ends_at: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """Return the end of the period that follows the given one and has the same length.

    If the given period consists of whole days of `zone`, the next one has the same number of days. Otherwise it has
    the same number of seconds.
    """
    begin, end = (moment.astimezone(zone).replace(tzinfo=None) for moment in (begins_at, ends_at))
    if (end - begin) % DAY:
        return ends_at + (ends_at - begins_at)
    return (end + (end - begin)).replace(tzinfo=zone).astimezone(dt.UTC)


def whole_days_left(now: dt.datetime, ends_at: dt.datetime, zone: ZoneInfo) -> dt.datetime:
    """Return the first time, not before `now`, from which a whole number of days is left until `ends_at`. `zone`: the
    time zone of these days.
    """
    end = ends_at.astimezone(zone).replace(tzinfo=None)
    count = max(0, (ends_at - now) // DAY + 2)
    while True:
        moment = (end - count * DAY).replace(tzinfo=zone).astimezone(dt.UTC) if count else ends_at
        if moment >= now or not count:
            return moment
        count -= 1


def _at(step: CalendarStep) -> dt.datetime:
    return step.at


def _pieces(
    function: Sequence[CalendarStep], after: dt.datetime
) -> Iterator[tuple[dt.datetime, dt.datetime | None, Vector]]:
    """Yield the start, end and level of each part of a step function from `after` on.

    The level is zero before the first step.
    """
    if not function or function[0].at > after:
        yield after, function[0].at if function else None, ZERO
    for here, there in pairwise(function):
        yield here.at, there.at, here.level
    if function:
        yield function[-1].at, None, function[-1].level
