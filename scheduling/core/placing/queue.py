"""The order in which pending tasks are tried (§3.2)."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.tasks import PENDING, LiveJob, TaskTable
from scheduling.core.vocabulary.kernel_arrays import Ints32
from scheduling.core.vocabulary.policy import Workload
from scheduling.core.vocabulary.requirement import MAX_TASKS

Slots = NDArray[np.int64]
# So many gangs of each priority are tried before the other tasks of the priority, the oldest first.
MOST_GANGS = 3


def workload_of(job: LiveJob) -> Workload:
    """Return "service" or "batch". A cell may have one scheduler for services and one for batch jobs (§3.4). The
    workload decides which of the two schedulers places the job's tasks.
    """
    return "service" if job.latency_sensitive or job.kind == "alloc-set" else "batch"


def pending_of(
    tasks: TaskTable, workload: Workload = "", *, now: float = math.inf, crashed: Collection[int] = ()
) -> Slots:
    """Return the slots of the pending tasks of a workload, unsorted. An empty `workload` means all workloads. Tasks
    whose job starts after the time `now` or waits for other jobs are left out, and so are tasks that the
    `max_running` of their job holds back. `crashed`: the ids of tasks that avoid machines.
    """
    slots = (tasks.state == PENDING).nonzero()[0]
    if tasks.delayed:
        slots = slots[tasks.job_start_after[tasks.job[slots]] <= now]
    if workload:
        own = np.array([job is not None and workload_of(job) == workload for job in tasks.job_at], dtype=np.bool_)
        slots = slots[own[tasks.job[slots]]]
    return _within_bounds(tasks, slots, crashed)


def may_start(tasks: TaskTable, jobs: Slots | Ints32) -> Slots:
    """Return how many further tasks of each job in `jobs` (slots) may be placed now. It is `MAX_TASKS` for a job
    without `max_running`.
    """
    result: Slots = np.full(len(jobs), MAX_TASKS, dtype=np.int64)
    if tasks.bounded:
        most = tasks.job_max_running[jobs]
        bounded = most > 0
        result[bounded] = np.maximum(most - tasks.job_running[jobs], 0)[bounded]
    return result


def _within_bounds(tasks: TaskTable, slots: Slots, crashed: Collection[int]) -> Slots:
    """Leave out the pending tasks of jobs with `max_running` that are not needed to fill the bound. Of each kind of
    equal tasks of a job, this number of tasks, with the lowest indexes, stay, because another kind may fit nowhere. The
    kernels stop when this number of tasks of the job is placed, of whatever kind. `crashed`: the ids of tasks that
    avoid machines on which they crashed. These tasks stay too, and fill no place of another task.
    """
    if not tasks.bounded:
        return slots
    bounded = tasks.job_max_running[tasks.job[slots]] > 0
    own = slots[bounded]
    if len(own) == 0:
        return slots
    job = tasks.job[own]
    left = may_start(tasks, job)
    apart = np.isin(tasks.id[own], np.fromiter(crashed, np.int64, len(crashed)))
    rank = _rank_within((tasks.id[own],), (job, tasks.shape[own], apart))
    keep = ~bounded
    keep[bounded] = (rank < left) | (apart & (left > 0))
    return slots[keep]


def pending_in_order(tasks: TaskTable, slots: Slots) -> Slots:
    """Return the pending tasks in `slots`, in the order in which a pass tries to place them.

    Tasks with higher priorities come first. Within a priority, tenants take turns, and the jobs of one tenant take
    turns. The tasks of a job are sorted by index. The other tasks of a gang come directly after the gang's first task.
    """
    if len(slots) < 2:
        return slots
    identity = tasks.id[slots]
    job = tasks.job[slots]
    priority = -tasks.job_priority[job].astype(np.int64)
    tenant = tasks.job_tenant[job]
    in_job = _rank_within((identity,), (job,))
    # A tenant's own queue takes the first task of each of its jobs, then the second of each, and so on.
    in_tenant = _rank_within((identity, in_job), (priority, tenant))
    if tasks.gangs:
        ganged = tasks.job_gang[job]
        first = np.full(len(tasks.job_gang), len(slots), dtype=np.int64)
        np.minimum.at(first, job[ganged], in_tenant[ganged])
        in_tenant[ganged] = first[job[ganged]]
    result: Slots = slots[np.lexsort((identity, tenant, in_tenant, priority))]
    return result


def oldest_gangs_first(tasks: TaskTable, slots: Slots) -> Slots:
    """Return the queue `slots` with the oldest gangs of each priority before the other tasks of this priority. One of
    them can book capacity (`core/booking`), and tasks after it in the queue leave this capacity free. If others of its
    priority came first, they could take what becomes free in each pass, and the gang would never start.
    """
    if not tasks.gangs:
        return slots
    age = _ages_of_gangs(tasks, slots)
    if (age == MOST_GANGS).all():
        return slots
    priority = -tasks.job_priority[tasks.job[slots]].astype(np.int64)
    result: Slots = slots[np.lexsort((np.arange(len(slots)), age, priority))]
    return result


def first_gangs(tasks: TaskTable, slots: Slots) -> NDArray[np.bool_]:
    """Return an array [Q]: whether the task at each position of the queue is the first task of one of the oldest gangs
    of its priority.
    """
    own: NDArray[np.bool_] = _ages_of_gangs(tasks, slots) < MOST_GANGS
    job = tasks.job[slots]
    own[1:] &= job[1:] != job[:-1]
    return own


def _ages_of_gangs(tasks: TaskTable, slots: Slots) -> Slots:
    """Return an array [Q]: 0 for tasks of the gang with the lowest job id in its priority, 1 for the next gang, and so
    on; `MOST_GANGS` for all other tasks. A gang of which only one task waits counts as another task. Otherwise a tenant
    could give each job the field `gang` to be first.
    """
    job = tasks.job[slots]
    result: Slots = np.full(len(slots), MOST_GANGS, dtype=np.int64)
    own = tasks.job_gang[job]
    if own.any():
        gangs, number = np.unique(job[own], return_counts=True)
        gangs = gangs[number > 1]
        ids = np.array([one.id for slot in gangs.tolist() if (one := tasks.job_at[slot]) is not None], dtype=np.int64)
        if len(gangs):
            age = np.full(len(tasks.job_gang), MOST_GANGS, dtype=np.int64)
            age[gangs] = np.minimum(_rank_within((ids,), (tasks.job_priority[gangs],)), MOST_GANGS)
            result = age[job]
    return result


def _rank_within(order: tuple[Slots, ...], keys: tuple[NDArray[np.generic], ...]) -> Slots:
    """Return, for each element, how many elements with equal `keys` come before it in `order`: keys of which the last
    one is the most important.
    """
    by = np.lexsort((*order, *keys))
    changes = np.zeros(len(by), dtype=np.bool_)
    changes[0] = True
    for key in keys:
        ordered = key[by]
        changes[1:] |= ordered[1:] != ordered[:-1]
    place = np.arange(len(by))
    rank = np.empty(len(by), dtype=np.int64)
    rank[by] = place - np.maximum.accumulate(place * changes)
    return rank
