"""Reads samples of a cell's capacity over time, for charts and CSV files. Vectors have one amount per resource of
`quota.vocabulary.resources.AXIS`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import AXIS, NAMES, SIZE
from scheduling.cells.capacity_samples import VECTORS, Amounts
from scheduling.journal.sql import query
from scheduling.models import Cell


class ReportStep(StrEnum):
    """The time that each point of a report covers: an hour or a day."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> dt.timedelta:
        return dt.timedelta(hours=1) if self is ReportStep.HOUR else dt.timedelta(days=1)


@dataclass(slots=True, kw_only=True)
class Point(Amounts):
    """One point of a capacity report: the mean amounts of one hour or day (UTC)."""

    at: dt.datetime

    def value(self, what: str, resource: int) -> int:
        """Return the amount of one resource in this point. `resource`: index of the resource. `what`: which amount: the
        name of a vector, such as `limit` or `used`, or `unused` (limit − reserved) or `idle` (reserved − used).
        """
        if what == "unused":
            return max(0, self.limit[resource] - self.reserved[resource])
        if what == "idle":
            return max(0, self.reserved[resource] - self.used[resource])
        return int(getattr(self, what)[resource])


SERIES = ("capacity", "sold", "granted", "asked", "limit", "reserved", "used", "unused", "idle", "stranded")


def history(
    principal: Principal, cell: Cell, *, since: dt.datetime, until: dt.datetime, step: ReportStep, band: str | None = ""
) -> list[Point]:
    """Return the points of a cell, sorted by time (oldest first) and then by band. Makes one query.

    `band`: empty for the whole cell; None for the cell and all bands. Raises `Forbidden` unless the caller administers
    the cell.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    means = ", ".join(f'round(avg("{name}"[{place}]))::bigint' for name in VECTORS for place in range(1, SIZE + 1))
    statement = (
        f"SELECT date_trunc('{step.value}', hour, 'UTC') AS at, band, {means} FROM scheduling_capacitysample"
        " WHERE cell_id = %s AND hour >= %s AND hour < %s AND (%s::text IS NULL OR band = %s)"
        " GROUP BY at, band ORDER BY at, band"
    )
    return _points(query(statement, [cell.id, since, until, band, band]))


def cells_over_time(
    principal: Principal, cell_ids: Sequence[int], *, since: dt.datetime, until: dt.datetime
) -> list[Point]:
    """Return the sums over cells of each hour, oldest first. An hour in which a cell has no sample does not contain the
    amounts of this cell. Makes one query. Raises `Forbidden` unless the caller administers all cells.
    """
    require(principal, Action.CELL_ADMIN)
    statement = (
        f"SELECT hour, '', {_sums()} FROM scheduling_capacitysample WHERE cell_id = ANY(%s) AND hour >= %s"
        " AND hour < %s AND band = '' GROUP BY hour ORDER BY hour"
    )
    return _points(query(statement, [list(cell_ids), since, until]))


def newest_by_band(principal: Principal, cell_ids: Sequence[int], *, since: dt.datetime) -> list[Point]:
    """Return, per band, the sum over cells of the newest samples, if these are not older than `since`. The band "" is
    the whole of the cells. Makes one query. Raises `Forbidden` unless the caller administers all cells.
    """
    require(principal, Action.CELL_ADMIN)
    statement = (
        f"SELECT min(hour), band, {_sums()} FROM (SELECT DISTINCT ON (cell_id, band) * FROM scheduling_capacitysample"
        " WHERE cell_id = ANY(%s) AND hour >= %s ORDER BY cell_id, band, hour DESC) AS s GROUP BY band"
    )
    return _points(query(statement, [list(cell_ids), since]))


def _sums() -> str:
    return ", ".join(f'sum("{name}"[{place}])::bigint' for name in VECTORS for place in range(1, SIZE + 1))


def _points(rows: Sequence[Sequence[Any]]) -> list[Point]:
    return [
        Point(at=at, band=name, **{vector: tuple(sums[SIZE * i : SIZE * (i + 1)]) for i, vector in enumerate(VECTORS)})
        for at, name, *sums in rows
    ]


def bands_sampled(cell: Cell) -> list[str]:
    """Return the names of the bands in the cell's samples."""
    rows = query(
        "SELECT DISTINCT band FROM scheduling_capacitysample WHERE cell_id = %s AND band <> '' ORDER BY band", [cell.id]
    )
    return [band for (band,) in rows]


def table(points: Sequence[Point], *, cell: str) -> Iterator[list[str | int]]:
    """Yield the rows of a CSV file: the header, then one row per time, band and resource. Each row names its unit."""
    yield ["time", "cell", "band", "resource", "unit", *SERIES]
    for point in points:
        for place, resource in enumerate(AXIS):
            yield [
                point.at.astimezone(dt.UTC).isoformat(),
                cell,
                point.band,
                NAMES[place],
                resource.unit,
                *(point.value(name, place) for name in SERIES),
            ]
