"""The feed for Prometheus. Each process stores the targets from one request to the next.

Prometheus requests all targets every few seconds, and only a few jobs change in this time. So the targets of a job are
computed again only if the journal has a new event about the names of the job.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from typing import NamedTuple

from django.conf import settings

from naming.api import changes, feeds
from naming.api.feeds import FeedService
from naming.api.selectors import VisibleJobs, read_jobs
from naming.api.task_endpoints import endpoints_of, name_of, rows_of
from naming.api.task_loads import Busy, loads_of
from scheduling.models import Cell, Job

# One process keeps at most this many bytes of targets. A target has about 400.
MOST_BYTES = 48 * 2**20
_LEAST_BYTES = 500  # of a job, whatever number of targets it has
# The cache of a cell begins again after this many changed jobs.
MOST_CHANGED = 100_000
# The tasks whose rows are in memory at the same time.
TASKS_AT_ONCE = 20_000


class PrometheusTargets(NamedTuple):
    """The answer for Prometheus as JSON (`body`). `compared`: bytes that change when the answer changes, except if only
    loads change. The ETag is computed from these bytes.
    """

    body: bytes
    compared: bytes


class KeptTargets(NamedTuple):
    """The Prometheus targets of a job at a revision of its cell. `texts`: the JSON text of each target. `tasks`: the
    task of each target. `digest`: a hash of all texts.
    """

    revision: int
    texts: Sequence[bytes] = ()
    tasks: Sequence[Busy] = ()
    digest: bytes = b""


@dataclass(slots=True)
class _CellTargets:
    """The stored Prometheus targets of one cell, which are valid at `revision`. `jobs`: the targets by job id, then by
    port name.

    `changed`: by job id, the last revision at which the job changed. Targets of an older revision are not valid.
    """

    history: str
    revision: int
    jobs: dict[int, dict[str, KeptTargets]] = field(default_factory=dict)
    changed: dict[int, int] = field(default_factory=dict)


class TargetCache:
    """A cache of the Prometheus targets of jobs, in one process. Any thread may call its methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cells: dict[int, _CellTargets] = {}
        self._bytes = 0

    def answer(self, jobs: VisibleJobs, *, port: str = "") -> PrometheusTargets:
        """Return the Prometheus targets of these jobs. `port`: the name of the port to list for each task; empty: all
        ports.

        The function makes one database query per cell, three per 20,000 tasks of changed jobs, and one request to Redis
        per cell.
        """
        texts: list[bytes] = []
        loads: list[bytes] = []
        digests: list[bytes] = []
        for cell_id, ids in jobs.of_cells.items():
            found = self._targets(jobs.cells[cell_id], ids, port)
            texts += chain.from_iterable(one.texts for one in found)
            digests += [one.digest for one in found]
            loads += _load_labels(cell_id, [task for one in found for task in one.tasks])
        if any(loads):
            texts = list(map(bytes.__add__, texts, loads))
        return PrometheusTargets(feeds.target_list(texts), b"".join(digests))

    def _targets(self, cell: Cell, ids: Sequence[int], port: str) -> list[KeptTargets]:
        """Return the Prometheus targets of the jobs with these ids in a cell, in the order of `ids`. `port`: the name
        of the port to list for each task; empty: all ports.
        """
        with self._lock:
            kept = self._follow(cell)
            found = {job_id: kept.jobs[job_id][port] for job_id in ids if port in kept.jobs.get(job_id, ())}
        missing = [job_id for job_id in ids if job_id not in found]
        for batch in _batches(list(read_jobs({cell.id: cell}, missing).values())):
            fresh = _read_targets(cell, batch, port)
            found |= fresh
            with self._lock:
                self._keep(cell, kept, fresh, port)
        return [found[job_id] for job_id in ids if job_id in found]

    def _follow(self, cell: Cell) -> _CellTargets:
        """Delete the stored targets of jobs that have changed up to the revision of `cell`. Return the stored targets
        of the cell. The caller holds the lock.
        """
        kept = self._cells.get(cell.id)
        if kept is None or kept.history != str(cell.history_id) or len(kept.changed) > MOST_CHANGED:
            return self._begin(cell)
        if cell.revision > kept.revision:
            changed = changes.changed_jobs(cell.id, after=kept.revision, until=cell.revision)
            if changed is None:
                return self._begin(cell)
            for job_id in changed:
                kept.changed[job_id] = cell.revision
                self._bytes -= sum(_size(one) for one in kept.jobs.pop(job_id, {}).values())
            kept.revision = cell.revision
        return kept

    def _begin(self, cell: Cell) -> _CellTargets:
        if (former := self._cells.get(cell.id)) is not None:
            self._bytes -= sum(_size(one) for ports in former.jobs.values() for one in ports.values())
        self._cells[cell.id] = kept = _CellTargets(str(cell.history_id), cell.revision)
        return kept

    def _keep(self, cell: Cell, kept: _CellTargets, fresh: Mapping[int, KeptTargets], port: str) -> None:
        """Store the newly computed targets `fresh` in `kept`, the cache of the cell. Omit a job that has changed since
        its targets were read. The caller holds the lock.
        """
        if self._cells.get(cell.id) is not kept:
            return
        for job_id, one in fresh.items():
            ports = kept.jobs.setdefault(job_id, {})
            if port not in ports and one.revision >= kept.changed.get(job_id, 0):
                ports[port] = one
                self._bytes += _size(one)
        if self._bytes > MOST_BYTES:
            self._cells.clear()
            self._bytes = 0


def _size(kept: KeptTargets) -> int:
    """Return about how many bytes of memory these targets need. A job without targets also needs some memory."""
    return _LEAST_BYTES + sum(map(len, kept.texts))


def _batches(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield lists of the jobs. The jobs of one list have about `TASKS_AT_ONCE` placed tasks together."""
    batch: list[Job] = []
    tasks = 0
    for job in jobs:
        batch.append(job)
        tasks += job.tasks_running
        if tasks >= TASKS_AT_ONCE:
            yield batch
            batch, tasks = [], 0
    if batch:
        yield batch


def _read_targets(cell: Cell, jobs: Sequence[Job], port: str) -> dict[int, KeptTargets]:
    """Return the Prometheus targets of jobs, by job id. The caller must have read `cell` before, so that the targets
    are not older than the revision of the cell.
    """
    found = {job.id: KeptTargets(cell.revision) for job in jobs}
    # Targets are ports, so jobs that never had a port need no tasks.
    with_ports = {job.id: job for job in jobs if job.port_names or job.spec_version > 1}
    rows = rows_of(with_ports)
    endpoints = iter(endpoints_of(with_ports, rows, zone=settings.BORG_ZONE, with_loads=False))
    for job_id, group in groupby(rows, key=attrgetter("job_id")):
        job = with_ports[job_id]
        tasks = [Busy(row.task_id, row.incarnation, row.machine_id or 0, row.limit_mcpu or 0) for row in group]
        service = FeedService(name_of(job), job.labels, [next(endpoints) for _ in tasks])
        texts, positions = feeds.job_targets(service, port=port)
        digest = hashlib.sha256(b"\n".join(texts)).digest()
        found[job_id] = KeptTargets(cell.revision, texts, [tasks[position] for position in positions], digest)
    return found


def _load_labels(cell_id: int, tasks: Sequence[Busy]) -> list[bytes]:
    """Return, for each task, the label with its load, or an empty text if the load is unknown."""
    loads = loads_of(cell_id, tasks)
    if not loads:
        return [b""] * len(tasks)
    return [feeds.load_label(loads[task.task_id]) if task.task_id in loads else b"" for task in tasks]


cache = TargetCache()
