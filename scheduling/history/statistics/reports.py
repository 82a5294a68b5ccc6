"""Reads the statistics of a cell for REST, pages and charts."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.statistics.tallies import HOUR_S, Figure, Tally, added, per_task_week, percentile
from scheduling.journal.sql import query
from scheduling.models import Cell

PARTS = ("queue", "install", "start", "total")
# The causes of Figure 3, and dedicated pools, which the paper does not have. The others stop a task too, but the cell
# does not count them as evictions.
EVICTION_CAUSES = ("preemption", "machine-failure", "machine-shutdown", "out-of-resources", "dedicated-pool", "other")
MOST_PACKAGES = 100
_Label = tuple[Figure, bool, str]


class EvictionRate(NamedTuple):
    """The evictions of one cause, as a number and per task-week. The rate is None if no task was running."""

    prod: bool
    cause: str
    evictions: int
    per_task_week: float | None


class Percentiles(NamedTuple):
    """The distribution of a time in seconds. `what`: a part of the start (`queue`, `install`, `start` or `total`), a
    package (`tenant/name`), or `first` or `again` for the delay of a placement. `number`: the number of values. The
    mean and the percentiles are None if there were no values.
    """

    prod: bool
    what: str
    number: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class PendingHours(NamedTuple):
    """The hours that tasks were pending for one reason, summed over all tasks."""

    prod: bool
    reason: str
    hours: float


@dataclass(slots=True)
class Statistics:
    """The statistics of a cell in one period, which begins at `begin`."""

    begin: dt.datetime
    _tallies: dict[_Label, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def task_weeks(self, *, prod: bool) -> float:
        """Return for how many weeks tasks were running, summed over all tasks."""
        return self._tallies[Figure.RUNNING, prod, ""].total / (7 * 24 * HOUR_S)

    def evictions(self) -> list[EvictionRate]:
        """Return the evictions by cause, prod first, with a row for each cause of Figure 3."""
        found = []
        for prod in (True, False):
            running_s = self._tallies[Figure.RUNNING, prod, ""].total
            causes = {label for figure, of, label in self._tallies if figure is Figure.EVICTIONS and of is prod}
            for cause in (*EVICTION_CAUSES, *sorted(causes - set(EVICTION_CAUSES))):
                number = self._tallies[Figure.EVICTIONS, prod, cause].number
                found.append(EvictionRate(prod, cause, number, per_task_week(number, running_s)))
        return found

    def eviction_rate(self, *, prod: bool) -> float | None:
        """Return the evictions per task-week of all causes in Figure 3."""
        number = sum(one.evictions for one in self.evictions() if one.prod is prod and one.cause in EVICTION_CAUSES)
        return per_task_week(number, self._tallies[Figure.RUNNING, prod, ""].total)

    def starts(self) -> list[Percentiles]:
        """Return the parts of the time from submission to running, prod first."""
        return [self._percentiles(Figure.START, prod, part) for prod in (True, False) for part in PARTS]

    def delays(self) -> list[Percentiles]:
        """Return the delay of the scheduler: how long tasks waited for their first and for a later placement."""
        return [self._percentiles(Figure.DELAY, p, label) for p in (True, False) for label in ("first", "again")]

    def packages(self, figure: Figure = Figure.PACKAGE_INSTALL) -> list[Percentiles]:
        """Return times per package, for the `MOST_PACKAGES` packages with most starts. `figure`: `PACKAGE_INSTALL` for
        the time until a task's packages were installed, or `PACKAGE_TOTAL` for the time from submission to running.
        """
        labels = {(of, label) for one, of, label in self._tallies if one is figure}
        rows = [self._percentiles(figure, prod, label) for prod, label in labels]
        return sorted(rows, key=lambda row: (-row.number, row.what, row.prod))[:MOST_PACKAGES]

    def pending(self) -> list[PendingHours]:
        """Return the pending hours by reason, the largest first."""
        rows = [
            PendingHours(prod, label, round(tally.total / HOUR_S, 3))
            for (figure, prod, label), tally in self._tallies.items()
            if figure is Figure.PENDING and tally.total
        ]
        return sorted(rows, key=lambda row: (-row.hours, row.reason, row.prod))

    def percentile(self, figure: Figure, label: str, share: float, *, prod: bool) -> float | None:
        """Return the percentile `share` (0 to 1) of a time, in seconds, or None if nothing was counted. `label`: one of
        the labels of `figure` (see `Figure`).
        """
        return percentile(self._tallies[figure, prod, label].buckets, share)

    def include_all(self, other: Statistics) -> None:
        """Add the tallies of another cell to these."""
        for label, tally in other._tallies.items():
            self.include(label, tally.number, tally.total, tally.buckets)

    def include(self, label: _Label, number: int, total: float, buckets: Sequence[int]) -> None:
        tally = self._tallies[label]
        tally.number += number
        tally.total += total
        if buckets:
            tally.buckets = added([tally.buckets, buckets])

    def _percentiles(self, figure: Figure, prod: bool, label: str) -> Percentiles:
        tally = self._tallies[figure, prod, label]
        mean = _short(tally.total / tally.number) if tally.number else None
        median, p90, p99 = [_short(percentile(tally.buckets, share)) for share in (0.5, 0.9, 0.99)]
        return Percentiles(prod, label, tally.number, mean, median, p90, p99)


def statistics(principal: Principal, cell: Cell, *, since: dt.datetime, until: dt.datetime) -> Statistics:
    """Return the statistics of the hours from `since` to `until`. Makes one query. Raises `Forbidden` unless the caller
    administers the cell.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    found = Statistics(since)
    for one in _read(cell, since, until, "null::timestamptz"):
        found.include(*one[1:])
    return found


def evictions_lately(
    principal: Principal, cell_ids: Sequence[int], starts: Sequence[dt.datetime]
) -> dict[int, list[Statistics]]:
    """Return the evictions and the running time of each cell since each of `starts`, by cell id. The statistics of a
    period contain no other figures. Makes one query, which reads the hours since the earliest start.

    Raises `Forbidden` unless the caller administers all cells.
    """
    require(principal, Action.CELL_ADMIN)
    sums = "".join(", sum(number) FILTER (WHERE hour >= %s), sum(total) FILTER (WHERE hour >= %s)" for _ in starts)
    rows = query(
        f"SELECT cell_id, figure, prod, label {sums} FROM scheduling_journaltally WHERE cell_id = ANY(%s)"
        " AND hour >= %s AND figure = ANY(%s) GROUP BY 1, 2, 3, 4",
        [
            *(start for start in starts for _ in range(2)),
            list(cell_ids),
            min(starts),
            [Figure.EVICTIONS.value, Figure.RUNNING.value],
        ],
    )
    found = {cell_id: [Statistics(start) for start in starts] for cell_id in cell_ids}
    for cell_id, figure, prod, label, *amounts in rows:
        for place, one in enumerate(found[cell_id]):
            number, total = amounts[2 * place : 2 * place + 2]
            one.include((Figure(figure), prod, label), int(number or 0), float(total or 0.0), ())
    return found


def statistics_over_time(
    principal: Principal, cell: Cell, *, since: dt.datetime, until: dt.datetime, daily: bool
) -> list[Statistics]:
    """Return the statistics of each hour or, with `daily`, each day (UTC) in which something was counted, oldest first.
    Makes one query. Raises `Forbidden` unless the caller administers the cell.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    found: dict[dt.datetime, Statistics] = {}
    moment = f"date_trunc('{'day' if daily else 'hour'}', hour, 'UTC')"
    for at, label, number, total, buckets in _read(cell, since, until, moment):
        found.setdefault(at, Statistics(at)).include(label, number, total, buckets)
    return [found[at] for at in sorted(found)]


def _read(
    cell: Cell, since: dt.datetime, until: dt.datetime, moment: str
) -> Iterable[tuple[dt.datetime, _Label, int, float, list[int]]]:
    rows = query(
        f"SELECT {moment}, figure, prod, label, number, total, buckets FROM scheduling_journaltally"
        " WHERE cell_id = %s AND hour >= %s AND hour < %s AND hour > to_timestamp(0)",
        [cell.id, since, until],
    )
    for at, figure, prod, label, number, total, buckets in rows:
        yield at, (Figure(figure), prod, label), number, total, buckets


def _short(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
