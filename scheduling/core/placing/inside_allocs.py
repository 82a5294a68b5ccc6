"""Placement of tasks whose job is in an alloc set (§2.4). They are placed only inside running allocs of this set.

    pending tasks ─┐
                   ├─► kernels/placement_in_allocs.py ─► alloc, devices ─► Assignments, and a Why for each kind that
    running allocs ┘   limit of the alloc minus the limits of the tasks inside             found no alloc

These tasks use the resources of the alloc, and port numbers of the machine. An alloc that this plan preempts receives
no tasks. An alloc that this plan places can receive tasks only in the next plan.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import ACCELERATORS, NAMES, PORTS
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.kernels.devices import WHOLE, set_bits
from scheduling.core.kernels.placement_in_allocs import Allocs, InnerTasks, Kinds, place_inside
from scheduling.core.placing.queue import may_start
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import ReasonCode, RuledOut, Why
from scheduling.core.vocabulary.requirement import INDEX_BITS, split_task_id

Rows = NDArray[np.int64]
# Port numbers given in this pass, by slot of the machine.
PortsBySlot = dict[int, set[int]]


def place_in_allocs(
    state: CellState,
    policy: Policy,
    slots: Rows,
    *,
    gone: Bools,
    ports_free: Ints,
    taken: PortsBySlot,
    now: float,
    most: int,
) -> tuple[list[Assignment], list[Why], bool]:
    """Place tasks into allocs. Return the assignments, the explanations for the tasks that found no alloc, and whether
    some tasks were not tried.

    `slots`: the pending tasks in the order of the queue. `most`: about how many tasks to place. `gone` [T]: tasks that
    this plan preempts. `ports_free` [M]: the number of free ports of each machine. `taken`: port numbers that this pass
    has assigned. This call updates `ports_free` and `taken`.
    """
    if len(slots) == 0:
        return [], [], False
    tasks = state.tasks
    allocs, of_row, first, until = _running_allocs(state, slots, gone, ports_free)
    inner, kinds, there = _sorted(state, policy, slots, first, until, now)
    allocs = allocs._replace(there=there)
    answer = np.full(len(slots), -1, dtype=np.int64)
    devices = np.zeros(len(slots), dtype=np.int64)
    place_inside(allocs, inner, kinds, most, answer, devices)
    placed = []
    for i in np.flatnonzero(answer >= 0).tolist():
        task, alloc = int(slots[i]), int(of_row[answer[i]])
        machine = int(tasks.machine[alloc])
        number = int(tasks.shapes.limit[tasks.shape[task], PORTS])
        numbers: tuple[int, ...] = ()
        if number:
            numbers = state.machines.ports[machine].offer(number, taken.setdefault(machine, set()))
        placed.append(
            Assignment(
                *split_task_id(int(tasks.id[task])),
                int(state.machines.id[machine]),
                ports=numbers,
                alloc=int(tasks.id[alloc]),
                devices=set_bits(int(devices[i])),
            )
        )
    return placed, _left_over(state, slots, answer, inner.kind, allocs, kinds), bool((answer == -2).any())


def _running_allocs(
    state: CellState, slots: Rows, gone: Bools, ports_free: Ints
) -> tuple[Allocs, Rows, dict[int, int], dict[int, int]]:
    """Return the running allocs of the alloc sets in which the tasks in `slots` should run, and the slot of each
    alloc in the task arrays. The two dictionaries give, by the id of an alloc set, the first row of the set in
    `Allocs`, and its last row plus one. `gone` [T]: whether this plan preempts the task. Preempted allocs are left out.
    """
    tasks, machines = state.tasks, state.machines
    rows: list[int] = []
    first, until = {}, {}
    for job_id in np.unique(tasks.job_alloc_set[tasks.job[slots]]).tolist():
        first[job_id] = len(rows)
        job = tasks.jobs.get(job_id)
        if job is not None:
            own = job.tasks[job.tasks >= 0]
            there = (tasks.state[own] == RUNNING) & (tasks.machine[own] >= 0) & ~gone[own]
            own = own[there]
            rows += own[machines.up[tasks.machine[own]]].tolist()
        until[job_id] = len(rows)
    of_row = np.array(rows, dtype=np.int64)
    free = tasks.shapes.limit[tasks.shape[of_row]].copy()
    bits = np.arange(machines.devices.shape[1])
    share = np.minimum(free[:, ACCELERATORS], WHOLE)[:, None]
    devices = ((tasks.devices[of_row][:, None] >> bits & 1) * share).astype(np.int32)
    row_of = np.full(len(tasks.id), -1, dtype=np.int64)
    row_of[of_row] = np.arange(len(of_row))
    inside = np.flatnonzero((tasks.state == RUNNING) & (tasks.alloc >= 0))
    inside = inside[row_of[tasks.alloc[inside]] >= 0]
    at, limit = row_of[tasks.alloc[inside]], tasks.shapes.limit[tasks.shape[inside]]
    np.subtract.at(free, at, limit)
    used = (tasks.devices[inside][:, None] >> bits & 1) * np.minimum(limit[:, ACCELERATORS], WHOLE)[:, None]
    np.subtract.at(devices, at, used.astype(np.int32))
    there = np.zeros((0, len(machines.id)), dtype=np.int32)
    return (Allocs(free, devices, tasks.machine[of_row].astype(np.int64), ports_free, there), of_row, first, until)


def _sorted(
    state: CellState, policy: Policy, slots: Rows, first: dict[int, int], until: dict[int, int], now: float
) -> tuple[InnerTasks, Kinds, Ints32]:
    """Return three values: the pending tasks in `slots` as arrays for the kernel, the kinds of these tasks, and an
    array [B, M]. The array counts the tasks on each machine for each of the B jobs that limit their tasks per machine.
    `first`, `until`: the first row of each alloc set in `Allocs`, and the row after its last row.
    """
    tasks = state.tasks
    shape, job = tasks.shape[slots].astype(np.int64), tasks.job[slots].astype(np.int64)
    alloc_set = tasks.job_alloc_set[job]
    bound = tasks.shapes.bounds[shape, 0].astype(np.int64)
    owner = np.where(bound > 0, job, -1)
    keys = np.stack((alloc_set, shape, owner), axis=1)
    distinct, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    bounded = np.unique(owner[owner >= 0])
    there = np.zeros((len(bounded), len(state.machines.id)), dtype=np.int32)
    for row, slot in enumerate(bounded.tolist()):
        bounded_job = tasks.job_at[slot]
        assert bounded_job is not None
        own = bounded_job.tasks[bounded_job.tasks >= 0]
        on = tasks.machine[own[(tasks.state[own] == RUNNING) & (tasks.machine[own] >= 0)]]
        np.add.at(there[row], on, 1)
    avoid: list[int] = []
    ends = np.zeros(len(slots), dtype=np.int64)
    for i, identity in enumerate(tasks.id[slots].tolist() if state.crashed else []):
        for machine, when in state.crashed.get(identity, {}).items():
            if now - when < policy.crashed_pair_s and machine in state.machines.slot:
                avoid.append(state.machines.slot[machine])
        ends[i] = len(avoid)
    gang_end = np.zeros(len(slots), dtype=np.int64)
    begins = np.flatnonzero(np.diff(job, prepend=-1))
    ganged = tasks.job_gang[job[begins]]
    gang_end[begins[ganged]] = np.append(begins[1:], len(slots))[ganged]
    owners = distinct[:, 2]
    rows = np.where(owners >= 0, np.searchsorted(bounded, owners), -1).astype(np.int64)
    kinds = Kinds(
        limit=tasks.shapes.limit[distinct[:, 1]],
        first=np.array([first[one] for one in distinct[:, 0].tolist()], dtype=np.int64),
        until=np.array([until[one] for one in distinct[:, 0].tolist()], dtype=np.int64),
        next=np.zeros(len(distinct), dtype=np.int64),
        full=np.zeros(len(distinct), dtype=np.int64),
        bound=tasks.shapes.bounds[distinct[:, 1], 0].astype(np.int64),
        job=rows,
    )
    inner = InnerTasks(
        kind=kind.astype(np.int64),
        gang_end=gang_end,
        avoid_from=np.concatenate(([0], ends[:-1])).astype(np.int64),
        avoid_to=ends,
        avoid=np.array(avoid, dtype=np.int64),
        job=job,
        left=may_start(tasks, np.arange(len(tasks.job_at))),
    )
    return inner, kinds, there


def _left_over(state: CellState, slots: Rows, answer: Rows, kind: Rows, allocs: Allocs, kinds: Kinds) -> list[Why]:
    """Return one explanation (`Why`) for each kind of task that found no alloc.

    The explanation names each resource that is too small, and the number of allocs in which it is too small.
    """
    names = (*NAMES, *state.extra_resources)
    whys = []
    waiting = np.flatnonzero(answer == -1)
    of, begins = np.unique(kind[waiting], return_index=True)
    for k, ahead in sorted(zip(of.tolist(), begins.tolist(), strict=True), key=lambda pair: pair[1]):
        own = slots[waiting[kind[waiting] == k]]
        jobs, numbers = np.unique(state.tasks.id[own] >> INDEX_BITS, return_counts=True)
        free = allocs.free[kinds.first[k] : kinds.until[k]].copy()
        free[:, PORTS] = allocs.ports_free[allocs.machine[kinds.first[k] : kinds.until[k]]]
        limit = kinds.limit[k]
        lacks = (free < limit) & (limit > 0)
        which = np.where(lacks.any(axis=1), lacks.argmax(axis=1), -1)
        ruled_out = [
            RuledOut(
                ReasonCode.ALLOC,
                names[r],
                int((which == r).sum()),
                wanted=int(limit[r]),
                largest=max(0, int(free[which == r, r].max())),
            )
            for r in np.unique(which[which >= 0]).tolist()
        ]
        others = int((which < 0).sum())
        if others or not ruled_out:
            ruled_out.append(RuledOut(ReasonCode.ALLOC, "", others))
        whys.append(
            Why(
                tasks=tuple(zip(jobs.tolist(), numbers.tolist(), strict=True)),
                machines=len(state.machines),
                ruled_out=tuple(ruled_out),
                ahead=ahead,
                code=ReasonCode.ALLOC.value,
                revision=state.revision,
            )
        )
    return whys
