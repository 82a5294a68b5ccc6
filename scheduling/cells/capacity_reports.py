"""Reads samples of a cell's capacity over time, for charts and CSV files. Vectors have one amount per resource of
`quota.vocabulary.resources.AXIS`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

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
    rows = query(statement, [cell.id, since, until, band, band])
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
