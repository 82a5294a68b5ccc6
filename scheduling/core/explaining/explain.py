"""Explains why tasks are pending: the reason, changes that would help, and the expected start (§2.6). Equal tasks form
a class, which has one explanation.

    pending groups ─► examined now ─ judgement.py ─► obstacles on each machine
                          │            ├─ smallest_changes.py  the smallest changes that would help
                          │            ├─ suggested_limits.py  limits that fit the machines well
                          │            └─ forecast.py          expected start, from tasks that ended recently
                          └─ the others keep their explanation ─► one Why for each class

To explain a class, the `Explainer` examines every machine. With a budget, it explains only a few classes per pass:
those with the oldest explanation. The other classes keep their last explanation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from scheduling.core.booking.run_ends import MARGIN_S
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.fit_times import FitTimes
from scheduling.core.explaining.forecast import Ends, expected_start, openings
from scheduling.core.explaining.judgement import Judge, Judgement, leading
from scheduling.core.explaining.smallest_changes import room_after, smallest_changes
from scheduling.core.explaining.suggested_limits import Platforms, conforming, platforms_of
from scheduling.core.explaining.unplaced_tasks import (
    AheadOf,
    Key,
    TenantsAhead,
    UnplacedGroups,
    left_over,
    smallest_gang,
)
from scheduling.core.kernels.placement import NOT_TRIED
from scheduling.core.placing.closed_machines import START_S
from scheduling.core.placing.equivalence_classes import GroupedQueue, rounded_down
from scheduling.core.vocabulary.kernel_arrays import UNBOOKED, Bools, Groups, Ints, Ints32, Tables
from scheduling.core.vocabulary.plan import Booking
from scheduling.core.vocabulary.reasons import Basis, ExpectedStart, ReasonCode, SuggestedChange, Why
from scheduling.core.vocabulary.requirement import Constraint, split_task_id

# Capacities of machines hardly ever change: kinds are counted again after this, or when a machine joins or leaves.
PLATFORMS_KEPT_S = 30.0
# The advice about a time limit leaves this many seconds to submit the job, and for the report of the task's end.
ADVICE_SLACK_S = 30.0


class ExplainBudget(NamedTuple):
    """Limits on how many classes an `Explainer` examines in one pass, and how often."""

    classes: int = 1
    """Largest number of equivalence classes explained in one pass: first those never explained, then those with the
    oldest explanation."""

    every_s: float = 1.0
    """An explanation newer than this many seconds is not computed again."""


class _Pass(NamedTuple):
    """The values that are the same for all classes of one pass."""

    sorting: GroupedQueue
    groups: Groups
    waiting: UnplacedGroups
    tenants: TenantsAhead
    now: float
    crashed_pair_s: float
    tables: Tables
    bookings: tuple[Booking, ...]
    times: FitTimes


@dataclass(slots=True)
class _Known:
    why: Why
    at: float
    ahead: AheadOf


@dataclass(slots=True, eq=False)
class Explainer:
    """The explanations that a master keeps between passes. Without a `budget`, every class is examined again in each
    pass.

    Use a separate explainer for each `CellState`. `seen`: the tasks that ended recently. Without `seen`, the explainer
    does not estimate when pending tasks will start. `behind`: how many classes of the last pass have no explanation
    yet.
    """

    budget: ExplainBudget | None = None
    seen: Ends | None = None
    behind: int = 0
    _known: dict[Key, _Known] = field(default_factory=dict)
    _hopeless: set[int] = field(default_factory=set)  # groups of this pass that can never be placed
    _sorting: GroupedQueue | None = None  # of the last pass, as the next three
    _left_over: tuple[UnplacedGroups, list[Key]] = field(init=False)
    _result: list[Why] = field(default_factory=list)
    _examining: tuple[Judge, TenantsAhead] | None = None
    _order: Ints32 | None = None
    _platforms: Platforms | None = None
    _platforms_at: float = 0.0
    # Machines of each kind that satisfy constraints and have as many cores: the same for many classes of a pass.
    _satisfying: dict[tuple[tuple[Constraint, ...], int], Ints] = field(default_factory=dict)

    def explain(
        self,
        state: CellState,
        sorting: GroupedQueue,
        tables: Tables,
        *,
        now: float,
        crashed_pair_s: float,
        bookings: tuple[Booking, ...] = (),
    ) -> tuple[Why, ...]:
        """Return one explanation (`Why`) for each class of tasks that the pass left pending, in the order of the queue.
        `now`: seconds since the epoch. `crashed_pair_s`: for how many seconds a task avoids a machine on which it
        crashed. `bookings`: the capacity that the pass has booked for gangs.
        """
        if self.budget is not None and self.budget.classes == 0 and not self._known:
            return ()
        unchanged = self._sorting is sorting
        if not unchanged:
            self._left_over = left_over(state, sorting, tables.placed.machine)
            self._sorting, self._examining = sorting, None
            self._satisfying.clear()
        waiting, keys = self._left_over
        due = self._due(keys, now)
        if unchanged and not due:
            return tuple(self._result)
        if self.budget is None:
            self._platforms = None
        self._hopeless = {
            group
            for group, key in zip(waiting.groups, keys, strict=True)
            if (known := self._known.get(key)) is not None and known.why.never
        }
        if due:
            if self._examining is None:
                self._examining = Judge(state, tables, sorting.maintenance), TenantsAhead(waiting, sorting.jobs)
            judge, tenants = self._examining
            times = FitTimes(state, sorting, tables, now, self.seen)
            shared = _Pass(sorting, tables.groups, waiting, tenants, now, crashed_pair_s, tables, bookings, times)
            for position in due:
                group = waiting.groups[position]
                judged = judge.judgement(sorting.requirements[group], group)
                why = self._examine(judged, shared, position)
                self._known[keys[position]] = _Known(why, now, waiting.ahead(position, tenants))
        if unchanged:
            for position in due:
                self._result[position] = self._why(state, position)
        else:
            self._result = [self._why(state, position) for position in range(len(keys))]
        self.behind = sum(key not in self._known for key in keys)
        if not (tables.placed.machine == NOT_TRIED).any():
            self._known = {key: self._known[key] for key in keys if key in self._known}
        return tuple(self._result)

    def _why(self, state: CellState, position: int) -> Why:
        """Return the explanation of the class at `position`, with the jobs of the class and the places of these jobs in
        the queue.
        """
        waiting, keys = self._left_over
        known = self._known.get(keys[position])
        why = Why(tasks=(), machines=len(state.machines)) if known is None else known.why
        tasks, places = waiting.places(position, {} if known is None else known.ahead)
        return msgspec.structs.replace(why, tasks=tasks, places=places, ahead=waiting.first[position])

    def _due(self, keys: list[Key], now: float) -> list[int]:
        """Return the positions of the classes to examine in this pass."""
        if self.budget is None:
            return list(range(len(keys)))
        never = float("-inf")
        at = [known.at if (known := self._known.get(key)) else never for key in keys]
        due = [position for position, when in enumerate(at) if now - when >= self.budget.every_s]
        return sorted(due, key=lambda position: (at[position], position))[: self.budget.classes]

    def _examine(self, judged: Judgement, shared: _Pass, position: int) -> Why:
        waiting, state = shared.waiting, judged.state
        group = waiting.groups[position]
        by_limit = bool(shared.groups.by_limit[group])
        ruled_out = judged.ruled_out(int(np.count_nonzero(_blocking(judged, shared, group).any(axis=0))))
        code = leading(ruled_out)
        if code == ReasonCode.NO_SUCH_RESOURCE:
            needs = ExpectedStart(Basis.NEEDS_CHANGE)
            return Why(
                tasks=(),
                machines=len(state.machines),
                ruled_out=ruled_out,
                never=True,
                code=code,
                revision=state.revision,
                expected=needs,
            )
        shapes = conforming(judged.requirement.limit, *self._kinds(judged, shared.now))
        changes = smallest_changes(judged)
        if any(one.code == ReasonCode.CRASHED_PAIR for one in ruled_out):
            # The task would crash on other machines too, so the constraint is not the problem.
            changes = tuple(change for change in changes if not _gives_up(change))
        gang = smallest_gang(state, waiting.pairs[group])
        if gang:
            changes = tuple(change for change in changes if room_after(judged, change) >= gang)
        # A gang can never be placed if the empty cell has no room for all tasks of the smallest gang.
        never = judged.never or (shapes.asked is not None and gang > shapes.asked.in_all)
        tenants, ahead_of = shared.tenants.at(waiting.first[position])
        return Why(
            tasks=(),
            machines=len(state.machines),
            ruled_out=ruled_out,
            changes=changes,
            never=never,
            code=code,
            revision=state.revision,
            nearest=judged.nearest(),
            ahead_of=ahead_of,
            ahead_tenants=tenants,
            preemption=judged.preemption(),
            reclamation=judged.reclamation(by_limit),
            expected=self._expected(judged, shared, position, code, never, gang),
            shapes=shapes,
        )

    def _kinds(self, judged: Judgement, now: float) -> tuple[Ints, Ints]:
        """Return two arrays: the capacity of each kind of machine, and how many machines of each kind satisfy the
        constraints of the class and have enough whole cores.
        """
        if self._platforms is None or self._order is not judged.order or now - self._platforms_at >= PLATFORMS_KEPT_S:
            self._platforms = platforms_of(judged.state.machines.capacity[judged.order])
            self._order, self._platforms_at = judged.order, now
            self._satisfying.clear()
        if not judged.demands and judged.cores <= 0:
            return self._platforms.capacity, self._platforms.number
        wanted = (judged.demands, judged.cores)
        if wanted not in self._satisfying:
            satisfied = (judged.failures == 0) & (judged.cores <= judged.state.machines.cores[judged.order])
            number = np.bincount(self._platforms.of[satisfied], minlength=len(self._platforms.number))
            self._satisfying[wanted] = number.astype(np.int64)
        return self._platforms.capacity, self._satisfying[wanted]

    def _expected(
        self, judged: Judgement, shared: _Pass, position: int, code: str, never: bool, gang: int
    ) -> ExpectedStart:
        group = shared.waiting.groups[position]
        if never or code in (ReasonCode.CONSTRAINT, ReasonCode.OUTSIDE_POOL, ReasonCode.DEDICATED_POOL):
            return ExpectedStart(Basis.NEEDS_CHANGE)
        if code == ReasonCode.CRASHED_PAIR:
            left_s = _back_off(judged, shared, group)
            return ExpectedStart(Basis.CRASH_BACK_OFF, 0.0, round(left_s, 1))
        if code == ReasonCode.MAINTENANCE:
            return _after_maintenance(judged, shared)
        if code == ReasonCode.BOOKED and not gang:
            return _behind_booking(judged, shared, group)
        forecast = self._forecast(judged, shared, position, code, gang)
        if gang:
            return _gang_start(shared, position, gang, forecast)
        if code not in (ReasonCode.RESOURCE, ReasonCode.PORTS, ReasonCode.CORES):
            return forecast
        ahead = shared.waiting.first[position]
        at = shared.times.by_limits(group, 0, 1) if ahead == 0 else math.inf
        if at - shared.now < (math.inf if forecast.high_s is None else forecast.high_s):
            return _start_at(Basis.TIME_LIMITS, at, shared.now)
        return forecast

    def _forecast(self, judged: Judgement, shared: _Pass, position: int, code: str, gang: int) -> ExpectedStart:
        """Return the expected start from the rate at which tasks have ended recently."""
        state, groups, group = judged.state, shared.groups, shared.waiting.groups[position]
        if self.seen is None or code not in (ReasonCode.RESOURCE, ReasonCode.PORTS):
            return ExpectedStart(Basis.NO_HISTORY)
        lacking = judged.judged.lacking
        able = judged.able & judged.open & (lacking >= 0)
        if not able.any():
            return ExpectedStart(Basis.NO_HISTORY)
        r = int(np.bincount(lacking[able]).argmax())
        by_slot: Bools = np.zeros(len(state.machines.id), dtype=np.bool_)
        by_slot[judged.order[able]] = True
        ends, room, seconds = openings(
            self.seen,
            shared.now,
            able=by_slot,
            machine_ids=state.machines.id,
            ceiling=int(groups.ceiling[group]),
            by_limit=bool(groups.by_limit[group]),
            r=r,
            want=judged.requirement.limit[r],
        )
        least, most = self._competing(shared, position, able, r)
        others = max(0, gang - 1)  # of a gang none starts before there is room for the last
        return expected_start(ends=ends, room=room, seconds=seconds, ahead=(least + others, most + others))

    def _competing(self, shared: _Pass, position: int, able: Bools, r: int) -> tuple[float, float]:
        """Estimate how many tasks are before this class in the queue and could run on the same machines. Return
        (minimum, maximum). A task that asks for twice as much of resource `r` as a task of this class counts as two
        tasks.

        The minimum leaves out tasks that ask for more than this class of any resource. The maximum includes these
        tasks. Tasks that can never be placed are not counted.
        """
        groups, waiting = shared.groups, shared.waiting
        limit = groups.limit[waiting.groups[position]]
        before = waiting.before(position, len(shared.sorting.requirements))
        reaches: Bools = np.any(groups.allowed & able, axis=1)
        before[~reaches[groups.hard]] = 0
        before[list(self._hopeless)] = 0
        size = before * groups.limit[:, r] / limit[r]
        smaller: Bools = np.all(groups.limit <= limit, axis=1)
        return float(size[smaller].sum()), float(size.sum())


def _blocking(judged: Judgement, shared: _Pass, group: int) -> Bools:
    """Return an array [bookings, P]: whether each booking hinders the tasks of `group` from using a machine on which
    they fit. Nothing hinders a gang that has a booking itself.
    """
    tables = shared.tables
    bookings, fits = tables.bookings, judged.judged.first == -1
    made = int(bookings.made[0])
    extra = bookings.extra[:made]
    lacks = (tables.groups.limit[group] > extra).any(axis=2) | (tables.groups.cores[group] > 0)
    result: Bools = lacks & (extra[:, :, 0] < UNBOOKED) & fits & bookings.bound[:made, group, None]
    first = min(shared.waiting.pairs[group], key=lambda pair: pair.ahead).job_id
    if any(booking.job_id == first for booking in shared.bookings):
        result[:] = False
    return result


def _behind_booking(judged: Judgement, shared: _Pass, group: int) -> ExpectedStart:
    """Return the expected start of tasks whose capacity is booked for a gang, and how short a task must be to use this
    capacity before the last of the gangs that hinder it.
    """
    own = [shared.bookings[b] for b in np.flatnonzero(_blocking(judged, shared, group).any(axis=1)).tolist()]
    last = max(own, key=lambda booking: booking.at)
    within_s = last.at - shared.now - MARGIN_S
    fills_s = math.floor((rounded_down(within_s) if shared.sorting.rounded else within_s) - ADVICE_SLACK_S)
    return ExpectedStart(
        Basis.BOOKED_FOR_A_GANG, at=last.at, machines=len(last.on), fills_s=float(fills_s) if fills_s > 0 else None
    )


def _after_maintenance(judged: Judgement, shared: _Pass) -> ExpectedStart:
    """Return when the first maintenance window of a machine that could hold the task ends, and how short a task must be
    to end before the windows that are planned.
    """
    windows, maintenance = judged.in_maintenance(), judged.maintenance
    assert maintenance is not None  # it is the main reason
    able = windows & judged.able
    windows = able if able.any() else windows
    at = float(maintenance.ends[windows].min())
    begins = maintenance.begins[windows]
    latest = begins[np.isfinite(begins)].max(initial=0.0)
    fills_s = math.floor(latest - shared.now - START_S - ADVICE_SLACK_S)
    return ExpectedStart(
        Basis.MAINTENANCE,
        at=at,
        machines=int(np.count_nonzero(windows)),
        fills_s=float(fills_s) if fills_s > 0 else None,
    )


def _gang_start(shared: _Pass, position: int, gang: int, forecast: ExpectedStart) -> ExpectedStart:
    """Return when the first gang of a class starts: from its booking, or from the time limits of tasks or their
    measured run times if nothing comes before it in the queue, or else the `forecast` from the rate at which tasks end.
    `gang`: the number of its tasks.
    """
    group = shared.waiting.groups[position]
    job_id = min(shared.waiting.pairs[group], key=lambda pair: pair.ahead).job_id
    for booking in shared.bookings:
        if booking.job_id == job_id:
            return _start_at(Basis.BOOKED, booking.at, shared.now, machines=len(booking.on))
    first = shared.waiting.first[position] == 0
    if first and (at := shared.times.by_limits(group, job_id, gang)) < math.inf:
        return _start_at(Basis.TIME_LIMITS, at, shared.now)
    if first and (at := shared.times.by_run_times(group, job_id, gang)) < math.inf:
        return _start_at(Basis.RUN_TIMES, at, shared.now)
    if forecast.high_s is not None:
        return forecast
    return ExpectedStart(Basis.NO_TIME_LIMITS if first else Basis.BEHIND_OTHERS)


def _start_at(basis: Basis, at: float, now: float, *, machines: int = 0) -> ExpectedStart:
    left_s = round(max(0.0, at - now), 1)
    return ExpectedStart(basis, 0.0 if basis is Basis.BOOKED else left_s, left_s, at=at, machines=machines)


def _gives_up(change: SuggestedChange) -> bool:
    """Return whether the change removes a constraint or replaces its value."""
    return any(part.constraint is not None for part in (change, *change.parts))


def _back_off(judged: Judgement, shared: _Pass, group: int) -> float:
    """Return how many seconds pass until the task of `group` may run again on one of the machines on which it
    crashed.
    """
    state, groups = judged.state, shared.groups
    avoid = groups.avoid[groups.avoid_from[group] : groups.avoid_to[group]]
    avoided = set(state.machines.id[judged.order[avoid]].tolist())
    jobs = {pair.job_id for pair in shared.waiting.pairs[group]}
    crashes = [
        when
        for task, pairs in state.crashed.items()
        if split_task_id(task)[0] in jobs and avoided <= pairs.keys()
        for machine, when in pairs.items()
        if machine in avoided
    ]
    return max(0.0, min(crashes, default=shared.now) + shared.crashed_pair_s - shared.now)
