"""A cache that passes share. With this cache, the time of a pass depends on the number of changes, not on the cell's
size (§3.4).

    CellState ── machines that changed since ──► PassCache.follow ──► arrays of machines, free capacity by level

The cache is computed only from the state, so a pass with an empty cache makes the same decisions. The arrays contain
the machines in the order in which each search for a place examines them. The order is random, but the same for all
passes. Neighbours in this order are usually in different racks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.core.cell.installed import Packages
from scheduling.core.cell.machines import UP, MachineTable
from scheduling.core.cell.pools import PoolRule
from scheduling.core.cell.state import CellState
from scheduling.core.kernels.free_on_machines import count_room, find_most
from scheduling.core.placing.equivalence_classes import GroupedQueue, Level
from scheduling.core.placing.reserved_cores import Held
from scheduling.core.placing.total_free_capacity import CapacitySums
from scheduling.core.vocabulary.kernel_arrays import (
    SKIPPED,
    Bools,
    Floats,
    Ints,
    Ints32,
    Levels,
    MachineArrays,
    Running,
    Tables,
)
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Constraint

# Levels that no group requests now are kept up to this number.
MOST_LEVELS = 24
# If there are more results of constraints, they are deleted. Each is an array over all machines.
MOST_MASKS = 256


# Number of machines whose free capacity is counted at once.
COUNTED = 1024
# Number of machines with most of a class' packages that are tried before the walk finds others.
MOST_NEAR = 512
# The share of installed packages that a machine of a preferred pool counts with at least, so that it is offered.
_OFFERED = 1e-9
_NO_MACHINES: Ints = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class Decision:
    """The decision of a pass, and the arrays from which explanations are made. A decision is valid until the state
    changes. `changes`: the value of `state.changes` when the pass ran. `until`: the time at which further tasks may be
    placed, because their `start_after` has come, or at which a booked gang starts.
    """

    state: CellState
    changes: int
    policy: Policy
    until: float
    sorting: GroupedQueue
    tables: Tables
    plan: Plan  # without the explanations of `sorting`

    def holds(self, state: CellState, policy: Policy, now: float) -> bool:
        """Return whether a pass over this state and policy at the time `now` would make the same decision again. If a
        task crashed recently, return False, because the decision then depends on the time.
        """
        same = self.state is state and self.changes == state.changes and self.policy == policy
        return same and now < self.until and not state.crashed


class PassCache:
    """The data that a scheduler keeps between its passes over one cell state: arrays of machines, the free capacity of
    the machines, and which machines satisfy each constraint. Call `follow` before each pass. After the pass, call
    `invalidate` for the machines on which the pass placed tasks. `decision`: the decision of the last pass. `sums`: the
    free capacity of all machines together.
    """

    machines: MachineArrays
    levels: Levels
    position: Ints32  # by slot of the machine, -1: none there

    def __init__(self) -> None:
        self.decision: Decision | None = None
        self.sums = CapacitySums()
        self._state: CellState | None = None
        self._layout = -1
        self._tick = -1
        self._known: list[Level] = []
        self._cores_held = False
        self._spoiled: Bools = np.zeros(0, dtype=np.bool_)  # by position
        self._allowed: dict[tuple[Constraint, ...], Bools] = {}
        self._liking: dict[tuple[Constraint, ...], Floats] = {}
        self._attributes = -1
        self._present: dict[Packages, tuple[Floats, Ints]] = {}
        self._installed = -1

    def follow(self, state: CellState, running: Running, levels: Sequence[Level], asked: Bools) -> dict[Level, int]:
        """Update the cache from the state. For each level (way to count free capacity), return its row in the arrays of
        `self.levels`.

        `asked` [R]: whether any task requests the resource. The free capacity of other resources is not counted.
        """
        table = state.machines
        shape = (table.axis, table.devices.shape[1])
        if (
            self._state is not state
            or self._layout != table.layout
            or (self.machines.capacity.shape[1], self.machines.devices.shape[1]) != shape
        ):
            self._begin(state)
            dirty = np.arange(len(self.machines.slot), dtype=np.int64)
        else:
            changed = self.position[(table.changed > self._tick).nonzero()[0]]
            self._spoiled[changed[changed >= 0]] = True
            dirty = self._spoiled.nonzero()[0]
        self._tick = table.tick
        self._spoiled[:] = False
        self._copy(table, dirty)
        self.machines.version[:] = 0
        if table.attributes.version != self._attributes:
            self._allowed.clear()
            self._liking.clear()
            self._attributes = table.attributes.version
        if table.installed.version != self._installed:
            self._present.clear()
            self._installed = table.installed.version
        for masks in (self._allowed, self._liking, self._present):
            if len(masks) > MOST_MASKS:
                masks.clear()
        self._count(running, dirty, levels, asked)
        return {level: self._known.index(level) for level in levels}

    def hold_cores(self, held: Held | None) -> None:
        """Store how many whole CPU cores are reserved on each machine. If `held` is None, store 0 for each machine."""
        if held is None and not self._cores_held:
            return
        machines, self._cores_held = self.machines, held is not None
        machines.owned[:] = 0 if held is None else held.owned[machines.slot]
        machines.sharing[:] = 0 if held is None else held.sharing[machines.slot]

    def invalidate(self, positions: NDArray[np.int64] | slice) -> None:
        """Mark the machines at `positions`, so that the next pass computes their free capacity again. Marks of other
        machines are removed.
        """
        self._spoiled[:] = False
        self._spoiled[positions] = True

    def allowed(self, demands: tuple[Constraint, ...]) -> Bools:
        """Return an array [P]: whether each of the P machines satisfies all the hard constraints `demands`."""
        known = self._allowed.get(demands)
        if known is None:
            known = np.ones(len(self.machines.slot), dtype=np.bool_)
            for constraint in demands:
                known &= self._mask(constraint)
            self._allowed[demands] = known
        return known

    def liking(self, wishes: tuple[Constraint, ...]) -> Floats:
        """Return an array [P]: for each of the P machines, the total weight of those soft constraints in `wishes` that
        the machine satisfies, as a share of the total weight of all `wishes`. A preferred pool adds its whole weight.
        """
        known = self._liking.get(wishes)
        if known is None:
            own = [one for one in wishes if not isinstance(one, PoolRule)]
            total = sum(constraint.weight for constraint in own) or 1.0
            known = np.zeros(len(self.machines.slot), dtype=np.float64)
            for constraint in own:
                known += constraint.weight / total * self._mask(constraint)
            for rule in wishes:
                if isinstance(rule, PoolRule):
                    known += rule.weight * self._mask(rule)
            self._liking[wishes] = known
        return known

    def present(self, packages: Packages) -> tuple[Floats, Ints]:
        """Return two arrays. The first one contains, for each machine, the share of the bytes of `packages` that is
        installed on this machine. The second one contains the positions of the machines that have any of these
        packages. They are sorted by share, the largest first, and there are at most `MOST_NEAR`.
        """
        known = self._present.get(packages)
        if known is None:
            assert self._state is not None
            installed = self._state.machines.installed.bytes_on(packages, self.machines.slot)
            share = installed / max(1, sum(size for _, size in packages))
            near = np.flatnonzero(installed)
            near = near[np.argsort(-installed[near], kind="stable")[:MOST_NEAR]]
            known = self._present[packages] = share, near.astype(np.int64)
        return known

    def offered(self, packages: Packages, pools: tuple[Constraint, ...]) -> tuple[Floats, Ints]:
        """Return the same as `present`, with the machines of preferred pools before all others. The search offers such
        machines to a task wherever they are in its walk, because a pool may have few of the machines of a cell.
        `pools`: the rules of these pools.
        """
        share, near = self.present(packages) if packages else (np.zeros(len(self.machines.slot)), _NO_MACHINES)
        if not pools:
            return share, near
        mask = np.logical_or.reduce([self._mask(rule) for rule in pools])
        return np.where(mask, np.maximum(share, _OFFERED), share), np.concatenate((np.flatnonzero(mask), near))

    def _mask(self, constraint: Constraint) -> Bools:
        assert self._state is not None
        mask: Bools = self._state.machines.attributes.mask(constraint)[self.machines.slot]
        return mask

    def _begin(self, state: CellState) -> None:
        table = state.machines
        order = table.order
        rank = np.arange(len(order), dtype=np.int32)
        walk = np.argsort(_scattered(table.id[order]), kind="stable")
        number, axis = len(order), table.axis
        self._state, self._layout = state, table.layout
        self._known = []
        self._attributes = self._installed = -1
        slot = order[walk]
        capacity = table.capacity[slot]
        self.position = np.full(len(table.id), -1, dtype=np.int32)
        self.position[slot] = np.arange(number, dtype=np.int32)
        self.machines = MachineArrays(
            slot=slot,
            rank=rank[walk],
            up=np.zeros(number, dtype=np.bool_),
            capacity=capacity,
            share=np.divide(1.0, capacity, out=np.zeros(capacity.shape), where=capacity > 0),
            reserved=np.zeros((number, axis), dtype=np.int64),
            prod_limit=np.zeros((number, axis), dtype=np.int64),
            ports_free=np.zeros(number, dtype=np.int64),
            devices=np.zeros((number, table.devices.shape[1]), dtype=np.int32),
            cores=table.cores[slot],
            owned=np.zeros(number, dtype=np.int32),
            sharing=np.zeros(number, dtype=np.int32),
            rack=table.rack[slot],
            power=table.power[slot],
            head=np.full(number, -1, dtype=np.int32),
            version=np.zeros(number, dtype=np.int32),
        )
        self.levels = _levels([], axis, number)
        self._spoiled = np.zeros(number, dtype=np.bool_)
        self._asked = np.zeros(axis, dtype=np.bool_)
        self._cores_held = False

    def _copy(self, table: MachineTable, dirty: NDArray[np.int64]) -> None:
        machines = self.machines
        slots = machines.slot[dirty]
        machines.up[dirty] = table.status[slots] == UP
        machines.reserved[dirty] = table.reserved[slots]
        machines.prod_limit[dirty] = table.prod_limit[slots]
        machines.ports_free[dirty] = table.ports_free[slots]
        machines.devices[dirty] = table.devices[slots]
        machines.head[dirty] = table.head[slots]

    def _count(self, running: Running, dirty: NDArray[np.int64], levels: Sequence[Level], asked: Bools) -> None:
        machines = self.machines
        axis, number = machines.capacity.shape[1], len(machines.slot)
        before = self.levels
        if (asked & ~self._asked).any():
            self._asked = self._asked | asked
            dirty = np.arange(number, dtype=np.int64)
        missing = [level for level in levels if level not in self._known]
        if len(self._known) + len(missing) > MOST_LEVELS:
            kept = [row for row, level in enumerate(self._known) if level in levels]
            self._known = [self._known[row] for row in kept]
            self.levels = _levels(self._known, axis, number, self.levels.left[kept])
        _count_room(machines, running, self.levels, dirty, self._asked)
        if missing:
            new = _levels(missing, axis, number)
            _count_room(machines, running, new, np.arange(number, dtype=np.int64), self._asked)
            self._known = self._known + missing
            self.levels = _levels(self._known, axis, number, np.concatenate((self.levels.left, new.left)))
        stale = np.full(self.levels.most.shape[2], self.levels is not before, dtype=np.bool_)
        stale[dirty // SKIPPED] = True
        find_most(self.levels, stale.nonzero()[0], self._asked)


def _count_room(
    machines: MachineArrays, running: Running, levels: Levels, positions: NDArray[np.int64], asked: Bools
) -> None:
    sums = np.empty((min(len(positions), COUNTED), len(levels.ceiling), 2, len(asked)), dtype=np.int64)
    for first in range(0, len(positions), COUNTED):
        count_room(machines, running, levels, positions[first : first + COUNTED], asked, sums)


def _levels(known: Sequence[Level], axis: int, number: int, left: NDArray[np.int64] | None = None) -> Levels:
    ceiling = np.array([ceiling for ceiling, _ in known], dtype=np.int64)
    return Levels(
        left=np.zeros((len(known), axis, number), dtype=np.int64) if left is None else left,
        ceiling=ceiling,
        by_limit=np.array([by_limit for _, by_limit in known], dtype=np.bool_),
        ascending=np.argsort(ceiling, kind="stable").astype(np.int32),
        most=np.zeros((len(known), axis, -(-number // SKIPPED)), dtype=np.int64),
    )


def _scattered(ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a pseudo-random number for each id. The same id always has the same number (splitmix64)."""
    x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
