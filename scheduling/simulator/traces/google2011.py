"""Google's published cell of May 2011 as machines, jobs and arrivals (ClusterData2011_2; Wilkes, Reiss; CC-BY 4.0).

The files are not part of this project. A folder with them is an argument:

    machine_events-part-00000-of-00001.csv.gz   machines of the cell over 29 days, with failures and returns
    cell_tasks_t0_dev20.csv.gz                  tasks of about a fifth of the cell at one moment, with requests
    cell_machines_dev20.csv.gz                  machines of this fifth
    jobs_29days_compact.csv.gz                  submissions and ends of all jobs over 29 days

Units: 1.0 CPU = 64 cores, 1.0 RAM = 256 GiB, 1.0 disk = 4 TiB. Requests are rounded up, capacities down.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from quota.vocabulary.resources import CPU, DISK, RAM, SIZE, Vector
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints
from scheduling.core.vocabulary.requirement import Group, Requirement, split_task_id
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.workload import Ending, MachineChange, Workload

CPU_MILLI, RAM_BYTES, DISK_BYTES = 64_000, 256 * 2**30, 4 * 2**40
PRIORITIES = {0: 0, 1: 25, **{p: 100 + p for p in range(2, 9)}, 9: 200, 10: 360, 11: 370}
"""Our priority for each priority of the trace."""

TENANTS = 40
RACK, RACKS_PER_DOMAIN = 40, 10
MACHINE_EVENTS = "machine_events-part-00000-of-00001.csv.gz"
FIFTH_MACHINES = "cell_machines_dev20.csv.gz"
FIFTH_TASKS = "cell_tasks_t0_dev20.csv.gz"
JOBS = "jobs_29days_compact.csv.gz"
SEED = 2011

_ENDS = {"3": "failed", "4": "finished"}
_ADD, _REMOVE = "0", "1"


class TraceTask(NamedTuple):
    """A task in the sample of one fifth of Google's cell.

    `kind`: its scheduling class, 0 to 3; 2 and 3 are latency-sensitive.
    """

    priority: int
    kind: int
    limit: Vector


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a compressed CSV file with a header line. Raises `FileNotFoundError` with the cure."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder with the files of Google's trace of 2011")
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def limit_of(cpu: str, ram: str, disk: str) -> Vector:
    """Return the request of a task of the trace. The arguments are fractions of the largest machine, as the trace gives
    them. The trace has tasks that ask for no RAM or disk; they get one byte.
    """
    vector = [0] * SIZE
    vector[CPU] = math.ceil(float(cpu) * CPU_MILLI)
    vector[RAM] = max(1, math.ceil(float(ram) * RAM_BYTES))
    vector[DISK] = max(1, math.ceil(float(disk) * DISK_BYTES))
    return tuple(vector)


def capacity_of(cpu: str, ram: str) -> Vector:
    """Return the capacity of a machine of the trace. The arguments are fractions of the largest machine, as the trace
    gives them.
    """
    vector = [0] * SIZE
    vector[CPU], vector[RAM] = math.floor(float(cpu) * CPU_MILLI), math.floor(float(ram) * RAM_BYTES)
    vector[DISK] = DISK_BYTES
    return tuple(vector)


def fifth_tasks(folder: Path) -> list[TraceTask]:
    """Return the tasks in the sample of one fifth of Google's cell, in file order."""
    return [
        TraceTask(
            PRIORITIES[int(row["priority"])], int(row["sched_class"]), limit_of(row["cpu"], row["mem"], row["disk"])
        )
        for row in rows(folder / FIFTH_TASKS)
    ]


def machine_set(number: int, name: str, *, platform: str, capacity: Vector) -> events.MachineSet:
    """Return the event of a machine. `number`: its position in the file, from 0. 40 machines are a rack, and ten racks
    a power domain.
    """
    return events.MachineSet(
        machine_id=number + 1,
        hostname=f"m{name}",
        address="127.0.0.1",
        capacity=capacity,
        platform=platform[:4],
        rack=f"r{number // RACK}",
        power_domain=f"p{number // (RACK * RACKS_PER_DOMAIN)}",
    )


def cell_machines(folder: Path) -> tuple[list[events.MachineSet], list[MachineChange]]:
    """Return the 12,477 machines at the beginning of the trace, and all later failures, returns and changes of
    capacity.
    """
    beginning: list[events.MachineSet] = []
    changes: list[MachineChange] = []
    known: dict[str, events.MachineSet] = {}
    path = folder / MACHINE_EVENTS
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder with the files of Google's trace of 2011")
    with gzip.open(path, "rt", newline="") as file:
        for time, name, kind, platform, cpu, ram in csv.reader(file):
            before = known.get(name)
            if kind == _REMOVE:
                if before is not None:
                    changes.append(MachineChange(int(time) / 1e6, before.machine_id, None))
                continue
            if not cpu or not ram:
                continue  # the trace leaves out a few capacities
            number = before.machine_id - 1 if before is not None else len(known)
            facts = machine_set(number, name, platform=platform, capacity=capacity_of(cpu, ram))
            known[name] = facts
            if time == "0" and kind == _ADD:
                beginning.append(facts)
            else:
                changes.append(MachineChange(int(time) / 1e6, facts.machine_id, facts))
    return beginning, changes


@dataclass(frozen=True, eq=False)
class TraceArrivals:
    """The jobs of 29 days of the trace: when they arrive (`Arrivals`), and how their tasks behave (`Behaviour`). Each
    job has `tasks_per_job` equal tasks. Their request and priority are those of a random task of the same scheduling
    class in the sample of one fifth of the cell. All tasks of a job run as long as the job ran in the trace.

    `run_s` [A]: the run times of the A jobs; infinity if a job did not end. Job ids are positions plus one.
    """

    times: Floats
    run_s: Floats
    endings: tuple[str, ...]
    drawn: Ints  # positions in `classes`
    classes: tuple[TraceTask, ...]
    tasks_per_job: int
    usage: Drawn

    def job(self, number: int) -> events.JobSubmitted:
        task = self.classes[self.drawn.item(number)]
        tenant = number % TENANTS
        return events.JobSubmitted(
            job_id=number + 1,
            uid=f"{number + 1:032x}",
            tenant_id=tenant + 1,
            tenant=f"t{tenant:02d}",
            name=f"j{number + 1}",
            job_kind="job",
            priority=task.priority,
            latency_sensitive=task.kind >= 2,
            spec_version=1,
            groups=(Group(Requirement(task.limit), ((0, self.tasks_per_job - 1),)),),
        )

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        number = split_task_id(task_id)[0] - 1
        if number >= len(self.times):
            return self.usage.ending(task_id, incarnation, priority)
        run_s = self.run_s.item(number)
        return None if math.isinf(run_s) else Ending(run_s, self.endings[number])

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        return self.usage.demand(task_id, limit, priority, now)


def arrivals(folder: Path, *, seed: int = SEED, tasks_per_job: int = 1, days: float = 29.1) -> TraceArrivals:
    """Return the jobs that were submitted in the first `days` days of the trace."""
    times, run_s, endings, kinds = [], [], [], []
    for row in rows(folder / JOBS):
        if int(row["submit_ms"]) > days * 86_400_000:
            break
        times.append(int(row["submit_ms"]) / 1000)
        began = int(row["first_schedule_ms"])
        run_s.append(max(0.001, (int(row["end_ms"]) - began) / 1000) if row["end_ms"] else math.inf)
        endings.append(_ENDS.get(row["end_event"], "killed"))
        kinds.append(int(row["scheduling_class"]))
    tasks = fifth_tasks(folder)
    rng = np.random.default_rng(seed)
    kind = np.array(kinds, dtype=np.int64)
    drawn = np.zeros(len(times), dtype=np.int64)
    for one in np.unique(kind).tolist():
        candidates = np.array([n for n, task in enumerate(tasks) if task.kind == one], dtype=np.int64)
        here = np.flatnonzero(kind == one)
        drawn[here] = candidates[rng.integers(len(candidates), size=len(here))]
    return TraceArrivals(
        times=np.array(times),
        run_s=np.array(run_s),
        endings=tuple(endings),
        drawn=drawn,
        classes=tuple(tasks),
        tasks_per_job=tasks_per_job,
        usage=Drawn(seed),
    )


def month(
    folder: Path, *, seed: int = SEED, tasks_per_job: int = 1, days: float = 29.1
) -> tuple[list[events.MachineSet], Workload]:
    """Return the machines of the cell at the beginning of the trace, and everything that happens to it in 29 days."""
    machines, changes = cell_machines(folder)
    trace = arrivals(folder, seed=seed, tasks_per_job=tasks_per_job, days=days)
    return machines, Workload(trace, trace, changes)
