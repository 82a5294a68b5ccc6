"""The tasks of a cell as arrays, and their jobs. The index of a task in these arrays is its slot. Tasks with equal
requirements share a *shape*: the requirements are stored once, under a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.machines import grown
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats, Ints, Ints32
from scheduling.core.vocabulary.requirement import Requirement, padded, task_id
from scheduling.core.vocabulary.states import TaskState

# States by code; a slot with code FREE holds no task.
FREE, PENDING, RUNNING, DEAD = range(4)
STATES: tuple[TaskState | None, ...] = (None, TaskState.PENDING, TaskState.RUNNING, TaskState.DEAD)


_NO_TASKS: Ints32 = np.zeros(0, dtype=np.int32)


class LiveJob:
    """A live job, or an ended job with tasks that are still being stopped on a machine. `tasks[index]`: slot of the
    task with this index, or -1 if the task does not exist.
    """

    __slots__ = (
        "alloc_set",
        "by_limit",
        "departures",
        "disruption_budget",
        "ended",
        "ends_within_s",
        "gang",
        "id",
        "kind",
        "latency_sensitive",
        "max_run_s",
        "max_running",
        "name",
        "port_names",
        "priority",
        "slot",
        "start_after",
        "tasks",
        "tenant",
        "tenant_id",
        "waiting",
    )

    def __init__(self, job_id: int, *, tenant_id: int, tenant: str, name: str, kind: str, alloc_set: int) -> None:
        self.id = job_id
        self.tenant_id, self.tenant, self.name, self.kind, self.alloc_set = (tenant_id, tenant, name, kind, alloc_set)
        self.priority, self.latency_sensitive, self.port_names = 0, False, ()
        self.by_limit = False
        self.slot = -1
        self.tasks = _NO_TASKS
        self.departures = 0  # incarnations that have not been reported gone
        self.gang = False
        self.disruption_budget = 0
        self.max_running = 0  # 0: no limit
        self.start_after = 0.0
        self.waiting = False  # for other jobs
        self.max_run_s = 0.0  # 0: no time limit
        self.ends_within_s = 0.0  # 0: not known
        self.ended = False

    port_names: tuple[str, ...]

    @property
    def placed_after(self) -> float:
        """Return the time before which no task of the job is placed. It is infinite while the job waits for others."""
        return math.inf if self.waiting else self.start_after


class Shapes:
    """The distinct requirements of tasks. Each distinct requirement has a number, its shape: 0, 1, and so on. Row `s`
    of each array is about shape `s`. `bounds`: the maximum numbers of tasks per machine, rack and power domain.
    `any_cores`, `any_bounds`: whether any shape asks for whole cores, or has such a bound.
    """

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.any_cores = self.any_bounds = False
        self.requirement: list[Requirement] = []
        self.limit: Ints = np.zeros((16, axis), dtype=np.int64)
        self.cores: Ints32 = np.zeros(16, dtype=np.int32)  # whole ones
        self.bounds: Ints32 = np.zeros((16, 3), dtype=np.int32)  # tasks per machine, rack, power domain
        self._shape: dict[Requirement, int] = {}

    def of(self, requirement: Requirement) -> int:
        shape = self._shape.get(requirement)
        if shape is not None:
            return shape
        # Vectors stored before the cell had further resources are shorter, and ask for none of those.
        full = msgspec.structs.replace(requirement, limit=padded(requirement.limit, self.axis))
        shape = self._shape.get(full)
        if shape is None:
            shape = len(self.requirement)
            if shape == len(self.limit):
                for name in ("limit", "bounds", "cores"):
                    setattr(self, name, grown(getattr(self, name), 2 * shape, 0))
            self.limit[shape] = full.limit
            self.bounds[shape] = full.max_per_machine, full.max_per_rack, full.max_per_power_domain
            self.cores[shape] = full.whole_cores
            self.any_cores = self.any_cores or full.whole_cores > 0
            self.any_bounds = self.any_bounds or bool(self.bounds[shape].any())
            self.requirement.append(full)
            self._shape[full] = shape
        self._shape[requirement] = shape
        return shape

    def known(self) -> Iterable[Requirement]:
        """Return all distinct requirements that have a shape (a number)."""
        return self._shape


class TaskTable:
    """The tasks as arrays. Axes: T slots of tasks, J slots of jobs, R resources. `last`: id of the task's previous
    machine, or 0.

    `since`: when a running task was placed or last came up or went down, in seconds since the epoch, like the column of
    its row. If it is known within which time a run ends (`job_ends_within_s`), a task that is being stopped keeps its
    time, so that its run ends within this time after `since`. `up`: as last reported.

    `next`, `prev`: links in the list of the tasks on a machine, which starts at `MachineTable.head`. The list has no
    tasks inside allocs. `alloc`: slot of the alloc that contains the task (§2.4), or -1. A task in an alloc uses the
    alloc's resources, and only port numbers of the machine. `devices`: bit mask of the accelerators that the task
    holds.

    `gangs`, `budgets`, `bounded`, `delayed`: the numbers of jobs that are gangs, that have a disruption budget, a
    `max_running`, and a time before which no task is placed. Without such jobs, a pass leaves out what only they need.
    `disruptions_left`: how many more tasks may be disrupted now, by id of each job that limits this within a window of
    time. The events do not contain these numbers (`CellState.limit_disruptions`).
    """

    def __init__(self, axis: int, slots: int = 256, jobs: int = 64) -> None:
        self.shapes = Shapes(axis)
        self.id: Ints = np.zeros(slots, dtype=np.int64)
        self.state: NDArray[np.int8] = np.zeros(slots, dtype=np.int8)
        self.job: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.shape: Ints32 = np.zeros(slots, dtype=np.int32)
        self.machine: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.last: Ints = np.zeros(slots, dtype=np.int64)
        self.incarnation: Ints32 = np.zeros(slots, dtype=np.int32)
        self.since: Floats = np.zeros(slots, dtype=np.float64)
        self.up: Bools = np.zeros(slots, dtype=np.bool_)
        self.reservation: Ints = np.zeros((slots, axis), dtype=np.int64)
        self.next: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.prev: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.alloc: Ints32 = np.full(slots, -1, dtype=np.int32)
        self.devices: Ints = np.zeros(slots, dtype=np.int64)
        self.ports: dict[int, tuple[int, ...]] = {}  # by slot, those that hold any
        self.jobs: dict[int, LiveJob] = {}
        self.job_at: list[LiveJob | None] = [None] * jobs
        self.job_priority: Ints32 = np.zeros(jobs, dtype=np.int32)
        self.job_by_limit: Bools = np.zeros(jobs, dtype=np.bool_)
        self.job_sensitive: Bools = np.zeros(jobs, dtype=np.bool_)
        self.job_tenant: Ints = np.zeros(jobs, dtype=np.int64)
        self.job_gang: Bools = np.zeros(jobs, dtype=np.bool_)
        self.job_budget: Ints32 = np.zeros(jobs, dtype=np.int32)  # 0: no bound
        # No task is placed before this time. It is infinite for a job that waits for other jobs.
        self.job_start_after: Floats = np.zeros(jobs, dtype=np.float64)
        self.job_ends_within_s: Floats = np.zeros(jobs, dtype=np.float64)  # after its start, each run; 0: not known
        self.job_there: Bools = np.zeros(jobs, dtype=np.bool_)
        self.job_pending: Ints32 = np.zeros(jobs, dtype=np.int32)
        self.job_running: Ints32 = np.zeros(jobs, dtype=np.int32)
        self.job_max_running: Ints32 = np.zeros(jobs, dtype=np.int32)  # 0: no limit
        self.job_alloc_set: Ints = np.zeros(jobs, dtype=np.int64)  # id of the alloc set its tasks live in, 0 none
        self.pending = 0
        self.running = 0
        self.gangs = self.budgets = self.bounded = self.delayed = 0
        self.disruptions_left: Mapping[int, int] = {}
        self._free: list[int] = list(range(slots - 1, -1, -1))
        self._free_jobs: list[int] = list(range(jobs - 1, -1, -1))

    def add_job(self, job: LiveJob) -> None:
        if not self._free_jobs:
            old = len(self.job_at)
            self.job_at += [None] * old
            for name in (
                "job_priority",
                "job_by_limit",
                "job_tenant",
                "job_gang",
                "job_budget",
                "job_start_after",
                "job_ends_within_s",
                "job_pending",
                "job_running",
                "job_max_running",
                "job_alloc_set",
                "job_sensitive",
                "job_there",
            ):
                setattr(self, name, grown(getattr(self, name), 2 * old, 0))
            self._free_jobs = list(range(2 * old - 1, old - 1, -1))
        job.slot = self._free_jobs.pop()
        self.job_at[job.slot] = job
        self.job_tenant[job.slot] = job.tenant_id
        self.job_alloc_set[job.slot] = job.alloc_set
        self.job_gang[job.slot], self.job_budget[job.slot] = job.gang, job.disruption_budget
        self.job_ends_within_s[job.slot] = job.ends_within_s
        self.job_start_after[job.slot] = job.placed_after
        self.job_max_running[job.slot] = job.max_running
        self.job_pending[job.slot] = self.job_running[job.slot] = 0
        self.job_there[job.slot] = True
        self.jobs[job.id] = job
        self._count(job, 1)

    def remove_job(self, job: LiveJob) -> None:
        slots = job.tasks[job.tasks >= 0]
        self.state[slots] = FREE
        self.job[slots] = -1
        self._free.extend(slots.tolist())
        self.job_at[job.slot] = None
        self.job_there[job.slot] = False
        self._count(job, -1)
        self._free_jobs.append(job.slot)
        del self.jobs[job.id]

    def add_tasks(self, job: LiveJob, indexes: Ints, shape: int) -> None:
        """Add pending tasks of one shape to `job`. Raises `ValueError` if the job already has a task with one of the
        indexes.
        """
        number = len(indexes)
        while len(self._free) < number:
            self._grow()
        slots: Any
        wanted: Any
        if number == 1:  # numbers instead of arrays, for speed
            slots, wanted = self._free.pop(), indexes.item()
            top = wanted + 1
        else:
            slots, wanted = np.array(self._free[-number:][::-1], dtype=np.int32), indexes
            del self._free[-number:]
            top = int(wanted.max()) + 1
        if top > len(job.tasks):
            larger: Ints32 = np.full(top, -1, dtype=np.int32)
            larger[: len(job.tasks)] = job.tasks
            job.tasks = larger
        if np.count_nonzero(job.tasks[wanted] >= 0):
            raise ValueError(
                f"cannot add tasks to job {job.name} ({job.id}): it already has some of "
                "these tasks; report this as a bug"
            )
        job.tasks[wanted] = slots
        self.id[slots] = task_id(job.id, 0) + wanted
        self.state[slots] = PENDING
        self.job[slots] = job.slot
        self.shape[slots] = shape
        self.machine[slots] = -1
        self.incarnation[slots] = 0
        self.last[slots] = 0
        self.alloc[slots] = -1
        self.devices[slots] = 0
        self.waits(job.slot, number)

    def waits(self, job: int, by: int) -> None:
        """Add `by` to the number of pending tasks of a job. `job`: the slot of the job."""
        self.pending += by
        self.job_pending[job] += by

    def runs(self, job: int, by: int) -> None:
        """Add `by` to the number of running tasks of a job. `job`: the slot of the job."""
        self.running += by
        self.job_running[job] += by

    def down(self, job: Ints32 | Ints) -> Ints32:
        """Return how many tasks of each job in `job` (slots) are pending, without those that the job's `max_running`
        holds back.
        """
        pending, most = self.job_pending[job], self.job_max_running[job]
        free: Ints32 = np.maximum(most - self.job_running[job], 0)
        result: Ints32 = np.where(most > 0, np.minimum(pending, free), pending)
        return result

    def next_start(self, now: float) -> float:
        """Return the next time after `now` at which tasks that wait for their `start_after` may be placed. The result
        is infinite if no task waits for a time.
        """
        if not self.delayed:
            return math.inf
        later = self.job_start_after[(self.job_start_after > now) & (self.job_pending > 0) & self.job_there]
        return float(later.min()) if len(later) else math.inf

    def set_placing(
        self,
        job: LiveJob,
        *,
        gang: bool,
        disruption_budget: int,
        max_running: int,
        start_after: float,
        max_run_s: float,
        ends_within_s: float,
    ) -> None:
        self._count(job, -1)
        job.gang, job.disruption_budget, job.start_after = gang, disruption_budget, start_after
        job.max_running = self.job_max_running[job.slot] = max_running
        job.max_run_s, job.ends_within_s = max_run_s, ends_within_s
        self.job_gang[job.slot], self.job_budget[job.slot] = gang, disruption_budget
        self.job_ends_within_s[job.slot] = ends_within_s
        self.job_start_after[job.slot] = job.placed_after
        self._count(job, 1)

    def set_waiting(self, job: LiveJob, *, waiting: bool) -> None:
        """Set whether a job waits for other jobs."""
        self._count(job, -1)
        job.waiting = waiting
        self.job_start_after[job.slot] = job.placed_after
        self._count(job, 1)

    def _count(self, job: LiveJob, by: int) -> None:
        """Add `by` to the counters of those rules for placing that `job` has."""
        self.gangs += by * job.gang
        self.budgets += by * (job.disruption_budget > 0)
        self.bounded += by * (job.max_running > 0)
        self.delayed += by * (job.placed_after > 0.0)

    def set_priority(self, job: LiveJob, priority: int, *, latency_sensitive: bool, by_limit: bool) -> None:
        job.priority, job.latency_sensitive, job.by_limit = priority, latency_sensitive, by_limit
        self.job_priority[job.slot] = priority
        self.job_by_limit[job.slot] = by_limit
        self.job_sensitive[job.slot] = latency_sensitive

    def _grow(self) -> None:
        old, new = len(self.id), 2 * len(self.id)
        for name in ("id", "state", "shape", "last", "incarnation", "since", "up", "reservation", "devices"):
            setattr(self, name, grown(getattr(self, name), new, 0))
        for name in ("job", "machine", "next", "prev", "alloc"):
            setattr(self, name, grown(getattr(self, name), new, -1))
        self._free = list(range(new - 1, old - 1, -1)) + self._free
