"""Timelines. A timeline has one or more tracks below each other. A track shows states, which have a start and an end,
and events, which happen at one moment.

Positions are percentages of the width, because an SVG image can use them without the size in pixels.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count

# Marks that are nearer to each other than this, in percent of the width, become one mark.
NEAREST = 3.0
# The narrowest span, in percent of the width, so that a short state is visible.
NARROWEST = 0.4
# The most titles in the name of a mark that stands for several events.
MOST_TITLES = 3
_WORST_FIRST = ("bad", "wait", "good", "plain")


@dataclass(frozen=True, slots=True)
class State:
    """A state on a track of a timeline, such as `running`. `end`: None if the state has not ended. `tone`: the colour:
    `good`, `wait`, `bad` or `plain`.
    """

    title: str
    begin: dt.datetime
    end: dt.datetime | None
    tone: str = "plain"
    link: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event on a track of a timeline. `tone`: the colour: `good`, `wait`, `bad` or `plain`."""

    title: str
    at: dt.datetime
    tone: str = "plain"
    link: str = ""


@dataclass(frozen=True, slots=True)
class Track:
    """A line of a timeline with the states and events of one thing, such as a task."""

    name: str
    states: Sequence[State] = ()
    marks: Sequence[Mark] = ()


@dataclass(frozen=True, slots=True)
class DrawnState:
    """A state in the image of a timeline. `x`, `width`: percentages, as text. `name`: the text for screen readers and
    tooltips.
    """

    title: str
    name: str
    tone: str
    x: str
    width: str
    link: str


@dataclass(frozen=True, slots=True)
class DrawnMark:
    """A mark in the image of a timeline, which stands for one event or for several that are close together. `number`:
    the number of events.
    """

    name: str
    tone: str
    x: str
    number: int
    link: str


@dataclass(frozen=True, slots=True)
class DrawnTrack:
    """A track in the image of a timeline, with the positions of its states and marks."""

    name: str
    states: tuple[DrawnState, ...]
    marks: tuple[DrawnMark, ...]


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """A row of the table below a timeline, for one state or event. `anchor`: the id of the HTML row. `until`: "" for an
    event.
    """

    anchor: str
    track: str
    title: str
    tone: str
    since: str
    until: str
    link: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The texts and positions of a timeline for `parts/timeline.html`.

    `ticks`: times at the left edge, in the middle and at the right edge. `cursor`: the position of the moment that the
    page shows, or "".
    """

    title: str
    tracks: tuple[DrawnTrack, ...]
    rows: tuple[TimelineRow, ...]
    ticks: tuple[str, str, str]
    cursor: str = ""

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to show in this period."""
        return not self.rows


def timeline(
    title: str,
    tracks: Iterable[Track],
    *,
    name: str,
    since: dt.datetime,
    until: dt.datetime,
    format_time: Callable[[dt.datetime], str],
    cursor: dt.datetime | None = None,
) -> Timeline:
    """Return a timeline of the period from `since` to `until`. States and events outside the period are left out.

    `name`: the prefix of the ids of HTML elements, unique on the page. `cursor`: the moment that the page shows.
    Without a link of its own, a state or an event links to its row in the table. Raises `ValueError` if the period is
    empty.
    """
    if since >= until:
        raise ValueError(
            f"a timeline needs a period that begins before it ends: {since} is not before {until}; report this as a bug"
        )
    numbers = count(1)
    drawn, rows = [], []
    for track in tracks:
        states = sorted(
            (one for one in track.states if one.begin < until and (one.end is None or one.end > since)),
            key=lambda one: one.begin,
        )
        marks = sorted((one for one in track.marks if since <= one.at <= until), key=lambda one: one.at)
        state_rows = [
            TimelineRow(
                f"{name}-{next(numbers)}",
                track.name,
                one.title,
                one.tone,
                format_time(one.begin),
                format_time(one.end) if one.end is not None else "now",
                one.link,
            )
            for one in states
        ]
        mark_rows = [
            TimelineRow(f"{name}-{next(numbers)}", track.name, one.title, one.tone, format_time(one.at), "", one.link)
            for one in marks
        ]
        rows += [*zip((one.begin for one in states), state_rows, strict=True)]
        rows += [*zip((one.at for one in marks), mark_rows, strict=True)]
        drawn.append(
            DrawnTrack(
                track.name,
                tuple(_state(*pair, since, until) for pair in zip(states, state_rows, strict=True)),
                tuple(_marks(list(zip(marks, mark_rows, strict=True)), since, until)),
            )
        )
    rows.sort(key=lambda pair: pair[0])
    return Timeline(
        title,
        tuple(drawn),
        tuple(row for _begin, row in rows),
        ticks(since, until),
        _percent(_place(cursor, since, until)) if cursor is not None else "",
    )


def ticks(since: dt.datetime, until: dt.datetime) -> tuple[str, str, str]:
    """Return the start, the middle and the end of a period as texts for the time axis. The longer the period, the
    coarser the texts.
    """
    length = until - since
    form = "%H:%M:%S" if length <= dt.timedelta(hours=1) else "%m-%d %H:%M"
    form = "%Y-%m-%d" if length > dt.timedelta(days=3) else form
    return since.strftime(form), (since + length / 2).strftime(form), until.strftime(form)


def _state(state: State, row: TimelineRow, since: dt.datetime, until: dt.datetime) -> DrawnState:
    x, end = _place(state.begin, since, until), _place(state.end or until, since, until)
    width = max(end - x, NARROWEST)
    name = f"{row.track}, {row.title}: {row.since} to {row.until}"
    return DrawnState(
        row.title, name, row.tone, _percent(min(x, 100 - width)), _percent(width), row.link or f"#{row.anchor}"
    )


def _marks(pairs: Sequence[tuple[Mark, TimelineRow]], since: dt.datetime, until: dt.datetime) -> Iterable[DrawnMark]:
    groups: list[list[tuple[Mark, TimelineRow]]] = []
    left = 0.0
    for mark, row in pairs:
        x = _place(mark.at, since, until)
        if groups and x - left < NEAREST:
            groups[-1].append((mark, row))
        else:
            groups.append([(mark, row)])
            left = x
    for group in groups:
        rows = [row for _mark, row in group]
        first, last = rows[0], rows[-1]
        tone = min((row.tone for row in rows), key=_WORST_FIRST.index)
        name = f"{first.track}, {first.title}: {first.since}"
        if len(rows) > 1:
            titles = ", ".join(row.title for row in rows[:MOST_TITLES]) + (" …" if len(rows) > MOST_TITLES else "")
            name = f"{first.track}, {len(rows)} events, {first.since} to {last.since}: {titles}"
        link = first.link if len(rows) == 1 else ""
        yield DrawnMark(
            name, tone, _percent(_place(group[0][0].at, since, until)), len(rows), link or f"#{first.anchor}"
        )


def _place(at: dt.datetime, since: dt.datetime, until: dt.datetime) -> float:
    """Return the horizontal position of the time `at` in a timeline, in percent of the width, between 0 and 100."""
    at, since, until = (one.astimezone(dt.UTC) for one in (at, since, until))  # local hours may be missing or double
    return 100 * min(max((at - since) / (until - since), 0.0), 1.0)


def _percent(value: float) -> str:
    return f"{value:.2f}%"
