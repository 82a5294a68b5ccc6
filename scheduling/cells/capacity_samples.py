"""Takes samples of a cell for capacity planning. A sample has, per band, the amounts that are sold, requested, reserved
and used.

    rows of quota, jobs, tasks, machines ─┐
    Redis: usage of all tasks ────────────┴─► one sample ─► means of the hour in `CapacitySample`

A Celery task takes a sample every ten minutes. Each sample needs seven queries and one request to Redis.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import redis
import structlog
from numpy.typing import NDArray

from quota.admission.published_capacity import sold_at
from quota.vocabulary.resources import CPU, DISK, RAM, SIZE, ZERO, Vector, total
from scheduling.core.reclamation.stranded import stranded
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.journal.sql import execute, query
from scheduling.models import CapacitySample, Cell
from scheduling.usage import live_usage

log = structlog.get_logger(__name__)

EVERY_S = 600.0
# Samples closer together than this count once, because beat may run twice and Celery may deliver twice.
APART = dt.timedelta(seconds=EVERY_S / 2)
KEPT = dt.timedelta(days=400)
# An older sample of usage is not used, because its machine is silent.
FRESH_S = 60.0
# Largest value of a column. Quota that was granted without capacity may add up to more.
MOST = 2**63 - 1
MEASURED = (CPU, RAM, DISK)
VECTORS = ("capacity", "sold", "granted", "asked", "limit", "reserved", "used", "stranded")


@dataclass(slots=True, kw_only=True)
class Amounts:
    """The capacity, quota and usage of one band, or of the whole cell if `band` is empty. `stranded`: capacity that
    would stay free even if every machine were filled with typical tasks. `capacity` and `stranded` are set only for the
    whole cell.
    """

    band: str
    capacity: Vector = ZERO
    sold: Vector = ZERO
    granted: Vector = ZERO
    asked: Vector = ZERO
    limit: Vector = ZERO
    reserved: Vector = ZERO
    used: Vector = ZERO
    stranded: Vector = ZERO


def capacity_sample(cell: Cell, *, now: dt.datetime) -> bool:
    """Measure the cell's capacity, quota and usage, and add this sample to the mean values of its hour. Return False if
    the last sample is younger than `APART`, or if Redis is not reachable; then nothing is written.
    """
    try:
        used = _used(cell.id)
    except redis.RedisError as error:
        log.warning("the capacity was not sampled, because Redis is not reachable", cell=cell.name, error=str(error))
        return False
    return _store(cell.id, amounts(cell, used, now=now), now=now)


def samples_drop_old(*, now: dt.datetime) -> int:
    """Delete samples of the capacity of cells that are older than `KEPT`. Return the number of deleted rows."""
    return CapacitySample.objects.filter(hour__lt=now - KEPT).delete()[0]


def amounts(cell: Cell, used: Mapping[str, Vector], *, now: dt.datetime) -> list[Amounts]:
    """Return the capacity, sold quota, requests, reservations and usage of the whole cell, then those of each band that
    is sold or has jobs. `used`: usage by band.
    """
    by_band: dict[str, Amounts] = {}

    def at(band: str) -> Amounts:
        return by_band.setdefault(band, Amounts(band=band))

    for one in sold_at(now, cell=cell.name):
        at(one.band).sold, at(one.band).granted = one.sold, one.granted
    for band, asked in _vectors(_ASKED, [cell.id], 1):
        at(band).asked = asked
    for band, limit, reserved in _vectors(_RUNNING, [cell.id], 2):
        at(band).limit, at(band).reserved = limit, reserved
    for band, vector in used.items():
        at(band).used = vector
    bands = list(by_band.values())
    whole = Amounts(band="")
    for name in ("sold", "granted", "asked", "limit", "reserved", "used"):
        setattr(whole, name, total(getattr(one, name) for one in bands))
    capacity, free = _machines(cell.id)
    whole.capacity = _vector(capacity.sum(axis=0))
    whole.stranded = _vector(stranded(free, _typical(cell.id)))
    return [whole, *bands]


# --- amounts from rows


def _sums(column: str) -> str:
    return ", ".join(f"coalesce(sum({column}[{place}]), 0)" for place in range(1, SIZE + 1))


_ASKED = f"SELECT band, {_sums('requested')} FROM scheduling_job WHERE cell_id = %s AND state <> 'dead' GROUP BY band"
# Tasks inside an alloc use the reservation of the alloc.
_RUNNING = (
    f"SELECT j.band, {_sums('t.limit')}, {_sums('t.reservation')} FROM scheduling_task AS t"
    " JOIN scheduling_job AS j ON j.id = t.job_id"
    " WHERE t.cell_id = %s AND t.machine_id IS NOT NULL AND t.alloc_id IS NULL GROUP BY j.band"
)
_TYPICAL = (
    "SELECT "
    + ", ".join(f'percentile_disc(0.5) WITHIN GROUP (ORDER BY t."limit"[{place + 1}])' for place in MEASURED)
    + " FROM scheduling_task AS t WHERE t.cell_id = %s AND t.alloc_id IS NULL AND t.state <> 'dead'"
)
_FREE = (
    "SELECT "
    + ", ".join(f"m.capacity[{place + 1}]" for place in range(SIZE))
    + ", "
    + ", ".join(
        f"m.capacity[{place + 1}] - coalesce(m.kept[{place + 1}], 0) - coalesce(t.v{place}, 0)" for place in range(SIZE)
    )
    + " FROM scheduling_machine AS m LEFT JOIN (SELECT machine_id, "
    + ", ".join(f'sum("limit"[{place + 1}])::bigint AS v{place}' for place in range(SIZE))
    + " FROM scheduling_task WHERE cell_id = %(cell)s AND machine_id IS NOT NULL AND alloc_id IS NULL"
    " GROUP BY machine_id) AS t ON t.machine_id = m.id WHERE m.cell_id = %(cell)s AND m.state = 'up'"
)


def _vectors(statement: str, values: list[Any], number: int) -> Iterable[tuple[Any, ...]]:
    """Run an SQL statement. For each band, yield a tuple: the name of the band, then `number` resource vectors."""
    for band, *sums in query(statement, values):
        yield band, *(_vector(sums[SIZE * i : SIZE * (i + 1)]) for i in range(number))


def _typical(cell_id: int) -> NDArray[np.int64]:
    """Return the median of the tasks' limits for CPU, RAM and disk, and 0 for other resources."""
    typical = np.zeros(SIZE, dtype=np.int64)
    typical[list(MEASURED)] = [value or 0 for value in query(_TYPICAL, [cell_id])[0]]
    return typical


def _machines(cell_id: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return two arrays [M, R] of the machines that are up: their capacity, and their capacity minus the limits of
    their tasks.
    """
    table = np.array(query(_FREE, {"cell": cell_id}), dtype=np.int64).reshape(-1, 2 * SIZE)
    return table[:, :SIZE], table[:, SIZE:]


def _used(cell_id: int) -> dict[str, Vector]:
    """Return the usage of tasks by band. CPU includes throttled time, because it shows demand.

    Raises `redis.RedisError` if Redis cannot be read.
    """
    read = live_usage.read_cell(cell_id)
    rows = read.rows[(read.rows["task_id"] > 0) & (read.rows["at"] >= read.now - FRESH_S)]
    jobs = rows["task_id"] >> INDEX_BITS
    band_of = dict(query("SELECT id, band FROM scheduling_job WHERE cell_id = %s AND state <> 'dead'", [cell_id]))
    ids, place = np.unique(jobs, return_inverse=True)
    measured = {
        CPU: rows["cpu_milli"].astype(np.int64) + rows["throttled_milli"],
        RAM: rows["ram_bytes"],
        DISK: rows["disk_bytes"],
    }
    result: dict[str, list[int]] = {}
    for resource, values in measured.items():
        sums = np.zeros(len(ids), dtype=np.int64)
        np.add.at(sums, place, values)
        for job_id, value in zip(ids.tolist(), sums.tolist(), strict=True):
            if job_id in band_of:
                result.setdefault(band_of[job_id], [0] * SIZE)[resource] += value
    return {band: tuple(vector) for band, vector in result.items()}


def _vector(values: Iterable[object]) -> Vector:
    return tuple(int(value) for value in values)  # type: ignore[call-overload]


# --- stored samples


def _mean(column: str) -> str:
    return (
        f'"{column}" = ARRAY(SELECT round((o::numeric * s.samples + n) / (s.samples + 1))::bigint'
        f' FROM unnest(s."{column}", EXCLUDED."{column}") WITH ORDINALITY AS both_of(o, n, place) ORDER BY place)'
    )


_STORE = (
    "INSERT INTO scheduling_capacitysample AS s (cell_id, band, hour, samples, sampled_at, "
    + ", ".join(f'"{name}"' for name in VECTORS)
    + ") VALUES {rows} ON CONFLICT (cell_id, band, hour) DO UPDATE SET samples = s.samples + 1,"
    " sampled_at = EXCLUDED.sampled_at, "
    + ", ".join(_mean(name) for name in VECTORS)
    + " WHERE s.sampled_at <= EXCLUDED.sampled_at - %s"
)


def _store(cell_id: int, rows: Sequence[Amounts], *, now: dt.datetime) -> bool:
    hour = now.replace(minute=0, second=0, microsecond=0)
    values: list[Any] = []
    for one in rows:
        vectors = ([min(value, MOST) for value in getattr(one, name)] for name in VECTORS)
        values += [cell_id, one.band, hour, 1, now, *vectors]
    row = f"({', '.join(['%s'] * 5 + ['%s::bigint[]'] * len(VECTORS))})"
    return execute(_STORE.format(rows=", ".join([row] * len(rows))), [*values, APART]) > 0
