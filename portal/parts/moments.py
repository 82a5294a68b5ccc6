"""A moment of the past that a page shows. The user chooses it with a slider, with a field, or with links to earlier and
later moments.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from portal.parts.paging import Changes

# The steps that the links offer, if the period is longer.
STEPS = (
    ("1 s", dt.timedelta(seconds=1)),
    ("1 min", dt.timedelta(minutes=1)),
    ("1 h", dt.timedelta(hours=1)),
    ("1 d", dt.timedelta(days=1)),
)
# The most kinds of steps in each direction.
MOST_STEPS = 3


@dataclass(frozen=True, slots=True)
class MomentStep:
    """A link to an earlier or later moment. `changes`: the change of the URL parameter, or None if that moment is
    outside the period.
    """

    title: str
    changes: Changes | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment `at` that a page shows, in the period from `since` to `until`. All times are in the time zone of the
    user.

    `live`: whether the URL names no moment, so that the page shows the present. `problem`: why the moment in the URL
    could not be used. `back`, `forward`: links to earlier and later moments. The largest step is the first one of
    `back` and the last one of `forward`. `parameter`: the URL parameter that holds the moment.
    """

    since: dt.datetime
    until: dt.datetime
    at: dt.datetime
    live: bool
    back: tuple[MomentStep, ...]
    forward: tuple[MomentStep, ...]
    problem: str = ""
    parameter: str = "at"

    @property
    def first_s(self) -> int:
        """Return the start of the period as a Unix time in seconds."""
        return int(self.since.timestamp())

    @property
    def last_s(self) -> int:
        """Return the end of the period as a Unix time in seconds."""
        return int(self.until.timestamp())

    @property
    def at_s(self) -> int:
        """Return the moment as a Unix time in seconds."""
        return int(self.at.timestamp())

    @property
    def fields(self) -> dict[str, str]:
        """Return the values of the field in which the user enters a time: `at`, the earliest time (`min`) and the
        latest time (`max`).
        """
        form = "%Y-%m-%dT%H:%M:%S"
        return {"at": self.at.strftime(form), "min": self.since.strftime(form), "max": self.until.strftime(form)}

    @property
    def zone(self) -> str:
        """Return the name of the time zone, such as `CET`."""
        return self.at.tzname() or "UTC"

    @property
    def offset_s(self) -> int:
        """Return how many seconds the time zone is ahead of UTC at this moment."""
        return int((self.at.utcoffset() or dt.timedelta()).total_seconds())

    @property
    def present(self) -> Changes:
        """Return the change of the URL parameter that leads to the present."""
        return {self.parameter: None}


def moment_of(
    given: Mapping[str, str],
    *,
    since: dt.datetime,
    until: dt.datetime,
    zone: dt.tzinfo,
    events: Collection[dt.datetime] = (),
    parameter: str = "at",
) -> Moment:
    """Return the moment that a page shows. The URL parameter in `given` contains it as an ISO 8601 time, which is in
    the time zone `zone` unless it has an offset. Without this parameter, return the end of the period.

    If the time is outside the period, return the nearest end of the period. If the text is not a time, return the end
    of the period. In both cases, `problem` contains the explanation. `events`: the times of events, for links to the
    previous and the next event. Raises `ValueError` if the period is empty.
    """
    if since >= until:
        raise ValueError(
            f"the period must begin before it ends, but {since} is not before {until}; report this as a bug"
        )
    since, until = since.astimezone(zone), until.astimezone(zone)
    text = given.get(parameter, "").strip()
    at, problem = _chosen(text, since, until, zone)
    earlier = max((one for one in events if since <= one < at), default=None)
    later = min((one for one in events if at < one <= until), default=None)

    def step(title: str, target: dt.datetime | None) -> MomentStep:
        fits = target is not None and since <= target <= until
        return MomentStep(title, {parameter: target.astimezone(zone).isoformat()} if target and fits else None)

    sizes = [pair for pair in STEPS if pair[1] < until - since][-MOST_STEPS:]
    here = at.astimezone(dt.UTC)  # an hour is an hour, also when clocks change
    back = [step(f"− {title}", here - size) for title, size in reversed(sizes)]
    forward = [step(f"+ {title}", here + size) for title, size in sizes]
    if events:
        back.append(step("Previous event", earlier))
        forward.insert(0, step("Next event", later))
    return Moment(since, until, at, not text, tuple(back), tuple(forward), problem, parameter)


def _chosen(text: str, since: dt.datetime, until: dt.datetime, zone: dt.tzinfo) -> tuple[dt.datetime, str]:
    """Return the moment that the text asks for, and an explanation of the problem if the text is not a time in the
    period. Without a problem, the explanation is "".
    """
    if not text:
        return until, ""
    try:
        at = dt.datetime.fromisoformat(text)
        at = (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(zone)
    except (ValueError, OverflowError):
        return until, f"{text[:40]!r} is not a time. Write a time such as {until:%Y-%m-%dT%H:%M:%S}."
    if since <= at <= until:
        return at, ""
    nearest = since if at < since else until
    asked, shown = f"{at:%Y-%m-%d %H:%M:%S}", f"{nearest:%Y-%m-%d %H:%M:%S}"
    return nearest, f"There is no data for {asked}. The page shows {shown}, the nearest time with data."
