"""Data of a recorded cell at certain moments of its simulation: checkpoints, capacity, and usage of tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from borglet.messages import TaskKey, UsageWindow
from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.resources import CPU, DISK, RAM, SIZE, ZERO
from scheduling.cells.capacity_samples import VECTORS
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.history.checkpoints import file
from scheduling.history.checkpoints.file import Header
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.history.checkpoints.tables import tables_of
from scheduling.models import CapacitySample, Cell, JobSpec
from scheduling.simulator.workload import Behaviour
from scheduling.usage.usage_windows import TaskWindow

HOUR_S = 3600
# Measurements of a Borglet per window.
_SAMPLES_PER_S = 1 / 10
_QUANTILES, _TAIL = 11, 9


@dataclass(frozen=True, slots=True)
class RunningTasks:
    """The running tasks of a cell at one moment, N of them: their ids, incarnations, machines, priorities, limits and
    reservations (both [N, R]), and demand [N, 3] of CPU, RAM and disk.
    """

    id: Ints
    incarnation: Ints
    machine_id: Ints
    priority: Ints
    limit: Ints
    reservation: Ints
    demand: Ints


def running_tasks(state: CellState, behaviour: Behaviour, now: float) -> RunningTasks:
    """Return the running tasks of a state, and what they use at the time `now`."""
    tasks = state.tasks
    slots = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0))
    limit, priority = tasks.shapes.limit[tasks.shape[slots]], tasks.job_priority[tasks.job[slots]].astype(np.int64)
    return RunningTasks(
        tasks.id[slots].copy(),
        tasks.incarnation[slots].astype(np.int64),
        state.machines.id[tasks.machine[slots]],
        priority,
        limit,
        tasks.reservation[slots].copy(),
        behaviour.demand(tasks.id[slots], limit, priority, now),
    )


@dataclass(slots=True)
class Usage:
    """The usage of running tasks, hour by hour. `hours`: for each hour, its start in seconds since the epoch, and the
    running tasks at its end.
    """

    cell_id: int
    hours: list[tuple[int, RunningTasks]] = field(default_factory=list)

    def windows(self) -> Iterator[list[TaskWindow]]:
        """Yield the usage windows of the tasks, one list per hour, in the form in which Borglets report them. A window
        is a whole hour here, and usage is constant within it.
        """
        for start, tasks in self.hours:
            columns = (tasks.id, tasks.incarnation, tasks.machine_id, tasks.limit[:, [CPU, RAM]], tasks.demand)
            found = []
            for identity, incarnation, machine, (cpu_limit, ram_limit), (cpu, ram, disk) in zip(
                *(column.tolist() for column in columns), strict=True
            ):
                window = UsageWindow(
                    key=TaskKey("", 0, incarnation),  # `TaskWindow` names the task
                    start=start,
                    span_s=HOUR_S,
                    samples=int(_SAMPLES_PER_S * HOUR_S),
                    cpu_milli=cpu,
                    most_cpu_milli=cpu,
                    random_cpu_milli=cpu,
                    cpu_distribution=[cpu] * _QUANTILES,
                    cpu_tail=[cpu] * _TAIL,
                    ram_bytes=ram,
                    most_ram_bytes=ram,
                    limit_cpu_milli=cpu_limit,
                    limit_ram_bytes=ram_limit,
                    disk_bytes=disk,
                )
                found.append(TaskWindow(self.cell_id, machine, identity, window))
            yield found


def capacity_rows(cell: Cell, state: CellState, tasks: RunningTasks, at: float) -> list[CapacitySample]:
    """Return the samples of capacity for the hour that begins at `at`, in seconds since the epoch: one of the whole
    cell, and one of each band with running tasks. Amounts of quota are 0, because the quota of a recorded cell is not
    sold.
    """
    capacity = state.machines.capacity[state.machines.up].sum(axis=0)[:SIZE]
    used = np.zeros((len(tasks.id), SIZE), dtype=np.int64)
    used[:, [CPU, RAM, DISK]] = tasks.demand
    hour = dt.datetime.fromtimestamp(at, dt.UTC)
    rows = []
    for name, low, high in (("", 0, 10**9), *((band.name, band.low, band.high) for band in DEFAULT_BANDS)):
        own = (tasks.priority >= low) & (tasks.priority <= high)
        if name and not own.any():
            continue
        amounts = {name: list(ZERO) for name in VECTORS}
        amounts["limit"] = amounts["asked"] = tasks.limit[own, :SIZE].sum(axis=0).tolist()
        amounts["reserved"] = tasks.reservation[own, :SIZE].sum(axis=0).tolist()
        amounts["used"] = used[own].sum(axis=0).tolist()
        if not name:
            amounts["capacity"] = capacity.tolist()
        rows.append(CapacitySample(cell=cell, band=name, hour=hour, sampled_at=hour, **amounts))
    return rows


def save_checkpoint(
    folder: Path, cell: Cell, state: RecordedState, specs: Mapping[int, JobSpec], *, revision: int, at: float
) -> Path:
    """Write a checkpoint of the state into a folder, and return the path of its file. `specs`: the specs by job id.
    `at`: seconds since the epoch.
    """
    header = Header(
        cell=cell.name, revision=revision, taken_at=at, history=str(cell.history_id), settings=cell.settings
    )
    used = [specs[job_id] for job_id in sorted(state.tasks.jobs)]
    path = folder / str(revision)
    with path.open("wb") as out:
        file.write(out, header, {**tables_of(state), "specs": _specs(used)})
    return path


def _specs(rows: Sequence[JobSpec]) -> object:
    import pyarrow as pa

    return pa.table(
        {
            "job_id": pa.array([row.job_id for row in rows], pa.int64()),
            "version": pa.array([row.version for row in rows], pa.int32()),
            "spec": pa.array([bytes(row.spec).decode() for row in rows], pa.string()),
            "packages": pa.array([msgspec.json.encode(row.packages).decode() for row in rows], pa.string()),
        }
    )
