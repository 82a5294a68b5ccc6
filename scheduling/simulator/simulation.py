"""The simulation of a cell in virtual time: the scheduler of production, and modelled machines (§3.1, Fauxmaster).

    Workload ─► arrivals, failures ─┐                     ┌─► PASS   schedule_pass ─► placements, preemptions
    started tasks ─► their ends ────┼─► queue, by time ───┼─► LOOK   usage ─► reservations, shortages
    machines that went silent ──────┘                     └─► SWEEP  tasks of lost machines, within the brake
                                                          ─► events ─► CellState, Journal, Figures

Equal states, workloads, settings and seeds give bit-identical journals.
"""

from __future__ import annotations

import copy
import heapq
import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from quota.vocabulary.bands import DEFAULT_BANDS, Band
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.partial_plan import split_broken
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.reclamation.cycle import ReservationChanges, changes_due, prod_by_priority, shortages
from scheduling.core.reclamation.pacing import ReservationPace
from scheduling.core.reclamation.usage_history import KINDS, LONGEST_S, Samples, UsageHistory
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reclamation_presets import PRESETS
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.core.vocabulary.states import EvictionCause, MachineStatus
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.brakes import SimulatedBrakes
from scheduling.simulator.cell import SimulatedCell, identity_of
from scheduling.simulator.outages import Outages
from scheduling.simulator.workload import Ending as OwnEnding
from scheduling.simulator.workload import Workload

RETRY_S = 5.0
"""Pending tasks that avoid a machine on which they crashed are tried again after this many seconds."""

NOTICE_S = 10.0
"""Seconds after which the processes of an evicted task have ended."""


class Step(IntEnum):
    """The kinds of items in the queue, in the order in which items of one moment are processed."""

    END = 0
    GONE = 1
    SILENT = 2
    SWEEP = 3
    LOOK = 4
    PASS = 5


_ARRIVAL = Step.SILENT  # jobs arrive after tasks have ended, and before the master looks
_Item = tuple[float, int, int, int, int]  # time, step, and up to three numbers: (job, index, incarnation) or a machine


@dataclass(frozen=True)
class Settings:
    """The settings of a simulation. `cell`: the settings of the cell, as SREs choose them.

    `pass_every_s`: passes take place at multiples of this many seconds. `look_every_s`: the same for reclamation, which
    takes place every 5 s in production. `placed_at_once`: the largest number of tasks that one pass places.
    """

    cell: CellSettings = field(default_factory=CellSettings)
    bands: tuple[Band, ...] = DEFAULT_BANDS
    pass_every_s: float = 1.0
    look_every_s: float = 30.0
    placed_at_once: int = 2_500

    def policy(self) -> Policy:
        """Return the parameters of scheduling passes for these settings, as a master would choose them."""
        return Policy(
            bands=self.bands,
            scorer=self.cell.scorer,
            batch_in_prod_by_reservation=self.cell.batch_in_prod_by_reservation,
            crashed_pair_s=self.cell.crashed_pair_s,
            maintenance_horizon_s=self.cell.maintenance_horizon_s,
            max_assignments=self.placed_at_once,
        )


class Simulation:
    """One simulated cell. The simulation changes `state`, so nothing else may use it. `now`: the virtual time at which
    it begins, in seconds. `seed`: the seed of the passes. `steps`, `passes`: how many items and passes have been
    processed.
    """

    def __init__(
        self,
        state: CellState,
        workload: Workload,
        settings: Settings | None = None,
        *,
        seed: int = 2011,
        now: float = 0.0,
    ) -> None:
        self.workload = workload
        self.seed = seed
        self.cell = SimulatedCell(state, now)
        self.set_settings(settings or Settings())
        self._queue: list[_Item] = []
        self._arrived = int(np.searchsorted(workload.arrivals.times, now, side="left"))
        self._changed = 0
        self._pass_due: float | None = None
        self._start_due = math.inf  # time of the next pass that is due because a job's `start_after` has come
        self._sweeping = False
        self._brakes = SimulatedBrakes()
        self._outages = Outages()
        self._history = UsageHistory()
        self._pace = ReservationPace()
        self._cache = PassCache()
        self._explainer = Explainer(ExplainBudget(classes=0))
        self.passes = 0
        self.steps = 0
        for slot in np.flatnonzero((state.tasks.state == RUNNING) & (state.tasks.alloc < 0)).tolist():
            self._will_end(int(state.tasks.id[slot]), int(state.tasks.incarnation[slot]), slot)
        for task, incarnation in state.departed:
            self._push(now + NOTICE_S, Step.GONE, *split_task_id(task), incarnation)
        if self.settings.look_every_s > 0:
            self._push(_next_multiple(now, self.settings.look_every_s), Step.LOOK)
        self._ask_for_pass()

    @property
    def now(self) -> float:
        return self.cell.now

    @property
    def state(self) -> CellState:
        """Return the state of the cell, with all changes applied."""
        self.cell.flush()
        return self.cell.state

    def set_settings(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self._policy = settings.policy()
        self._prod = prod_by_priority(settings.bands)
        self.cell.flush()
        self.cell.state.count_by_limit(self._policy)
        self.cell.placeable = True

    def copy(self) -> Simulation:
        """Return an independent copy, which continues in the same way."""
        self.cell.flush()
        state = self.cell.state
        shared: list[Any] = [self.workload, self.settings, self._policy, self._prod]
        shared += [*state.machines.facts.values(), *state.tasks.shapes.requirement, *state.tasks.shapes.known()]
        memo: dict[int, Any] = {id(one): one for one in shared}
        memo[id(self._cache)] = PassCache()
        memo[id(self._explainer)] = Explainer(ExplainBudget(classes=0))
        return copy.deepcopy(self, memo)

    def next_at(self) -> float:
        """Return the time of the next item, or infinity if nothing will happen any more."""
        queued = self._queue[0][0] if self._queue else math.inf
        return min(queued, self._next_arrival(), self._next_change())

    def run(self, until: float) -> None:
        """Process all items up to the time `until`, and set the clock to this time."""
        while self._advance(until):
            pass
        self.cell.pass_time(until)
        self.cell.flush()

    def run_only_passes(self, until: float) -> None:
        """Place pending tasks until no more can be placed, or until the time `until`. Nothing else happens meanwhile.
        The queue is deleted, so the simulation cannot continue afterwards.
        """
        self._queue, self._pass_due = [], None
        self.cell.placeable = True
        self._ask_for_pass()
        while self._queue and self._queue[0][0] <= until:
            item = heapq.heappop(self._queue)
            if item[1] == Step.PASS:
                self._process(item)
                self._ask_for_pass()

    def step(self) -> None:
        """Process the next item: an arrival, an end, a failure, a pass, … Raises `IndexError` if there is none."""
        self._advance(math.inf)

    def _advance(self, until: float) -> bool:
        """Process the next item, unless it comes after the time `until`. Return whether there was such an item."""
        arrival, change = self._next_arrival(), self._next_change()
        at, step = self._queue[0][:2] if self._queue else (math.inf, Step.PASS)
        if min(at, arrival, change) > until:
            return False
        if change <= at and change <= arrival:
            if change == math.inf:
                raise IndexError("this simulation has ended, because no event follows; start a new simulation")
            self._change_machine()
        elif (arrival, _ARRIVAL) < (at, step):
            self._submit()
        else:
            self._process(heapq.heappop(self._queue))
        self._ask_for_pass()
        self.steps += 1
        return True

    def forget_figures(self) -> None:
        """Set all figures to zero."""
        self.cell.keeper.forget()

    def submit(self, job: events.JobSubmitted) -> None:
        """Submit a job now, beside those of the workload."""
        self.cell.begin(self.now)
        self.cell.submit(job, prod=self._policy.by_limit(job.priority, job.latency_sensitive))
        self._ask_for_pass()

    # --- the queue

    def _push(self, at: float, step: Step, a: int = 0, b: int = 0, c: int = 0) -> None:
        heapq.heappush(self._queue, (at, step, a, b, c))

    def _next_arrival(self) -> float:
        times = self.workload.arrivals.times
        return times.item(self._arrived) if self._arrived < len(times) else math.inf

    def _next_change(self) -> float:
        changes = self.workload.changes
        return max(changes[self._changed].at, self.now) if self._changed < len(changes) else math.inf

    def _ask_for_pass(self) -> None:
        """Put a scheduling pass into the queue if a pending task may now fit on a machine."""
        if self.cell.placeable and self.cell.pending and self._pass_due is None:
            self._pass_due = _next_multiple(self.now, self.settings.pass_every_s)
            self._push(self._pass_due, Step.PASS)

    def _process(self, item: _Item) -> None:
        at, step, *numbers = item
        self.cell.begin(at)
        if step == Step.END:
            self._end(*numbers)
        elif step == Step.GONE:
            self.cell.append(events.TaskGone(job_id=numbers[0], index=numbers[1], incarnation=numbers[2], machine_id=0))
        else:
            self.cell.flush()
            if step == Step.SILENT:
                self._mark_down(numbers[0], numbers[1])
            elif step == Step.SWEEP:
                self._sweep()
            elif step == Step.LOOK:
                self._look()
            else:
                self._pass()

    # --- users and machines

    def _submit(self) -> None:
        at = self._next_arrival()
        job = self.workload.arrivals.job(self._arrived)
        self._arrived += 1
        self.cell.begin(at)
        self.cell.submit(job, prod=self._policy.by_limit(job.priority, job.latency_sensitive))

    def _will_end(self, identity: int, incarnation: int, slot: int) -> None:
        ending = self._ending(identity, incarnation, slot)
        if ending is not None:
            job_id, index = split_task_id(identity)
            self._push(self.now + ending.after_s, Step.END, job_id, index, incarnation)

    def _ending(self, identity: int, incarnation: int, slot: int) -> OwnEnding | None:
        """Return how a started incarnation ends by itself: as the workload says, or at its time limit, if that is
        earlier.
        """
        tasks = self.cell.state.tasks
        priority = tasks.job_priority.item(tasks.job.item(slot))
        ending = self.workload.behaviour.ending(identity, incarnation, priority)
        limit_s = tasks.jobs[split_task_id(identity)[0]].max_run_s
        if limit_s and (ending is None or ending.after_s > limit_s):
            return OwnEnding(limit_s, "failed")
        return ending

    def _end(self, job_id: int, index: int, incarnation: int) -> None:
        job = self.cell.state.tasks.jobs.get(job_id)
        if job is None or index >= len(job.tasks):
            return
        tasks, slot = self.cell.state.tasks, job.tasks.item(index)
        if slot < 0 or tasks.state.item(slot) != RUNNING or tasks.incarnation.item(slot) != incarnation:
            return
        machine = tasks.machine.item(slot)
        if machine >= 0 and self._outages.is_away(self.cell.state.machines.id.item(machine)):
            return  # its processes died with the machine
        identity = tasks.id.item(slot)
        ending = self._ending(identity, incarnation, slot)
        how = ending.how if ending is not None else "finished"
        self.cell.end([Ending(identity, how, incarnation, gone=True)])

    def _change_machine(self) -> None:
        change = self.workload.changes[self._changed]
        self.cell.begin(self._next_change())
        self.cell.flush()
        self._changed += 1
        known = change.machine_id in self.cell.state.machines.slot
        if change.facts is None:
            if known and not self._outages.is_away(change.machine_id):
                self.cell.keeper.figures.failures += 1
                number = self._outages.fails(change.machine_id)
                self._push(self.now + self.settings.cell.down_after_s, Step.SILENT, change.machine_id, number)
            return
        was_down = self._outages.returns(change.machine_id)
        self._lose_tasks(change.machine_id, was_down is not None)
        facts = self.cell.state.machines.facts[self.cell.state.machines.slot[change.machine_id]] if known else None
        if facts != change.facts:
            self.cell.append(change.facts)
        elif was_down:
            self.cell.append(events.MachineState(machine_id=change.machine_id, state=MachineStatus.UP.value))

    def _lose_tasks(self, machine_id: int, was_away: bool) -> None:
        """Evict all tasks of a machine that reports again after a failure (`was_away`), because it has restarted
        without them.
        """
        if not was_away:
            return
        detail = "the machine has restarted and no longer runs the task"
        lost = [
            Eviction(identity, incarnation, EvictionCause.LOST.value, detail=detail, gone=True)
            for _, identity, incarnation in self.cell.tasks_on(machine_id)
        ]
        self.cell.evict(lost)
        self.cell.flush()

    def _mark_down(self, machine_id: int, number: int) -> None:
        if self._outages.mark_down(machine_id, number, self.now):
            reason = f"no report for more than {self.settings.cell.down_after_s:g} s"
            down = MachineStatus.DOWN.value
            self.cell.append(events.MachineState(machine_id=machine_id, state=down, reason=reason))
            self._ask_for_sweep(self.now)

    def _ask_for_sweep(self, at: float) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._push(at, Step.SWEEP)

    def _sweep(self) -> None:
        """Evict tasks from machines that are down, highest priority first, as many as the brake `lost` (a limit of such
        evictions) now allows.
        """
        self._sweeping = False
        settings = self.settings.cell
        waiting = [
            (-priority, identity, incarnation)
            for machine_id in self._outages.down()
            for priority, identity, incarnation in self.cell.tasks_on(machine_id)
        ]
        extent = self._outages.extent(self.cell.state, self.now)
        allowed = self._brakes.lost_allowance(extent, len(waiting), settings, self.now, self.cell.append)
        leaving = [
            Eviction(
                identity, incarnation, EvictionCause.MACHINE_FAILURE.value, detail="its machine is down", gone=True
            )
            for _, identity, incarnation in sorted(waiting)[: max(0, allowed)]
        ]
        evicted = self.cell.evict(leaving)
        self.cell.flush()
        self._brakes.lost_spend(len(evicted))
        if len(evicted) < len(waiting) or self._brakes.lost != "open":
            self._ask_for_sweep(self.now + 1.0)

    # --- the master

    def _pass(self) -> None:
        self._pass_due = None
        self.cell.placeable = False
        self.passes += 1
        self.cell.keeper.figures.passes += 1
        plan = schedule_pass(
            self.cell.state,
            self._policy,
            now=self.now,
            rng=np.random.default_rng((self.seed, self.passes)),
            memory=self._cache,
            explainer=self._explainer,
        )
        placed = self.cell.place(self._allowed(plan.assignments))
        self.cell.flush()
        for event in placed:
            if not event.alloc:
                job = self.cell.state.tasks.jobs[event.job_id]
                self._will_end(identity_of(event), event.incarnation, job.tasks.item(event.index))
        self._will_be_gone()
        if placed:
            self.cell.keeper.count_machines(self.cell.state)
        if plan.stats.cut and placed:
            self._pass_due = self.now
            self._push(self.now, Step.PASS)
        elif self.cell.pending and self.cell.state.crashed:
            self._pass_due = self.now + RETRY_S
            self._push(self._pass_due, Step.PASS)
            self.cell.placeable = True
        start = self.cell.state.tasks.next_start(self.now)
        if start < self._start_due or self._start_due <= self.now:
            self._start_due = start
            if start < math.inf:
                self._push(start, Step.PASS)

    def _allowed(self, assignments: tuple[Assignment, ...]) -> list[Assignment]:
        """Return the assignments that the brake `stops` (a limit of stopped tasks) allows: all, or only those that
        preempt no task and do not depend on a preemption.
        """
        victims = sum(len(a.victims) for a in assignments)
        cell = self.cell
        if self._brakes.may_stop(victims, cell.running, self.settings.cell, self.now, cell.append):
            return list(assignments)
        broken = {position for position, a in enumerate(assignments) if a.victims}
        gangs = {a.job_id for a in assignments if cell.state.tasks.jobs[a.job_id].gang}
        return split_broken(assignments, broken, gangs=gangs, unfreed=set())[0]

    def _will_be_gone(self) -> None:
        for event in self.cell.take_stopping():
            self._push(self.now + NOTICE_S, Step.GONE, event.job_id, event.index, event.incarnation)

    def _look(self) -> None:
        """Estimate reservations from usage, and evict tasks from machines that are short of RAM or disk."""
        settings, state = self.settings, self.cell.state
        self._push(self.now + settings.look_every_s, Step.LOOK)
        tasks = state.tasks
        slots = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0))
        if self._outages.any_away():
            slots = slots[~np.isin(state.machines.id[tasks.machine[slots]], self._outages.away())]
        if not len(slots):
            return
        limit = tasks.shapes.limit[tasks.shape[slots]]
        priority = tasks.job_priority[tasks.job[slots]].astype(np.int64)
        demand = self.workload.behaviour.demand(tasks.id[slots], limit, priority, self.now)
        samples = Samples(tasks.id[slots], tasks.incarnation[slots], demand)
        preset = PRESETS[settings.cell.reclamation]
        # The estimate counts at most `LONGEST_S` between two samples. Usage is the same within a window.
        parts = max(1, math.ceil(settings.look_every_s / LONGEST_S))
        found = self._history.look(tasks, samples, preset, passed_s=settings.look_every_s / parts, times=parts)
        relief = shortages(state, found, demand, self._prod, settings.cell.shortage_at)
        due = self._pace.due(tasks, samples, found, passed_s=settings.look_every_s)
        for changes in changes_due(state, found, due):
            if len(changes.task_id):
                self._reserve(changes)
        self.cell.flush()
        cell = self.cell
        if relief.leaving and self._brakes.may_stop(
            len(relief.leaving), cell.running, settings.cell, self.now, cell.append
        ):
            cell.evict(relief.leaving)
            cell.flush()
            self._will_be_gone()
        cell.keeper.count_machines(state)

    def _reserve(self, changes: ReservationChanges) -> None:
        tasks = self.cell.state.tasks
        reservation = tasks.shapes.limit[tasks.shape[changes.slots]]
        reservation[:, : len(KINDS)] = np.minimum(changes.wanted, reservation[:, : len(KINDS)])
        names = tuple(map(split_task_id, changes.task_id.tolist()))
        self.cell.keeper.figures.reservations += len(names)
        self.cell.append(events.ReservationsSet(tasks=names, reservations=tuple(map(tuple, reservation.tolist()))))


def _next_multiple(now: float, every_s: float) -> float:
    """Return the first multiple of `every_s` that is not before `now`."""
    return math.ceil(now / every_s) * every_s if every_s > 0 else now
