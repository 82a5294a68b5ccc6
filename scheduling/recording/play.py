"""Runs the simulation of a recorded cell, collects its data meanwhile, and writes the rows of the cell afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
from django.conf import settings as installation
from django.db import transaction

from quota.models import Tenant
from scheduling.core.cell.machines import STATUS_CODES
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.garbage import collection_paused
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.journal import copy_rows, partitions
from scheduling.journal.journal import PARTITION, write_lines
from scheduling.journal.sql import query
from scheduling.models import CapacitySample, Cell, Job, JobSpec, Machine, Task
from scheduling.policy import cell_settings
from scheduling.recording import moments
from scheduling.recording.jobs import RecordedJobs
from scheduling.recording.journal import RecordedJournal
from scheduling.recording.moments import HOUR_S, Usage
from scheduling.recording.tasks import COLUMNS, RecordedTasks
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.workload import MachineChange, Workload
from scheduling.tasks import pending_verdicts

# Reclamation looks rarely, because one look at a large cell takes as long as a hundred events.
_LOOK_EVERY_S = 300.0
_CHECKPOINT_EVERY_HOURS = 6
_JOBS_PER_REVISION = 500
_EXPLAINED_CLASSES = 200


@dataclass(eq=False)
class Play:
    """One simulation whose history becomes a recorded cell. `beginning`: the events with which its source begins.
    `source`: what happens later. `began`: the time of the beginning, in seconds since the epoch. `folder`: for
    temporary files. `lines`: the file that receives the lines of events.

    `state`, `tasks`, `capacity`: the state, the rows of tasks, and the samples of capacity so far. `checkpoints`: files
    in `folder`, by revision.
    """

    cell: Cell
    beginning: Sequence[events.Event]
    source: Workload
    tenants: Sequence[Tenant]
    began: float
    seed: int
    folder: Path
    lines: TextIO
    state: RecordedState = field(default_factory=RecordedState)
    tasks: RecordedTasks = field(default_factory=RecordedTasks)
    checkpoints: dict[int, Path] = field(default_factory=dict)
    capacity: list[CapacitySample] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = RecordedJournal(self.cell.id, self.tasks, self.lines, seed=self.seed)
        self.usage = Usage(self.cell.id)
        initial = [event for event in self.beginning if isinstance(event, events.JobSubmitted)]
        number = len(initial) + len(self.source.arrivals.times)
        self.jobs = RecordedJobs(self.cell, self.tenants, initial, self.source, new_ids(Job, number), self.began)

    def run(self, end: float) -> None:
        """Simulate until `end`, in seconds since the epoch."""
        with collection_paused():
            simulation = self._begin()
            usage_since = end - HOUR_S * installation.BORG_USAGE_KEEP_HOURS
            for number, hour in enumerate(np.arange(self.began, end, HOUR_S).tolist(), start=1):
                until = min(hour + HOUR_S, end)
                simulation.run(until)
                if until == end:
                    self._end_departures(simulation)
                self.journal.report_until(until)
                running = moments.running_tasks(self.state, self.jobs, until)
                self.capacity += moments.capacity_rows(self.cell, self.state, running, hour)
                if hour >= usage_since:
                    self.usage.hours.append((int(hour), running))
                if number % _CHECKPOINT_EVERY_HOURS == 0 or until == end:
                    self._save_checkpoint(until)
        self.simulation = simulation

    def write(self, check: Callable[[], None]) -> None:
        """Write all rows of the cell in one transaction. The partitions for its journal are made before, because this
        would lock the journal. `check`: a function that is called first in the transaction, and raises an error if the
        cell may not be created any more.
        """
        last = self.journal.revision
        self.cell.revision = last
        self.tasks.count_into(self.jobs.rows)
        with partitions.reserved(self.cell.id):
            for revision in range(0, last + PARTITION, PARTITION):
                query("SELECT scheduling_event_partition_make(%s, %s)", [self.cell.id, revision])
            self._write_rows(check)

    def _write_rows(self, check: Callable[[], None]) -> None:
        with transaction.atomic():
            check()
            copy_rows.rows(Cell, [self.cell])
            copy_rows.rows(Machine, list(self._machines()))
            copy_rows.rows(Job, list(self.jobs.rows.values()))
            copy_rows.rows(JobSpec, list(self.jobs.specs.values()))
            copy_rows.values(Task, COLUMNS, self.tasks.rows(self.cell.id))
            for block in self.journal.lines():
                write_lines(block)
            CapacitySample.objects.bulk_create(self.capacity)
            self._explain()

    def _begin(self) -> Simulation:
        """Record the events with which the source begins, and return the simulation that continues from there."""
        fleet = [event for event in self.beginning if isinstance(event, events.MachineSet)]
        changes = self.source.changes
        known = sorted({machine.machine_id for machine in fleet} | {change.machine_id for change in changes})
        own = dict(zip(known, new_ids(Machine, len(known)).tolist(), strict=True))
        first: list[tuple[int, events.Event]] = [(-1, events.CellSet(settings=_settings(self.cell)))]
        first += [(-2, machine) for machine in _with_ids(fleet, own)]
        first += [(-3 - number // _JOBS_PER_REVISION, job) for number, job in enumerate(self.jobs.begin())]
        for revision, event in first:
            self.journal.append(revision, self.began, event)
        self.state.apply_all((event, 0, self.began) for _, event in first)
        later = [
            MachineChange(
                change.at + self.began,
                own[change.machine_id],
                next(_with_ids([change.facts], own)) if change.facts else None,
            )
            for change in changes
        ]
        settings = Settings(cell=cell_settings.load(self.cell.settings), look_every_s=_LOOK_EVERY_S)
        workload = Workload(self.jobs, self.jobs, later)
        simulation = Simulation(self.state, workload, settings, seed=self.seed, now=self.began)
        simulation.cell.journal = self.journal
        return simulation

    def _end_departures(self, simulation: Simulation) -> None:
        """End the processes of all evicted tasks in the simulation, because no Borglet reports that they have ended."""
        simulation.cell.begin(simulation.now)
        for (task, incarnation), (machine, _) in sorted(self.state.departed.items()):
            job_id, index = split_task_id(task)
            simulation.cell.append(
                events.TaskGone(job_id=job_id, index=index, incarnation=incarnation, machine_id=machine)
            )
        simulation.cell.flush()

    def _save_checkpoint(self, at: float) -> None:
        revision = self.journal.revision
        self.checkpoints[revision] = moments.save_checkpoint(
            self.folder, self.cell, self.state, self.jobs.specs, revision=revision, at=at
        )

    def _machines(self) -> Iterator[Machine]:
        names = {code: name for name, code in STATUS_CODES.items()}
        for slot, facts in self.state.machines.facts.items():
            shown = msgspec.structs.asdict(facts)
            machine_id = shown.pop("machine_id")
            reason, since = self.journal.machines.get(machine_id, ("", self.began))
            yield Machine(
                id=machine_id,
                cell=self.cell,
                state_since=dt.datetime.fromtimestamp(since, dt.UTC),
                joined_at=self.cell.created_at,
                quarantined=msgspec.Raw(b"[]"),
                **shown | {"state": names[int(self.state.machines.status[slot])], "reason": reason},
            )

    def _explain(self) -> None:
        """Write to the database why tasks are pending at the end of the simulation."""
        simulation = self.simulation
        self.state.revision = self.journal.revision
        plan = schedule_pass(
            self.state,
            simulation.settings.policy(),
            now=simulation.now,
            rng=np.random.default_rng(self.seed),
            explainer=Explainer(ExplainBudget(classes=_EXPLAINED_CLASSES)),
        )
        pending_verdicts.store(self.cell.id, plan, most=len(self.jobs.rows))


def new_ids(model: type[Cell] | type[Machine] | type[Job], number: int) -> Ints:
    """Return new ids of a table, in ascending order."""
    rows = query(
        "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)", [model._meta.db_table, number]
    )
    return np.array([identity for (identity,) in rows], dtype=np.int64)


def _with_ids(fleet: Iterable[events.MachineSet], own: Mapping[int, int]) -> Iterator[events.MachineSet]:
    for machine in fleet:
        yield msgspec.structs.replace(machine, machine_id=own[machine.machine_id])


def _settings(cell: Cell) -> dict[str, object]:
    return dict(msgspec.to_builtins(cell_settings.load(cell.settings)))
