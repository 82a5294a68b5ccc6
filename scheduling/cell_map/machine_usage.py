"""The usage of machines for the map of a cell, from the newest samples in Redis."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

import numpy as np
import redis
import structlog
from numpy.typing import NDArray

from scheduling.cell_map.scopes import MapScope
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Job
from scheduling.usage import live_usage

log = structlog.get_logger(__name__)

# An older sample is not shown.
FRESH_S = 60.0
# Borglets report every few seconds. The samples of a cell are read again after this time.
KEEP_S = 5.0
# The samples of a cell of 10,000 machines take 8 MB.
MOST_CELLS = 4


class MachineUsage(NamedTuple):
    """`machine_ids`: int64[N]. `cpu`: int64[N], in millicores. `ram`: int64[N], in bytes."""

    machine_ids: NDArray[np.int64]
    cpu: NDArray[np.int64]
    ram: NDArray[np.int64]


class _Kept(NamedTuple):
    until: float
    machines: NDArray[np.int64]
    rows: NDArray[np.void]


_kept: dict[int, _Kept] = {}
_lock = threading.Lock()


def usage_of(cell_id: int, scope: MapScope) -> MachineUsage:
    """Return the usage of each machine, as far as the scope allows: of the whole machine, or of the tasks of the
    scope's tenants. Machines without a recent sample are left out. Makes at most one query and one request to Redis.
    """
    machines, rows = _samples(cell_id)
    if scope.whole_usage:
        chosen = rows["task_id"] < 0
    else:
        jobs = Job.objects.filter(cell_id=cell_id).exclude(state=JobState.DEAD.value)
        if scope.tenants is not None:
            jobs = jobs.filter(tenant_id__in=scope.tenants)
        of_jobs = list(jobs.order_by().values_list("id", flat=True))
        chosen = (rows["task_id"] > 0) & np.isin(rows["task_id"] >> INDEX_BITS, of_jobs)
    ids, places = np.unique(machines[chosen], return_inverse=True)
    cpu, ram = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    np.add.at(cpu, places, rows["cpu_milli"][chosen])
    np.add.at(ram, places, rows["ram_bytes"][chosen])
    return MachineUsage(ids, cpu, ram)


def _samples(cell_id: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """Return the recent samples of a cell, and the machine of each. Reads Redis at most every `KEEP_S` seconds, in one
    thread at a time.
    """
    with _lock:
        now = time.monotonic()
        kept = _kept.get(cell_id)
        if kept is None or now >= kept.until:
            machines, rows = _read_samples(cell_id)
            while len(_kept) >= MOST_CELLS:
                del _kept[next(iter(_kept))]
            kept = _kept[cell_id] = _Kept(now + KEEP_S, machines, rows)
        return kept.machines, kept.rows


def _read_samples(cell_id: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    try:
        at, rows = live_usage.read_cell(cell_id)
    except redis.RedisError as error:
        log.warning("the map of a cell shows no usage, because Redis is not reachable", error=str(error))
        return np.zeros(0, np.int64), np.zeros(0, live_usage.SAMPLE)
    # The sample of a machine comes before those of its tasks.
    firsts = np.flatnonzero(rows["task_id"] < 0)
    sizes = np.diff(np.append(firsts, len(rows)))
    begin = int(firsts[0]) if len(firsts) else len(rows)
    machines, rows = np.repeat(-rows["task_id"][firsts], sizes), rows[begin:]
    recent = rows["at"] >= at - FRESH_S
    return machines[recent], rows[recent]
