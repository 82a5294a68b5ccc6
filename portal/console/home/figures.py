"""Reads the figures of cells for the first page of the console. Each function makes one query for all cells, or one
request to Redis. No query reads the table of tasks, because a cell has 150,000 of them.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import redis
import structlog

from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import CPU, DISK, NAMES, RAM
from scheduling.cells.capacity_reports import Point, newest_by_band
from scheduling.core.vocabulary.states import JobState
from scheduling.journal.sql import query
from scheduling.machines.last_contact import Connections, connections_of
from scheduling.master import lease, pass_log, schedulers, standbys
from scheduling.master.pass_log import Summary
from scheduling.models import Cell
from scheduling.models.machines import REMOVED
from scheduling.usage.utilisation import UtilisationFigures, figures_of

log = structlog.get_logger(__name__)

RESOURCES = (CPU, RAM, DISK)
# A sample of the capacity is taken every ten minutes, and stored as the mean of its hour.
SAMPLE_KEPT = dt.timedelta(hours=2)
# So many of the newest passes of a scheduler are summarised.
PASSES = 100

_MACHINES = """
    SELECT cell_id, state, count(*) FROM scheduling_machine WHERE cell_id = ANY(%s) AND state <> %s GROUP BY 1, 2"""
_QUARANTINED = """
    SELECT cell_id, count(*) FROM scheduling_machine
    WHERE cell_id = ANY(%s) AND state <> %s AND quarantined <> '[]' GROUP BY 1"""
_JOBS = """
    SELECT cell_id, count(*), sum(tasks_pending)::bigint, sum(tasks_running)::bigint, sum(tasks_up)::bigint,
        count(*) FILTER (WHERE tasks_running > 0 AND tasks_up = 0),
        count(DISTINCT (tenant_id, labels->>'service')) FILTER (WHERE labels ? 'service' AND kind = 'job')
    FROM scheduling_job WHERE cell_id = ANY(%s) AND state <> %s GROUP BY 1"""
_OF_JOBS = ("jobs", "tasks_pending", "tasks_placed", "tasks_up", "jobs_not_serving", "services")


@dataclass(frozen=True, slots=True)
class Amounts:
    """The amounts of one resource. None: not known."""

    capacity: int = 0
    used: int | None = None
    reserved: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class SchedulerFigures:
    """A scheduler of a cell. `holder`: whether a process has its lease. `standbys`: how many processes could take over.
    `passes`: a summary of its newest passes; None if there are none. `last`: when the newest one began.
    """

    cell: str
    name: str
    runs: bool
    standbys: int
    passes: Summary | None
    last: dt.datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFigures:
    """The figures of some cells together.

    `counts`: numbers of machines, jobs and tasks, with the keys of `Counts`. `amounts`: the capacity and its use, by
    the position of the resource. `cells`: how many cells. `measured`: how many of them have published their use in the
    last minute; the amounts contain only these.
    """

    counts: Mapping[str, int]
    amounts: Mapping[int, Amounts]
    cells: int = 1
    measured: int = 0


@dataclass(slots=True)
class FleetFigures:
    """What was read of all cells. `redis_away`: whether Redis could not be reached; then `utilisation`, `connections`
    and the passes are missing.
    """

    cells: list[Cell]
    counts: dict[int, Counter[str]] = field(default_factory=dict)
    utilisation: dict[int, UtilisationFigures] = field(default_factory=dict)
    connections: dict[int, Connections] = field(default_factory=dict)
    schedulers: list[SchedulerFigures] = field(default_factory=list)
    bands: list[Point] = field(default_factory=list)
    redis_away: bool = False

    def of(self, cell: Cell) -> CellFigures:
        """Return the figures of one cell."""
        found = self.utilisation.get(cell.id)
        amounts = {one: Amounts() for one in RESOURCES} if found is None else _amounts(found)
        return CellFigures(counts=self.counts[cell.id], amounts=amounts, measured=int(found is not None))

    def of_all(self) -> CellFigures:
        """Return the sums over all cells."""
        counts: Counter[str] = Counter()
        for one in self.counts.values():
            counts.update(one)
        parts = [_amounts(one) for one in self.utilisation.values()]
        amounts = {place: _sum([part[place] for part in parts]) for place in RESOURCES}
        return CellFigures(counts=counts, amounts=amounts, cells=len(self.cells), measured=len(parts))


def read_figures(principal: Principal, cells: Sequence[Cell], *, now: dt.datetime) -> FleetFigures:
    """Return the figures of `cells`. Makes seven queries and four requests to Redis."""
    ids = [cell.id for cell in cells]
    found = FleetFigures(list(cells), {cell_id: Counter() for cell_id in ids})
    for cell_id, state, number in query(_MACHINES, [ids, REMOVED]):
        found.counts[cell_id][f"machines_{state}"] = number
    for cell_id, number in query(_QUARANTINED, [ids, REMOVED]):
        found.counts[cell_id]["quarantined"] = number
    for cell_id, *numbers in query(_JOBS, [ids, JobState.DEAD.value]):
        found.counts[cell_id].update(dict(zip(_OF_JOBS, numbers, strict=True)))
    found.bands = newest_by_band(principal, ids, since=now - SAMPLE_KEPT)
    wanted = [one for one in schedulers.wanted_of_all() if one[0] in found.counts]
    passes: dict[tuple[int, str], list[pass_log.Pass]] = {}
    try:
        found.utilisation = figures_of(ids)
        found.connections = connections_of(ids)
        passes = pass_log.recent_of_all([(cell_id, one.name) for cell_id, _, one in wanted], PASSES)
    except redis.RedisError as error:
        log.warning(
            "the overview of the console shows no measured figures, because Redis cannot be reached", error=str(error)
        )
        found.redis_away = True
    for cell_id, connected in found.connections.items():
        found.counts[cell_id]["connected"] = connected.machines
    held, waiting = lease.held(), standbys.present()
    for cell_id, name, one in wanted:
        key = (cell_id, one.name)
        kept = passes.get(key, [])
        last = dt.datetime.fromtimestamp(kept[0].at, dt.UTC) if kept else None
        found.schedulers.append(
            SchedulerFigures(name, one.name, key in held, len(waiting.get(key, [])), pass_log.summary(kept), last)
        )
    return found


def amounts_of_point(point: Point, capacity: Mapping[int, Amounts]) -> dict[int, Amounts]:
    """Return the amounts of a band, beside the capacity of the whole of the cells."""
    return {
        place: Amounts(capacity[place].capacity, point.used[place], point.reserved[place], point.limit[place])
        for place in RESOURCES
    }


def _amounts(found: UtilisationFigures) -> dict[int, Amounts]:
    return {
        place: Amounts(
            found.capacity.get(NAMES[place], 0),
            *(amounts.get(NAMES[place], 0) for amounts in (found.usage, found.reservation, found.limit)),
        )
        for place in RESOURCES
    }


def _sum(parts: Sequence[Amounts]) -> Amounts:
    if not parts:
        return Amounts()
    return Amounts(
        sum(one.capacity for one in parts),
        sum(one.used or 0 for one in parts),
        sum(one.reserved or 0 for one in parts),
        sum(one.limit or 0 for one in parts),
    )
