"""The list of cures of a pending job, and its order. Pure."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CureKind(StrEnum):
    """What a cure changes."""

    REQUEST = "request"  # what a task requests: less of a resource, or fewer constraints
    CELL = "cell"  # the job is submitted in another cell
    BAND = "band"  # the job gets a priority of another band
    QUOTA = "quota"  # the job gets its earlier priority back, for which it needs more quota
    WAIT = "wait"  # nothing


@dataclass(frozen=True, slots=True)
class Cure:
    """A way in which a pending job would start.

    `change`: a sentence that says what changes. `places`: how many of the `tasks` tasks would be placed. `preempts`:
    how many tasks of other jobs they would preempt. `restarts`: how many running tasks of the job restart. `patch`: the
    JSON merge patch of the job file, if the job is updated.

    `verified`: whether a scheduler has tried it, at the revision `revision` of the cell `cell`. `price_difference`: by
    how much the list price of the job's quota for 30 days changes, in micro-credits; None if the caller may not see it.
    `order`: an order of quota that is necessary first, and `order_path` its page. `approver`: who has to approve it, or
    "" if nobody. `starts_at`: when the tasks are expected to start; None if this is not known. `start`: the same as a
    sentence.

    `commands`: the commands of borgctl, in order. `path`: the page of the portal with the filled form, or "".
    `subject`: what the cure changes. `size`: how much smaller the request is; 1 is a dropped constraint.
    """

    key: str
    kind: CureKind
    cell: str
    change: str
    tasks: int
    places: int = 0
    preempts: int = 0
    restarts: int = 0
    patch: Mapping[str, Any] | None = None
    verified: bool = False
    revision: int | None = None
    price_difference: int | None = None
    order: Mapping[str, Any] | None = None
    approver: str = ""
    starts_at: dt.datetime | None = None
    start: str = ""
    commands: tuple[str, ...] = ()
    path: str = ""
    order_path: str = ""
    subject: tuple[str, ...] = ()
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class Cures:
    """The cures of a job, the cheapest first. `notes`: sentences about what was not tried, and why."""

    cures: list[Cure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def ranked(cures: Iterable[Cure]) -> list[Cure]:
    """Return the cures by extra cost, then by expected start. A cure that saves money comes beside those that cost
    nothing, or else the largest cut of the request would be first. Among equal ones, cures that place more tasks come
    first, then those that need no preemption, then the smallest changes.
    """
    return sorted(cures, key=_rank)


def _rank(cure: Cure) -> tuple[Any, ...]:
    cost: float = math.inf if cure.price_difference is None else max(0, cure.price_difference)
    starts = cure.starts_at.timestamp() if cure.starts_at is not None else math.inf
    return cost, starts, -cure.places, cure.preempts, cure.size, cure.key


def without_dominated(cures: Iterable[Cure]) -> list[Cure]:
    """Return the cures without those that change the same fields as another one more, and place no more tasks, and
    without those that change further fields for nothing. Of equal ones, those that preempt fewer tasks stay.
    """
    kept: list[Cure] = []
    for cure in sorted(cures, key=lambda one: (len(one.subject), one.size, -one.places, one.key)):
        others = [one for one in kept if one.subject and set(one.subject) <= set(cure.subject)]
        if not any(one.places >= cure.places and one.preempts <= cure.preempts for one in others):
            kept.append(cure)
    return kept
