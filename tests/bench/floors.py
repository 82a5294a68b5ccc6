"""Lower bounds for compaction: the smallest number of machines that could hold a cell's work, for any scheduler.

A bound considers a set of hard constraints, and the tasks whose constraints are in the set. Only machines that satisfy
one of these constraints can hold these tasks. Together, these machines need the CPU and the RAM that the tasks request.
A job with at most one task per machine needs as many machines as it has tasks. In the bench some tasks may stay
pending, so a bound leaves out the largest tasks. The floor is the largest bound over all sets and resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.cell.attributes import holds
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Constraint, Requirement
from tests.bench.cells import Workload

Demand = tuple[Constraint, ...]


def floor(workload: Workload, machines: Sequence[events.MachineSet], *, may_wait: int = 0) -> int:
    """Return a lower bound of how many of the `machines`, taken in this order, the work needs.

    `may_wait`: number of tasks that may stay pending. The result is one more than all machines if the work cannot fit.
    """
    capacity = np.array([(m.capacity[CPU], m.capacity[RAM]) for m in machines], dtype=np.float64)
    allowed = _allowed(workload, machines)
    sizes = _sizes(workload)
    most = 0
    for demands in _sets(list(sizes)):
        usable = np.zeros(len(machines), dtype=np.bool_)
        for demand in demands:
            usable |= allowed[demand]
        wanted = np.concatenate([sizes[demand] for demand in demands])
        for r in range(2):
            needed = np.sort(wanted[:, r])[: max(0, len(wanted) - may_wait)].sum()
            most = max(most, _first_with(np.cumsum(np.where(usable, capacity[:, r], 0.0)), needed))
    for job in workload.jobs:
        group = max(job.groups, key=lambda one: one.size)
        if group.requirement.max_per_machine > 0:
            usable = allowed[hard(group.requirement)] & (capacity[:, 0] >= group.requirement.limit[CPU])
            usable &= capacity[:, 1] >= group.requirement.limit[RAM]
            number = np.cumsum(usable * group.requirement.max_per_machine)
            most = max(most, _first_with(number, group.size - may_wait))
    return most


def must_wait(workload: Workload, machines: Sequence[events.MachineSet]) -> int:
    """Return a lower bound of how many tasks stay pending if all `machines` are used."""
    low, high = 0, workload.tasks
    while low < high:
        middle = (low + high) // 2
        if floor(workload, machines, may_wait=middle) <= len(machines):
            high = middle
        else:
            low = middle + 1
    return low


def hard(requirement: Requirement) -> Demand:
    """Return the hard constraints of a requirement."""
    return tuple(one for one in requirement.constraints if one.hard)


def _first_with(reached: NDArray[np.float64], needed: float) -> int:
    """Return how many leading elements are needed until the running sum in `reached` is at least `needed`."""
    return int(np.searchsorted(reached, needed)) + 1 if needed > 0 else 0


def _allowed(workload: Workload, machines: Sequence[events.MachineSet]) -> dict[Demand, NDArray[np.bool_]]:
    demands = {hard(group.requirement) for job in workload.jobs for group in job.groups}
    facts = [{"platform": m.platform, "rack": m.rack, **m.attributes} for m in machines]
    return {
        demand: np.array([all(holds(c, own.get(c.attribute)) for c in demand) for own in facts], dtype=np.bool_)
        for demand in demands
    }


def _sizes(workload: Workload) -> dict[Demand, NDArray[np.float64]]:
    """Return the CPU and RAM of each task, as rows of an array [N, 2], by the hard constraints of the tasks."""
    rows: dict[Demand, list[NDArray[np.float64]]] = defaultdict(list)
    for job in workload.jobs:
        for group in job.groups:
            limit = np.array([group.requirement.limit[CPU], group.requirement.limit[RAM]], dtype=np.float64)
            rows[hard(group.requirement)].append(np.repeat(limit[None], group.size, axis=0))
    return {demand: np.concatenate(own) for demand, own in rows.items()}


def _sets(demands: list[Demand]) -> Iterator[tuple[Demand, ...]]:
    """Yield every set of hard constraints, and finally all constraints together with the tasks that have none."""
    constrained = [demand for demand in demands if demand]
    for number in range(1, len(constrained) + 1):
        yield from combinations(constrained, number)
    yield tuple(demands)
