"""The reclamation cycle (§5.5). It reads usage, changes reservations, and evicts tasks from machines that lack RAM or
disk.

    Redis: usage of all tasks ─► samples ─► new reservations ─────► one chunk per turn ─► rows + journal
    CellState, UsageHistory ──────┘ └─────► machines short of RAM or disk ─► evictions

The cycle is part of the maintenance that the master does, and uses the master's state in memory. It works in turns.
Every 5 s, one turn processes the samples, which takes about 100 ms for 150,000 tasks. This turn and the following turns
each write one chunk of the changes, so that no pass waits for long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import redis
import structlog
from numpy.typing import NDArray

from quota.vocabulary.bands import Band
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import CPU, DISK, NAMES, RAM
from scheduling.brakes import stored_brakes
from scheduling.core.cell.machines import UP
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import TaskTable
from scheduling.core.reclamation.cycle import EVERY_S, ReservationChanges, changes_due, prod_by_priority, shortages
from scheduling.core.reclamation.pacing import ReservationPace
from scheduling.core.reclamation.usage_history import KINDS, Reservations, Samples, UsageHistory
from scheduling.core.vocabulary.reclamation_presets import PRESETS
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.master import metrics
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import transitions
from scheduling.tasks.reservations import reservations_set
from scheduling.usage import job_usage, live_usage, utilisation

log = structlog.get_logger(__name__)

# A sample older than this, or than three polls, is missing: its machine is silent.
FRESH_S = 30.0
_ME = "reclamation"


@dataclass(slots=True)
class Reclaimer:
    """Changes the reservations of a cell's tasks according to their usage. Each master has one `Reclaimer`. A new
    `Reclaimer` has no data about earlier usage, so it observes tasks for 300 s before it lowers their reservations.
    A standby only observes them, so after a takeover it continues without a pause.
    """

    cell_id: int
    cell: str = ""
    history: UsageHistory = field(default_factory=UsageHistory)
    pace: ReservationPace = field(default_factory=ReservationPace)
    _state: CellState | None = None
    _looked: float = -math.inf
    _due: list[ReservationChanges] = field(default_factory=list)
    _away: bool = False
    _prod: tuple[tuple[Band, ...], NDArray[np.bool_]] | None = None

    def turn(self, state: CellState, bands: tuple[Band, ...], settings: CellSettings, *, now: float) -> int:
        """Do a limited amount of work: process the usage samples if `EVERY_S` seconds have passed since the last time,
        and write one chunk of changes. Return the number of written changes.

        `now`: seconds of the monotonic clock. `state` must contain the changes that earlier calls wrote.
        """
        if now - self._looked >= EVERY_S:
            self._look(state, bands, settings, passed_s=min(now - self._looked, 3600.0))
            self._looked = now
        return self._write()

    def observe(self, state: CellState, settings: CellSettings, *, now: float) -> None:
        """Process the usage samples as `turn` does, but change nothing in the cell. A standby calls this."""
        if now - self._looked >= EVERY_S:
            passed_s = min(now - self._looked, 3600.0)
            _, found, _ = self._measure(state, settings, passed_s=passed_s)
            self.pace.rest(state.tasks, found, passed_s)
            self._looked = now

    # --- a look

    def _measure(
        self, state: CellState, settings: CellSettings, *, passed_s: float
    ) -> tuple[Samples, Reservations, float]:
        """Add the usage samples to the history. Return the samples, the new reservations, and Redis' time."""
        if state is not self._state:
            self.history.follow(state.tasks)
            self._state = state
        self._due = []
        samples, now = self._samples(settings)
        found = self.history.look(
            state.tasks, samples, PRESETS[settings.reclamation], passed_s=passed_s, fixed_jobs=self._fixed_jobs(state)
        )
        return samples, found, now

    def _look(self, state: CellState, bands: tuple[Band, ...], settings: CellSettings, *, passed_s: float) -> None:
        samples, found, now = self._measure(state, settings, passed_s=passed_s)
        due = self.pace.due(state.tasks, samples, found, passed_s=passed_s)
        self._due = changes_due(state, found, due)
        short = self._relieve(state, found, samples.demand, bands, settings.shortage_at)
        self._publish(state, found, samples.demand, settings, now, short)

    def _samples(self, settings: CellSettings) -> tuple[Samples, float]:
        """Return the recent usage samples, and the present time by Redis' clock. If Redis cannot be reached, return no
        samples; then reservations do not change.
        """
        try:
            read = live_usage.read_cell(self.cell_id)
        except redis.RedisError as error:
            if not self._away:
                log.warning("the usage is unknown, reservations stay unchanged", cell_id=self.cell_id, error=str(error))
            self._away = True
            return Samples.none(), 0.0
        self._away = False
        rows = read.rows
        oldest = read.now - max(FRESH_S, 3 * settings.poll_interval_s)
        fresh = np.flatnonzero((rows["at"] >= oldest) & (rows["task_id"] > 0))
        demand = np.empty((len(fresh), len(KINDS)), dtype=np.int64)
        demand[:, CPU] = rows["cpu_milli"][fresh]
        demand[:, CPU] += rows["throttled_milli"][fresh]
        demand[:, RAM], demand[:, DISK] = rows["ram_bytes"][fresh], rows["disk_bytes"][fresh]
        return Samples(rows["task_id"][fresh], rows["incarnation"][fresh], demand), read.now

    def _fixed_jobs(self, state: CellState) -> NDArray[np.bool_]:
        fixed = np.zeros(len(state.tasks.job_at), dtype=np.bool_)
        for job_id in jobs_without_reclamation(self.cell_id):
            job = state.tasks.jobs.get(job_id)
            if job is not None:
                fixed[job.slot] = True
        return fixed

    def _write(self) -> int:
        if not self._due:
            return 0
        changes = self._due.pop(0)
        with journal.write(self.cell_id, system(_ME)) as entry:
            written = reservations_set(entry, changes.task_id, changes.incarnation, changes.wanted)
        metrics.reservations.labels(self.cell, "raised").inc(changes.raised)
        metrics.reservations.labels(self.cell, "lowered").inc(max(0, written - changes.raised))
        return written

    # --- machines that run short

    def _relieve(
        self, state: CellState, found: Reservations, demand: NDArray[np.int64], bands: tuple[Band, ...], share: float
    ) -> int:
        """Evict tasks from machines that use more than `share` (0 to 1) of their RAM or disk. Return the number of
        these machines; 0 if `share` is 0.

        `demand`: the recent usage, with one row per measured task and one column per resource.
        """
        short, leaving = shortages(state, found, demand, self._prod_of(bands), share)
        leaving = leaving[: journal.CHUNK]
        if leaving:
            evicted = []
            with journal.write(self.cell_id, system(_ME)) as entry:
                passed = stored_brakes.stops_pass(entry, len(leaving), what="a shortage of machines")
                if passed:
                    evicted = transitions.tasks_evict(entry, leaving)
            if not passed:
                stored_brakes.stops_wanted(self.cell_id, len(leaving))
            metrics.shortage_evictions.labels(self.cell).inc(len(evicted))
        for shortage in short:
            if shortage.left_short:
                log.warning(
                    "a machine is short of RAM or disk, and no other task may be evicted",
                    cell_id=self.cell_id,
                    machine=state.machines.facts[shortage.machine].hostname,
                    resource=NAMES[shortage.resource],
                    short_bytes=shortage.left_short,
                )
        return len({shortage.machine for shortage in short})

    def _prod_of(self, bands: tuple[Band, ...]) -> NDArray[np.bool_]:
        if self._prod is None or self._prod[0] != bands:
            self._prod = (bands, prod_by_priority(bands))
        return self._prod[1]

    # --- for people

    def _publish(
        self,
        state: CellState,
        found: Reservations,
        demand: NDArray[np.int64],
        settings: CellSettings,
        now: float,
        short: int,
    ) -> None:
        if self._away:
            return
        measured = found.sample[found.sample >= 0]
        unknown = np.ones(len(demand), dtype=np.bool_)
        unknown[measured] = False
        machines = state.machines
        figures = utilisation.UtilisationFigures(
            at=now,
            setting=settings.reclamation,
            running=len(found.slots),
            measured=len(measured),
            short=short,
            capacity=_sums(machines.capacity[machines.status == UP]),
            limit=_sums(machines.limits),
            reservation=_sums(machines.reserved),
            usage=_sums(demand, but=demand[unknown]),
        )
        try:
            utilisation.publish(self.cell_id, figures)
            sums = _sums_of_jobs(state.tasks, found, demand)
            job_usage.publish(self.cell_id, job_usage.JobSums(now, sums))
        except redis.RedisError as error:
            log.warning(
                "the master cannot store the reserved and used resources of the cell in Redis",
                cell_id=self.cell_id,
                error=str(error),
            )


def jobs_without_reclamation(cell_id: int) -> list[int]:
    """Return the ids of live jobs whose spec turns reclamation off (§2.5). Makes one query."""
    rows = query(
        "SELECT j.id FROM scheduling_jobspec AS s JOIN scheduling_job AS j"
        " ON j.id = s.job_id AND j.spec_version = s.version"
        " WHERE (s.spec -> 'reclamation') = 'false'::jsonb AND j.cell_id = %s AND j.state <> 'dead'",
        [cell_id],
    )
    return [job_id for (job_id,) in rows]


def _sums(vectors: NDArray[np.int64], *, but: NDArray[np.int64] | None = None) -> dict[str, int]:
    """Return the sum of the rows in `vectors`, minus the sum of the rows in `but`, by name of the resource."""
    total = vectors.sum(axis=0)
    if but is not None:
        total = total - but.sum(axis=0)
    return {NAMES[kind]: int(total[kind]) for kind in KINDS}


def _sums_of_jobs(tasks: TaskTable, found: Reservations, demand: NDArray[np.int64]) -> NDArray[np.void]:
    """Return the sums of each job with running tasks, as rows of the dtype `job_usage.SUMS`.

    `found`: the running tasks. `demand` [S, K]: the usage samples to which `found.sample` refers.
    """
    measured = found.sample >= 0
    samples, of_task = found.sample[measured], tasks.job[found.slots]
    size, of_measured = len(tasks.job_at), of_task[measured]
    running = np.bincount(of_task, minlength=size)
    jobs = np.flatnonzero(running)
    limits = tasks.shapes.limit[tasks.shape[found.slots]]
    rows = np.zeros(len(jobs), dtype=job_usage.SUMS)
    rows["job_id"] = [getattr(tasks.job_at[slot], "id", 0) for slot in jobs.tolist()]
    rows["running"] = running[jobs]
    rows["measured"] = np.bincount(of_measured, minlength=size)[jobs]
    for kind in KINDS:
        # The weights are doubles, which are exact up to 2**53: for RAM, 8 PiB.
        rows["limit"][:, kind] = np.bincount(of_task, limits[:, kind], size)[jobs]
        rows["reservation"][:, kind] = np.bincount(of_task, tasks.reservation[found.slots, kind], size)[jobs]
        rows["usage"][:, kind] = np.bincount(of_measured, demand[samples, kind], size)[jobs]
    return rows
