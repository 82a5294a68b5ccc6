"""A simulated cell for the bench `moment`: its events are written to the journal of a real PostgreSQL, with
checkpoints."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from quota.vocabulary.permissions import system
from quota.vocabulary.resources import CPU, DISK, RAM, SIZE
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group, Requirement
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.saving import checkpoint_store
from scheduling.history.checkpoints.tables import tables_of
from scheduling.journal import copy_rows, journal
from scheduling.models import Cell
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.workload import Workload

GIB = 2**30
SETTINGS = Settings(pass_every_s=5.0, look_every_s=300.0)
PROD_SHARE, LARGE_SHARE = 0.03, 0.02
TENANTS = 20
# Seconds between two checks whether a checkpoint is due, as in production.
_LOOK_S = 300.0
_LINES = 50_000


def machines(number: int) -> list[events.MachineSet]:
    """Return `number` machines with 16 cores and 64 GiB of RAM, in racks of 40."""
    capacity = vector(16_000, 64 * GIB, 1024 * GIB)
    return [
        events.MachineSet(
            machine_id=one, hostname=f"m{one}", address="127.0.0.1", capacity=capacity, rack=f"r{one // 40}"
        )
        for one in range(1, number + 1)
    ]


def vector(cpu: int, ram: int, disk: int) -> tuple[int, ...]:
    result = [0] * SIZE
    result[CPU], result[RAM], result[DISK] = cpu, ram, disk
    return tuple(result)


class Jobs:
    """Jobs that arrive at random times after `begin` (seconds since the epoch).

    Three per cent have the priority of production, and two per cent request half a machine per task.
    """

    def __init__(self, *, begin: float, hours: int, per_hour: int, tasks: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        number = hours * per_hour
        self.times = begin + np.sort(rng.uniform(0.0, 3600.0 * hours, number))
        self._tasks = 1 + rng.poisson(tasks - 1, number)
        self._draws = rng.random((number, 2))
        self._cpu = rng.integers(2, 15, number) * 100

    def job(self, number: int) -> events.JobSubmitted:
        prod, large = self._draws[number, 0] < PROD_SHARE, self._draws[number, 1] < LARGE_SHARE
        limit = vector(8_000, 8 * GIB, GIB) if large else vector(int(self._cpu[number]), GIB, GIB)
        tenant = number % TENANTS
        return events.JobSubmitted(
            job_id=number + 1,
            uid=f"{number + 1:032x}",
            tenant_id=tenant + 1,
            tenant=f"t{tenant:02d}",
            name=f"job{number}",
            job_kind="job",
            priority=200 if prod else 100 + number % 16,
            latency_sensitive=bool(prod),
            spec_version=1,
            groups=(Group(Requirement(limit=limit), ((0, int(self._tasks[number]) - 1),)),),
        )


class Recorder:
    """The journal of a simulation: writes its events to PostgreSQL, and saves checkpoints as often as `settings`
    require."""

    def __init__(self, cell: Cell, *, begin: dt.datetime, settings: CellSettings) -> None:
        self.cell, self.begin, self.settings = cell, begin.timestamp(), settings
        self.written = self.checkpoints = self.revision = self.tasks = 0
        self._lines: list[str] = []
        self._entry: journal.JournalEntry | None = None
        self._saved = (self.begin, 0)

    def run(self, fleet: list[events.MachineSet], jobs: Jobs, *, until_events: int, seed: int) -> None:
        """Simulate until the journal has `until_events` events."""
        state = RecordedState()
        for number, machine in enumerate(fleet, start=1):
            state.apply(machine, revision=number, time=self.begin)
            self.append(number, self.begin, machine)
        simulation = Simulation(state, Workload(Drawn(seed=seed), jobs), SETTINGS, seed=seed, now=self.begin)
        simulation.cell.journal = self  # type: ignore[assignment]
        now = self.begin
        while self.written < until_events:
            now += _LOOK_S
            simulation.run(now)
            self._flush()
            self._checkpoint(simulation.state, now)
        self.tasks = int((simulation.state.tasks.state > 0).sum())

    @property
    def count(self) -> int:
        """Return the number of events. The simulation reads this attribute of its journal."""
        return self.written

    def append(self, revision: int, time: float, event: events.Event) -> None:
        if self._entry is None or self._entry.revision != revision:
            self._take_entry()
            at = dt.datetime.fromtimestamp(time, dt.UTC)
            self._entry = journal.JournalEntry(self.cell.pk, revision, at, system("simulator"))
        self._entry.append(event)
        self.written += 1
        self.revision = revision
        if len(self._lines) >= _LINES:
            self._flush()

    def _take_entry(self) -> None:
        if self._entry is not None:
            self._lines += self._entry._lines
            self._entry = None

    def _flush(self) -> None:
        self._take_entry()
        Cell.objects.filter(pk=self.cell.pk).update(revision=self.revision)
        journal.ensure_partitions()
        copy_rows.lines("scheduling_event", journal._COLUMNS, self._lines)
        self._lines = []

    def _checkpoint(self, state: Any, now: float) -> None:
        at, before = self._saved
        due_s = self.settings.checkpoint_interval_h * 3600
        if now - at < due_s and self.written - before < self.settings.checkpoint_events:
            return
        header = file.Header(
            cell=self.cell.name,
            revision=self.revision,
            taken_at=now,
            history=str(self.cell.history_id),
            events=self.written,
        )
        checkpoint_store(header, tables_of(state))
        self._saved = (now, self.written)
        self.checkpoints += 1
