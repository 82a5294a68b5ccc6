"""Places tasks into allocs (§2.4). Successive tasks get successive allocs of the alloc set. Allocs without enough free
capacity are skipped.
"""

from __future__ import annotations

from typing import NamedTuple

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import compiled, constant, kernel
from scheduling.core.kernels.devices import pick_devices, share_of
from scheduling.core.vocabulary.kernel_arrays import Ints, Ints32

_COMES, _GOES = constant(1), constant(-1)


class Allocs(NamedTuple):
    """The running allocs, sorted by alloc set and id. `free` [A, R]: the free capacity of each alloc. `machine` [A]:
    the slot of the alloc's machine. Two arrays have one column per machine slot: `ports_free` [M] counts the free
    ports, and `there` [B, M] counts the tasks of each of the B jobs that limit their tasks per machine.
    """

    free: Ints  # [A, R]
    devices: Ints32  # [A, D] milli-units free of the accelerators that it holds
    machine: Ints
    ports_free: Ints  # [M]
    there: Ints32  # [B, M] tasks of each bounded job on each machine


class InnerTasks(NamedTuple):
    """The pending tasks in queue order. `kind`: the task's row in `Kinds`. Tasks of one kind have the same alloc set
    and the same requirement. If a job limits its tasks per machine, its tasks have a kind of their own. `job`: the slot
    of the task's job. `left`: by slot of a job, how many further tasks may be placed (`max_running`).
    """

    kind: Ints
    gang_end: Ints  # as in `Queue`
    avoid_from: Ints  # rows of `avoid`: machines the task crashed on
    avoid_to: Ints
    avoid: Ints
    job: Ints
    left: Ints


class Kinds(NamedTuple):
    """The kinds of tasks. `first`, `until`: the range of rows in `Allocs` with the allocs of the kind's alloc set.
    `next`: the index in this range at which the next search begins. `full`: 1 if no alloc of the set has enough
    capacity for one more task of the kind.
    """

    limit: Ints  # [K, R]
    first: Ints
    until: Ints
    next: Ints
    full: Ints
    bound: Ints  # tasks of the job per machine at most, 0 any
    job: Ints  # row of `there`, -1: not bounded


@compiled
def _holds(allocs: Allocs, inner: InnerTasks, kinds: Kinds, i: int, k: int, a: int) -> bool:
    for r in range(kinds.limit.shape[1]):
        if r != PORTS and allocs.free[a, r] < kinds.limit[k, r]:
            return False
    m = allocs.machine[a]
    if allocs.ports_free[m] < kinds.limit[k, PORTS]:
        return False
    if kinds.job[k] >= 0 and allocs.there[kinds.job[k], m] >= kinds.bound[k]:
        return False
    for j in range(inner.avoid_from[i], inner.avoid_to[i]):
        if inner.avoid[j] == m:
            return False
    return bool(kinds.limit[k, ACCELERATORS] == 0 or pick_devices(allocs.devices, a, kinds.limit[k, ACCELERATORS]) >= 0)


@compiled
def _hold(allocs: Allocs, kinds: Kinds, k: int, a: int, mask: int, by: int) -> None:
    """Subtract the resources of a task of kind `k` from the free capacity of the alloc in row `a` (`by` = 1), or add
    them again (`by` = -1). `mask`: bit mask of the accelerators that the task uses.
    """
    m = allocs.machine[a]
    for r in range(kinds.limit.shape[1]):
        allocs.free[a, r] -= by * kinds.limit[k, r]
    allocs.ports_free[m] -= by * kinds.limit[k, PORTS]
    if kinds.job[k] >= 0:
        allocs.there[kinds.job[k], m] += by
    for d in range(allocs.devices.shape[1]):
        if mask >> d & 1:
            allocs.devices[a, d] -= by * share_of(kinds.limit[k, ACCELERATORS])


@compiled
def _find(allocs: Allocs, inner: InnerTasks, kinds: Kinds, i: int) -> int:
    """Return the row of an alloc that can hold the pending task `i`, or -1 if no alloc of the alloc set can hold it."""
    k = inner.kind[i]
    number = kinds.until[k] - kinds.first[k]
    if kinds.full[k] != 0:
        return -1
    for step in range(number):
        a = kinds.first[k] + (kinds.next[k] + step) % number
        if _holds(allocs, inner, kinds, i, k, a):
            kinds.next[k] = (kinds.next[k] + step + 1) % number
            return int(a)
    if inner.avoid_from[i] == inner.avoid_to[i]:
        kinds.full[k] = 1
    return -1


@kernel
def place_inside(allocs: Allocs, inner: InnerTasks, kinds: Kinds, most: int, alloc: Ints, devices: Ints) -> None:
    """Place tasks into allocs, in order, until about `most` of the N tasks are placed. The kernel writes into `alloc`
    [N] the row of the alloc chosen for each task, -1 if none fits, -2 if the task was not tried, or -3 if as many tasks
    of its job run as may run. It writes into `devices` [N] the bit mask of the accelerators that the task gets.
    """
    gang = -1
    gang_end = 0
    failed = False
    done = 0
    for i in range(inner.kind.shape[0]):
        if i >= gang_end:
            gang, failed = -1, False
            if inner.gang_end[i] > 0:
                gang, gang_end = i, inner.gang_end[i]
        if done >= most and gang in (-1, i):
            for j in range(i, inner.kind.shape[0]):
                alloc[j] = -2
            break
        alloc[i] = -1
        if failed:
            continue
        if inner.left[inner.job[i]] <= 0:
            alloc[i] = -3
            continue
        k = inner.kind[i]
        a = _find(allocs, inner, kinds, i)
        if a >= 0:
            mask = _COMES - _COMES
            if kinds.limit[k, ACCELERATORS] > 0:
                mask = pick_devices(allocs.devices, a, kinds.limit[k, ACCELERATORS])
            _hold(allocs, kinds, k, a, mask, _COMES)
            alloc[i], devices[i] = a, mask
            inner.left[inner.job[i]] -= 1
            done += 1
        elif gang >= 0:
            failed = True
            done -= i - gang
            kinds.full[k] = 0
            for j in range(gang, i):
                _hold(allocs, kinds, inner.kind[j], alloc[j], devices[j], _GOES)
                kinds.full[inner.kind[j]] = 0
                inner.left[inner.job[j]] += 1
                alloc[j] = -1
