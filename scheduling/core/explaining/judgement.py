"""Finds out what prevents a class of equal tasks from running on each machine, as arrays. The explanations are made
from these arrays (§2.6).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, NAMES, PORTS
from scheduling.core.cell.pools import PoolRule
from scheduling.core.cell.state import CellState
from scheduling.core.kernels.cores import judge_cores
from scheduling.core.kernels.obstacles import (
    ABLE,
    OPEN,
    SUM_ABLE,
    SUM_BY_RESERVATION,
    SUM_EVICTABLE,
    SUM_HELD,
    device_room,
    judge,
)
from scheduling.core.placing.closed_machines import ClosedMachines
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats, Ints, Ints32, Judged, Tables
from scheduling.core.vocabulary.reasons import WHOLE_CORES, Lack, Nearest, Preemption, ReasonCode, Reclamation, RuledOut
from scheduling.core.vocabulary.requirement import Constraint, Requirement, spelled

# Sets of hard constraints whose failures are kept. Each takes two arrays over all machines.
_MOST_FAILING = 64
BOUNDS = (ReasonCode.MAX_PER_MACHINE, ReasonCode.MAX_PER_RACK, ReasonCode.MAX_PER_POWER_DOMAIN)
# How far a reason is from the request: what stands in the way on machines that it asks for comes first.
_LEADING = (
    (ReasonCode.NO_SUCH_RESOURCE,),
    (ReasonCode.BOOKED,),
    (ReasonCode.GANG,),
    (ReasonCode.RESOURCE, ReasonCode.PORTS, *BOUNDS, ReasonCode.CRASHED_PAIR, ReasonCode.CORES),
    (ReasonCode.MAINTENANCE,),
    (ReasonCode.MACHINE_STATE,),
    (ReasonCode.CONSTRAINT, ReasonCode.OUTSIDE_POOL, ReasonCode.DEDICATED_POOL),
)


@dataclass(frozen=True, slots=True, eq=False)
class Maintenance:
    """The maintenance windows that exclude machines. All arrays list the machines in the order of `Judgement.order`.

    `excludes` [N]: whether a window closes the machine to the task, or its drain for a window does. `ends` [N]: when
    the last window that excludes the machine ends, in seconds since the epoch; 0 if none does. `begins` [N]: when the
    first planned window of the machine begins; inf if it has none, or is not up.
    """

    excludes: Bools
    ends: Floats
    begins: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """The reasons why a task of one class (a set of equal tasks) does not fit on each of N machines. All arrays list
    the machines in the same order. R is the number of resources.

    `order` [N]: the slots of the machines. `rank` [N]: the position that each machine would have if the machines were
    sorted by id. `left` [R, N]: the capacity of each resource that is free after preemption. For accelerators, it is
    instead the amount that one task of the class can get. `failures` [N]: how many hard constraints of the task the
    machine does not satisfy.
    """

    state: CellState
    requirement: Requirement
    demands: tuple[Constraint, ...]
    order: Ints32
    rank: Ints32
    rack: Ints32
    power: Ints32
    left: Ints
    failures: Ints32
    judged: Judged
    cores: int  # as in `Groups`
    largest: Ints  # [R] the largest capacity of a machine
    closest_open: int  # position of the machine that is closest to fitting the task, of those that are open; -1 none
    maintenance: Maintenance | None  # None: the cell has no maintenance windows

    @property
    def never(self) -> bool:
        """Return whether no machine could hold a task of the class, even if the machine were empty."""
        return not self.judged.sums[SUM_ABLE]

    @property
    def axis(self) -> int:
        return self.state.axis

    @property
    def names(self) -> tuple[str, ...]:
        return (*NAMES, *self.state.extra_resources)

    @property
    def able(self) -> Bools:
        """Return N booleans: whether each machine could hold a task of the class if it were empty. The answer may be
        true for machines that are down.
        """
        able: Bools = (self.judged.flags & ABLE) != 0
        return able

    @property
    def open(self) -> Bools:
        """Return N booleans: whether each machine is up, and the task has not crashed there recently."""
        is_open: Bools = (self.judged.flags & OPEN) != 0
        return is_open

    @property
    def bounds(self) -> tuple[int, int, int]:
        wanted = self.requirement
        return (wanted.max_per_machine, wanted.max_per_rack, wanted.max_per_power_domain)

    def resource(self, r: int) -> int:
        """Return the code that `Judged` uses for the obstacle "too little of resource `r`"."""
        return len(self.demands) + 1 + r

    def bound(self, kind: int) -> int:
        """Return the code that `Judged` uses for the obstacle "the job already has its maximum number of tasks here".
        `kind` says what the maximum is for: 0 for a machine, 1 for a rack, 2 for a power domain.
        """
        return len(self.demands) + self.axis + 1 + kind

    def absent(self) -> tuple[RuledOut, ...]:
        """Return the requested resources that no machine of the cell has."""
        return tuple(
            RuledOut(ReasonCode.NO_SUCH_RESOURCE, self.names[r], len(self.order), wanted=want)
            for r, want in enumerate(self.requirement.limit)
            if want and not self.largest[r]
        )

    def ruled_out(self, booked: int = 0) -> tuple[RuledOut, ...]:
        """Return each reason with the number of machines that it excludes. `booked`: the number of machines on which a
        task fits, but whose free capacity is booked.

        If no machine has a requested resource, return only this reason.
        """
        if len(self.order) == 0:
            return (RuledOut(ReasonCode.NO_MACHINES, "", 0),)
        if absent := self.absent():
            return absent
        fell, largest = self.judged.fell.tolist(), self.judged.largest.tolist()
        found = [_unmet(constraint, fell[1 + number]) for number, constraint in enumerate(self.demands)]
        windows = self.in_maintenance()
        closed = int(np.count_nonzero(windows))
        found.append(RuledOut(ReasonCode.MACHINE_STATE, "", fell[1 + len(self.demands)] - closed))
        if closed and self.maintenance is not None:
            until = float(self.maintenance.ends[windows].min())
            found.append(RuledOut(ReasonCode.MAINTENANCE, "", closed, until=until))
        for r in range(self.axis):
            found.append(
                RuledOut(
                    ReasonCode.PORTS if r == PORTS else ReasonCode.RESOURCE,
                    self.names[r],
                    fell[1 + self.resource(r)],
                    wanted=self.requirement.limit[r],
                    largest=largest[1 + self.resource(r)],
                )
            )
        found += [
            RuledOut(code, "", fell[1 + self.bound(kind)], wanted=self.bounds[kind]) for kind, code in enumerate(BOUNDS)
        ]
        found.insert(0, RuledOut(ReasonCode.CRASHED_PAIR, "", fell[1 + self.bound(3)]))
        most = largest[1 + self.bound(4)]
        found.append(RuledOut(ReasonCode.CORES, "", fell[1 + self.bound(4)], wanted=max(0, self.cores), largest=most))
        found.append(RuledOut(ReasonCode.BOOKED, "", booked))
        # One task would fit. What is pending nevertheless starts together or not at all.
        found.append(RuledOut(ReasonCode.GANG, "", fell[0] - booked))
        return tuple(one for one in found if one.machines)

    def in_maintenance(self) -> Bools:
        """Return N booleans: whether a maintenance window is the first reason that excludes the machine."""
        if self.maintenance is None:
            return np.zeros(len(self.order), dtype=np.bool_)
        result: Bools = self.maintenance.excludes & (self.judged.first == len(self.demands))
        return result

    def nearest(self) -> Nearest | None:
        """Return the machine on which the least is missing for the task. Only machines that are up are compared. Among
        equal machines, return the one with the lowest id.
        """
        i = self.closest_open
        if i < 0:
            return None
        lacks = tuple(
            Lack(self.names[r], max(0, int(self.left[r, i])), want - max(0, int(self.left[r, i])))
            for r, want in enumerate(self.requirement.limit)
            if self.left[r, i] < want and want
        )
        if self.judged.few[i]:
            most = min(int(self.judged.cores[i]), max(0, self.cores - 1))
            lacks += (Lack(WHOLE_CORES, most, max(1, self.cores) - most),)
        return Nearest(
            machine_id=int(self.state.machines.id[self.order[i]]),
            lacks=lacks,
            fails=self.failing(i),
            bounds=tuple(code for kind, code in enumerate(BOUNDS) if self.bound_reached(i, kind)),
        )

    def closest(self, among: Bools) -> int | None:
        """Return the position of the machine on which the least is missing for the task. Only machines for which
        `among` is true are compared. Among equal machines, return the one with the lowest id.
        """
        if not among.any():
            return None
        distance = np.where(among, self.judged.distance, np.inf)
        where = np.flatnonzero(distance == distance.min())
        return int(where[np.argmin(self.rank[where])])

    def failing(self, i: int) -> tuple[Constraint, ...]:
        """Return the hard constraints that the machine at position `i` does not satisfy."""
        if not self.failures[i]:
            return ()
        attributes, m = self.state.machines.attributes, self.order[i]
        return tuple(constraint for constraint in self.demands if not attributes.mask(constraint)[m])

    def bound_reached(self, i: int, kind: int) -> bool:
        return 0 < self.bounds[kind] <= int(self.judged.there[i, kind])

    def preemption(self) -> Preemption:
        sums = self.judged.sums
        return Preemption(not_enough=int(sums[SUM_EVICTABLE]), held=int(sums[SUM_HELD]))

    def reclamation(self, by_limit: bool) -> Reclamation:
        """Return on how many machines the task would fit if it were placed by reservation (§5.5). `by_limit`: whether
        the task is placed by its limit. If it is not, return an empty result.
        """
        if not by_limit:
            return Reclamation()
        return Reclamation(int(self.judged.sums[SUM_BY_RESERVATION]))


def _unmet(constraint: Constraint, machines: int) -> RuledOut:
    """Return the reason that `machines` machines do not satisfy a constraint of the job, or a rule of a pool."""
    if not isinstance(constraint, PoolRule):
        return RuledOut(ReasonCode.CONSTRAINT, spelled(constraint), machines)
    code = ReasonCode.DEDICATED_POOL if constraint.excludes else ReasonCode.OUTSIDE_POOL
    return RuledOut(code, constraint.value, machines)


class Judge:
    """Finds out, for each class of equal pending tasks, why the pass did not place these tasks.

    A returned `Judgement` (the reasons on each machine) is valid only until the next call of `judgement`, which uses
    the same arrays again.
    """

    def __init__(self, state: CellState, tables: Tables, closing: ClosedMachines | None = None) -> None:
        machines = tables.machines
        number = len(machines.slot)
        self._state, self._tables, self._closing = state, tables, closing
        covered, ends = state.calendar.drained(state.machines)
        self._drained = covered[machines.slot], ends[machines.slot]
        self._capacity: Ints = np.ascontiguousarray(machines.capacity.T)
        self._largest: Ints = self._capacity.max(axis=1, initial=0)
        self._spare: Ints | None = None
        self._failing: dict[tuple[tuple[Constraint, ...], int], tuple[Ints32, Ints32, Ints]] = {}
        self._cores: dict[tuple[int, int], tuple[Bools, Ints32]] = {}
        self._scratch = Judged(
            constraints=0,
            fell=np.zeros(0, dtype=np.int64),
            largest=np.zeros(0, dtype=np.int64),
            alone=np.zeros(0, dtype=np.int64),
            alone_largest=np.zeros(0, dtype=np.int64),
            alone_at_largest=np.zeros(0, dtype=np.int64),
            sums=np.zeros(0, dtype=np.int64),
            first=np.empty(number, dtype=np.int32),
            only=np.empty(number, dtype=np.int32),
            lacking=np.empty(number, dtype=np.int32),
            distance=np.empty(number, dtype=np.float64),
            few=np.zeros(number, dtype=np.bool_),
            cores=np.zeros(number, dtype=np.int32),
            there=np.zeros((number, 3), dtype=np.int32),
            flags=np.empty(number, dtype=np.int8),
        )

    def judgement(self, requirement: Requirement, g: int) -> Judgement:
        """Return, for each machine, the reasons why a task of group `g` does not fit there after the pass.
        `requirement`: what each task of the group requests.
        """
        tables, machines, groups = self._tables, self._tables.machines, self._tables.groups
        closed = 0 if self._closing is None else int(self._closing.closed[g])
        if closed and self._closing is not None:
            machines = machines._replace(up=machines.up & ~self._closing.planned.covered(closed)[machines.slot])
        left, direct = tables.levels.left[groups.level[g]], tables.levels.left[groups.direct[g]]
        if want := requirement.limit[ACCELERATORS]:
            left, direct = left.copy(), direct.copy()
            device_room(machines, tables.running, want, int(groups.ceiling[g]), left[ACCELERATORS])
            device_room(machines, tables.running, want, 0, direct[ACCELERATORS])
        demands = tuple(constraint for constraint in requirement.constraints if constraint.hard)
        excluded, failures, fell = self._excluded(demands, machines.up, closed)
        obstacles = len(demands) + self._state.axis + 6
        judged = self._scratch._replace(
            constraints=len(demands),
            fell=np.zeros(obstacles + 1, dtype=np.int64),
            largest=np.zeros(obstacles + 1, dtype=np.int64),
            alone=np.zeros(obstacles, dtype=np.int64),
            alone_largest=np.zeros(obstacles, dtype=np.int64),
            alone_at_largest=np.zeros(obstacles, dtype=np.int64),
            sums=np.zeros(4, dtype=np.int64),
        )
        judged.fell[1 : 1 + len(fell)] = fell
        cores = int(groups.cores[g])
        if cores >= 0:
            few, most = self._cores_of(cores, int(groups.ceiling[g]))
            judged = judged._replace(few=few, cores=most)
        spare = self._unreserved() if groups.by_limit[g] else self._capacity[:0]
        closest = judge(
            machines, self._capacity, spare, left, direct, groups, g, tables.counts, excluded, failures, judged
        )
        return Judgement(
            self._state,
            requirement,
            demands,
            machines.slot,
            machines.rank,
            machines.rack,
            machines.power,
            left,
            failures,
            judged,
            cores,
            self._largest,
            closest,
            self._maintenance(closed),
        )

    def _maintenance(self, closed: int) -> Maintenance | None:
        """Return the windows that exclude machines. `closed`: how many of the planned windows do, the first ones."""
        if not self._state.calendar.windows:
            return None
        slot, up = self._tables.machines.slot, self._tables.machines.up
        covered, until = self._drained
        drained: Bools = covered & ~up
        ends: Floats = np.where(drained, until, 0.0)
        begins: Floats = np.full(len(slot), np.inf)
        if self._closing is not None:
            planned = self._closing.planned
            covers = planned.covers[:, slot]
            begins = np.where(covers & up, planned.starts[:, None], np.inf).min(axis=0, initial=np.inf)
            last = np.where(covers[:closed], planned.ends[:closed, None], 0.0).max(axis=0, initial=0.0)
            ends = np.maximum(ends, last)
        return Maintenance(ends > 0.0, ends, begins)

    def _excluded(self, demands: tuple[Constraint, ...], up: Bools, closed: int) -> tuple[Ints32, Ints32, Ints]:
        """Return three arrays about the hard constraints `demands`. `up` [P]: which machines may receive tasks.
        `closed`: how many maintenance windows `up` considers.

        The first contains one obstacle per machine, as a code of `Judged`: the first constraint that the machine does
        not satisfy. If it satisfies all of them, the code says that the machine is not up, or is -1 if it is up. The
        second contains the number of constraints that fail on each machine. The third counts how often each obstacle
        occurs in the first.
        """
        if (demands, closed) not in self._failing:
            if len(self._failing) >= _MOST_FAILING:
                self._failing.clear()
            machines = self._tables.machines
            excluded: Ints32 = np.where(up, -1, len(demands)).astype(np.int32)
            failures: Ints32 = np.zeros(len(machines.slot), dtype=np.int32)
            for index, constraint in reversed(list(enumerate(demands))):
                fails = ~self._state.machines.attributes.mask(constraint)[machines.slot]
                excluded[fails] = index
                failures += fails
            fell = np.bincount(excluded + 1, minlength=len(demands) + 2)[1:]
            self._failing[demands, closed] = excluded, failures, fell
        return self._failing[demands, closed]

    def _cores_of(self, cores: int, ceiling: int) -> tuple[Bools, Ints32]:
        """Return two arrays over the machines for tasks that ask for `cores` whole cores and may preempt priorities
        below `ceiling`: whether the machine has too few cores, and the largest number of cores that one task could get.
        """
        if (cores, ceiling) not in self._cores:
            if len(self._cores) >= _MOST_FAILING:
                self._cores.clear()
            machines = self._tables.machines
            few: Bools = np.empty(len(machines.slot), dtype=np.bool_)
            most: Ints32 = np.empty(len(machines.slot), dtype=np.int32)
            judge_cores(machines, self._tables.running, cores, ceiling, few, most)
            self._cores[cores, ceiling] = few, most
        return self._cores[cores, ceiling]

    def _unreserved(self) -> Ints:
        """Return, per resource and machine, the capacity that no reservation holds (§5.5): int64[R, P]."""
        if self._spare is None:
            self._spare = self._capacity - self._tables.machines.reserved.T
        return self._spare


def leading(ruled_out: tuple[RuledOut, ...]) -> str:
    """Return the code of the main reason. The kinds of reasons have a fixed order of importance. The main reason is of
    the most important kind that occurs. Among reasons of this kind, it is the one that excludes most machines.
    """
    for codes in _LEADING:
        found = [one for one in ruled_out if one.code in codes]
        if found:
            return max(found, key=lambda one: one.machines).code.value
    return ruled_out[0].code.value if ruled_out else ""
