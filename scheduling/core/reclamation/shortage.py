"""Choice of the tasks to evict from machines that are short of memory or disk (§5.5, §6.2). Pure.

Estimates of usage may be wrong. The tasks of a machine can then use more RAM or disk than it has, although each task is
within its limit. Tasks above their own limit are evicted first, whatever their priority. Then non-prod tasks are
evicted, the lowest priority first. Prod tasks within their limits are never evicted. If CPU is short, tasks are
throttled instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quota.vocabulary.resources import DISK, RAM
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints

INCOMPRESSIBLE = (RAM, DISK)


@dataclass(frozen=True, slots=True, eq=False)
class Occupants:
    """N tasks whose usage was measured. `machine` [N]: the slot of the machine of each task. `usage`, `limit` [N, R']:
    the amounts of the first R' resources. R' is large enough to include CPU, RAM and disk.
    """

    task_id: Ints
    machine: Ints
    priority: Ints
    prod: Bools
    usage: Ints
    limit: Ints


@dataclass(frozen=True, slots=True)
class ShortageVictim:
    """A task to evict. `position`: the index of the task in `Occupants`. `resource`: the index of the resource of which
    the machine has too little. `over`: whether the task exceeds its own limit.
    """

    position: int
    resource: int
    over: bool


@dataclass(frozen=True, slots=True)
class MachineShortage:
    """A shortage of memory or disk on one machine. `machine`: the slot of the machine. `used`: how many bytes its tasks
    use before any eviction. `bound`: how many bytes they may use.

    `left_short`: by how many bytes the usage will still exceed `bound` after the `victims` are evicted.
    """

    machine: int
    resource: int
    used: int
    bound: int
    victims: tuple[ShortageVictim, ...]
    left_short: int


def relieve(occupants: Occupants, capacity: Ints, *, share: float) -> list[MachineShortage]:
    """Return the machines whose tasks use more than `share` of the capacity of RAM or disk, with the tasks to evict
    there. `capacity` [M, R]: the capacity of each machine.

    No more tasks are evicted than are needed. The machines are sorted by slot. Raises `ValueError` if `share` is not
    above 0.
    """
    if share <= 0:
        raise ValueError(f"share is {share:g}; give a share of the capacity above 0")
    bounds = (capacity * share).astype(np.int64)
    used = np.zeros((len(capacity), max(INCOMPRESSIBLE) + 1), dtype=np.int64)
    for resource in INCOMPRESSIBLE:
        np.add.at(used[:, resource], occupants.machine, occupants.usage[:, resource])
    columns = list(INCOMPRESSIBLE)
    short = np.flatnonzero((used[:, columns] > bounds[:, columns]).any(axis=1))
    if not len(short):
        return []
    order = np.argsort(occupants.machine, kind="stable")
    first = np.searchsorted(occupants.machine[order], short)
    last = np.searchsorted(occupants.machine[order], short, side="right")
    result = []
    for machine, a, b in zip(short.tolist(), first, last, strict=True):
        result += _relieve(occupants, order[a:b], machine, used[machine], bounds[machine])
    return result


def _relieve(occupants: Occupants, there: Ints, machine: int, used: Ints, bound: Ints) -> list[MachineShortage]:
    excess = {r: int(used[r] - bound[r]) for r in INCOMPRESSIBLE if used[r] > bound[r]}
    leaving: dict[int, int] = {}  # position -> what it leaves for
    for resource in excess:
        candidates = [int(p) for p in there if int(p) not in leaving and _may_leave(occupants, int(p), resource)]
        for position in sorted(candidates, key=lambda p: _rank(occupants, p, resource)):
            if _left(occupants, leaving, resource, excess) <= 0:
                break
            leaving[position] = resource
    for position in reversed(list(leaving)):
        others = {p: resource for p, resource in leaving.items() if p != position}
        if all(_left(occupants, others, r, excess) <= max(0, _left(occupants, leaving, r, excess)) for r in excess):
            leaving = others
    return [
        MachineShortage(
            machine,
            resource,
            int(used[resource]),
            int(bound[resource]),
            tuple(ShortageVictim(p, r, over=_over(occupants, p, r)) for p, r in leaving.items() if r == resource),
            left_short=max(0, _left(occupants, leaving, resource, excess)),
        )
        for resource in excess
    ]


def _left(occupants: Occupants, leaving: dict[int, int], resource: int, excess: dict[int, int]) -> int:
    """Return how many bytes of `resource` are still used too much after some tasks are evicted; negative if none are.
    `leaving`: the positions of these tasks in `occupants` (the keys). `excess`: by resource, how many bytes are used
    too much before the evictions.
    """
    return excess[resource] - int(occupants.usage[list(leaving), resource].sum())


def _may_leave(occupants: Occupants, position: int, resource: int) -> bool:
    if occupants.usage[position, resource] == 0:
        return False
    return _over(occupants, position, resource) or not occupants.prod[position]


def _over(occupants: Occupants, position: int, resource: int) -> bool:
    return bool(occupants.usage[position, resource] > occupants.limit[position, resource] > 0)


def _rank(occupants: Occupants, position: int, resource: int) -> tuple[bool, int, int, int]:
    """Return the sort key of a task for eviction: first tasks over their limit, then the lowest priority, then the
    largest usage, then the id.
    """
    return (
        not _over(occupants, position, resource),
        int(occupants.priority[position]),
        -int(occupants.usage[position, resource]),
        int(occupants.task_id[position]),
    )
