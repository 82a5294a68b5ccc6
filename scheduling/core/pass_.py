"""The scheduling pass (§3.2): one function that finds machines for pending tasks.

pending ─ queue.py ─► order ─ equivalence_classes.py ─► groups ─ kernels/placement.py ─► machines, victims ─► Plan
              └─ tasks in alloc sets ── allocs.py ─► allocs ─┘       └─ tasks not placed ─ explain.py ─► Why
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import PORTS
from scheduling.core.booking.bookings import BookingMaker
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import Explainer
from scheduling.core.garbage import collection_paused
from scheduling.core.kernels.devices import set_bits
from scheduling.core.kernels.placement import HELD_BACK, NOT_TRIED, place
from scheduling.core.kernels.scorers import PART_NAMES, RUNNERS
from scheduling.core.placing.attempts import ATTEMPTS, placed_by_priority, unplaced_first, worth_retrying
from scheduling.core.placing.equivalence_classes import GroupedQueue, sort_into_groups
from scheduling.core.placing.hardness import hardest_first
from scheduling.core.placing.inside_allocs import PortsBySlot, place_in_allocs
from scheduling.core.placing.kernel_input import tables_of
from scheduling.core.placing.pass_cache import Decision, PassCache
from scheduling.core.placing.queue import oldest_gangs_first, pending_in_order, pending_of
from scheduling.core.placing.reserved_cores import cores_held
from scheduling.core.placing.total_free_capacity import FreeCapacity
from scheduling.core.vocabulary.kernel_arrays import Floats, Tables
from scheduling.core.vocabulary.plan import Assignment, Booking, PassStats, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import Why
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, split_task_id

Rows = NDArray[np.int64]

# For so few rows, lists are faster than arrays.
_FEW = 16


def schedule_pass(
    state: CellState,
    policy: Policy,
    *,
    now: float,
    rng: np.random.Generator,
    memory: PassCache | None = None,
    explainer: Explainer | None = None,
) -> Plan:
    """Return a plan that places pending tasks on machines. `now`: seconds since the epoch. `rng` chooses the machine at
    which each search begins. `explainer`: keeps the explanations of earlier passes, and limits how many classes of
    pending tasks this pass explains. Without an `explainer`, the pass explains all classes.

    `memory`: a cache, which all passes over one state share. If nothing has changed since the last pass with this
    cache, the pass returns the same plan again. Otherwise, two calls with equal state, policy, `now` and seed of `rng`
    return equal plans.
    """
    if state.pending == 0:
        return Plan(revision=state.revision)
    state.count_by_limit(policy)
    memory = PassCache() if memory is None else memory
    decision = memory.decision
    if decision is None or not decision.holds(state, policy, now):
        memory.decision = None
        own = pending_of(state.tasks, policy.workload, now=now, crashed=state.crashed)
        if len(own) == 0:
            return Plan(revision=state.revision)
        memory.decision = decision = _decide(state, policy, own, memory, now=now, rng=rng)
    explained = (explainer or Explainer()).explain(
        state,
        decision.sorting,
        decision.tables,
        now=now,
        crashed_pair_s=policy.crashed_pair_s,
        bookings=decision.plan.bookings,
    )
    if not explained and decision.plan.revision == state.revision:
        return decision.plan
    return replace(decision.plan, revision=state.revision, unplaced=explained + decision.plan.unplaced)


def _decide(
    state: CellState, policy: Policy, own: Rows, memory: PassCache, *, now: float, rng: np.random.Generator
) -> Decision:
    """Find machines or allocs for pending tasks, and return the decision. `own`: the slots (row numbers) of these
    tasks, in any order. `memory`: the cache, which all passes over this state share.
    """
    inside = state.tasks.job_alloc_set[state.tasks.job[own]] > 0
    free = memory.sums.follow(state)
    slots = hardest_first(state, policy, pending_in_order(state.tasks, own[~inside]), free)
    sorting, tables, bookings = _best_attempt(state, policy, slots, free, memory, now=now, rng=rng)
    taken: PortsBySlot = {}
    with collection_paused():
        assignments = _assignments(state, sorting, tables, taken)
    left_out: list[Why] = []
    cut = False
    if inside.any():
        ports_free = state.machines.ports_free.copy()
        ports_free[tables.machines.slot] = tables.machines.ports_free
        into_allocs, left_out, cut = place_in_allocs(
            state,
            policy,
            pending_in_order(state.tasks, own[inside]),
            gone=tables.running.gone,
            ports_free=ports_free,
            taken=taken,
            now=now,
            most=policy.max_assignments - len(assignments),
        )
        assignments += tuple(into_allocs)
    plan = Plan(
        revision=state.revision,
        assignments=assignments,
        unplaced=tuple(left_out),
        stats=PassStats(
            pending=len(own),
            classes=len(sorting.requirements),
            placed=len(assignments),
            preempted=int(tables.placed.figures[2]),
            cache_hits=int(tables.placed.figures[0]),
            cache_misses=int(tables.placed.figures[1]),
            cut=cut or bool((tables.placed.machine == NOT_TRIED).any()),
        ),
        bookings=bookings,
        bounded=_bounded(state, assignments),
    )
    # At the time of a booking, the gang starts, or a task has not ended in time and the booking changes.
    # The later it is, the more tasks would run into a planned maintenance window.
    until = min([state.tasks.next_start(now), *(max(booking.at, now + 1.0) for booking in bookings)])
    if sorting.maintenance is not None:
        until = min(until, sorting.maintenance.until)
    return Decision(state, state.changes, policy, until, sorting, tables, plan)


def _bounded(state: CellState, assignments: tuple[Assignment, ...]) -> frozenset[int]:
    """Return the ids of the jobs with assignments that have a `max_running`."""
    tasks = state.tasks
    if not tasks.bounded:
        return frozenset()
    return frozenset(one.job_id for one in assignments if tasks.jobs[one.job_id].max_running)


def _best_attempt(
    state: CellState,
    policy: Policy,
    slots: Rows,
    free: FreeCapacity,
    memory: PassCache,
    *,
    now: float,
    rng: np.random.Generator,
) -> tuple[GroupedQueue, Tables, tuple[Booking, ...]]:
    """Place the pending tasks in `slots`, in the given order. If some tasks find no machine although the total free
    capacity is enough, try other orders. Return the attempt that places the most tasks of the highest priorities, and
    the capacity that it books for gangs.
    """
    held = cores_held(state, slots)
    everywhere = slice(None)
    began = rng.bit_generator.state  # all attempts begin their walks at the same machines

    def attempt(slots: Rows) -> tuple[GroupedQueue, Tables, tuple[Booking, ...]]:
        slots = oldest_gangs_first(state.tasks, slots)
        sorting = sort_into_groups(state, policy, slots, now=now, cores=held is not None)
        tables = tables_of(state, policy, sorting, free, memory, rng, held)
        bookings: tuple[Booking, ...] = ()
        if len(state.machines):
            memory.invalidate(everywhere)
            at = place(tables, 0)
            if at >= 0:
                maker = BookingMaker(state, policy, sorting, tables, now)
                while at >= 0:
                    maker.book(at)
                    at = place(tables, at)
                bookings = tuple(maker.bookings)
            memory.invalidate(tables.placed.machine[tables.placed.machine >= 0])
        return sorting, tables, bookings

    def again(slots: Rows) -> tuple[GroupedQueue, Tables, tuple[Booking, ...]]:
        rng.bit_generator.state = began
        memory.invalidate(everywhere)
        return attempt(slots)

    sorting, tables, bookings = attempt(slots)
    machine = tables.placed.machine
    slots = sorting.slots
    if not worth_retrying(state.tasks, policy, slots, machine, free):
        return sorting, tables, bookings
    best, most, last = slots, placed_by_priority(state.tasks, slots, machine), slots
    for _ in range(ATTEMPTS - 1):
        last = unplaced_first(state.tasks, last, machine)
        sorting, tables, bookings = again(last)
        last, machine = sorting.slots, tables.placed.machine
        number = placed_by_priority(state.tasks, last, machine)
        if number > most:
            best, most = last, number
        if (machine[machine != HELD_BACK] >= 0).all():
            break
    if best is last:
        return sorting, tables, bookings
    return again(best)


def _assignments(state: CellState, sorting: GroupedQueue, tables: Tables, taken: PortsBySlot) -> tuple[Assignment, ...]:
    """Convert the placements that the kernel chose to `Assignment` values, and choose the port numbers. `taken`: the
    port numbers that this pass has assigned so far. This call adds the new ones to `taken`.
    """
    placed, tasks, machines = tables.placed, state.tasks, state.machines
    where = (placed.machine >= 0).nonzero()[0]
    identities = tasks.id[sorting.slots[where]]
    at = tables.machines.slot[placed.machine[where]]
    ports = _port_numbers(state, at, tables.groups.limit[sorting.of_task[where], PORTS], taken)
    victims: list[tuple[tuple[int, int], ...]] = [()] * len(where)
    for i in (placed.victims_to[where] > placed.victims_from[where]).nonzero()[0].tolist():
        own = placed.victims[placed.victims_from[where[i]] : placed.victims_to[where[i]]]
        victims[i] = tuple(map(split_task_id, tasks.id[own].tolist()))
    devices: list[tuple[int, ...]] = [()] * len(where)
    for i in placed.devices[where].nonzero()[0].tolist():
        devices[i] = set_bits(int(placed.devices[where[i]]))
    return tuple(
        map(
            Assignment,
            (identities >> INDEX_BITS).tolist(),
            (identities & (MAX_TASKS - 1)).tolist(),
            machines.id[at].tolist(),
            ports,
            victims,
            _scores(placed.parts[where]),
            repeat(0),
            devices,
            _runners_up(tables, machines.id, where),
            _packages(sorting, tables, where),
        )
    )


def _scores(parts: Floats) -> list[dict[str, float]]:
    """Return one dictionary per row of `parts` [N, PARTS]. It maps the name of each scorer to its score. Scores of 0
    are left out.
    """
    parts = parts.round(4)
    if len(parts) <= _FEW:
        return [{name: value for name, value in zip(PART_NAMES, row, strict=True) if value} for row in parts.tolist()]
    result: list[dict[str, float]] = [{}] * len(parts)
    patterns, of = np.unique((parts != 0) @ (1 << np.arange(len(PART_NAMES))), return_inverse=True)
    for number, pattern in enumerate(patterns.tolist()):
        columns = set_bits(pattern)
        names = [PART_NAMES[column] for column in columns]
        rows = np.flatnonzero(of == number)
        for row, values in zip(rows.tolist(), parts[rows][:, list(columns)].tolist(), strict=True):
            result[row] = dict(zip(names, values, strict=True))
    return result


def _runners_up(tables: Tables, ids: Rows, where: Rows) -> list[tuple[tuple[int, float], ...]]:
    """Return, for each queue position in `where`, the best machines after the chosen one, as (machine id, score) pairs.
    `ids`: the ids of all machines, by slot.
    """
    runner = tables.placed.runner[where]
    totals = tables.placed.runner_score[where].round(4)
    machines = ids[tables.machines.slot[runner]]
    columns = [zip(machines[:, k].tolist(), totals[:, k].tolist(), strict=True) for k in range(RUNNERS)]
    result: list[tuple[tuple[int, float], ...]] = list(zip(*columns, strict=True))
    for i in (runner[:, -1] < 0).nonzero()[0].tolist():
        result[i] = tuple(pair for pair, there in zip(result[i], runner[i] >= 0, strict=True) if there)
    return result


def _port_numbers(state: CellState, at: NDArray[np.int32], wanted: Rows, taken: PortsBySlot) -> list[tuple[int, ...]]:
    """Return the port numbers of each assignment. A pass never assigns the same port number of a machine twice."""
    result: list[tuple[int, ...]] = [()] * len(at)
    for i in wanted.nonzero()[0].tolist():
        slot = int(at[i])
        result[i] = state.machines.ports[slot].offer(int(wanted[i]), taken.setdefault(slot, set()))
    return result


def _packages(sorting: GroupedQueue, tables: Tables, where: Rows) -> list[tuple[int, ...]]:
    """Return, for each queue position in `where`, two numbers of bytes. The first one is the size of those packages of
    the task that the machine already has. The second one is the size of all packages of the task. The tuple is empty
    for a task without packages.
    """
    groups = tables.groups
    named = groups.packages[sorting.of_task[where]]
    result: list[tuple[int, ...]] = [()] * len(where)
    for i in (named >= 0).nonzero()[0].tolist():
        total = sum(size for _, size in sorting.requirements[sorting.of_task[where[i]]].packages)
        if not total:  # the row is about a pool that the task prefers
            continue
        share = groups.present[named[i], tables.placed.machine[where[i]]]
        result[i] = (round(float(share) * total), total)
    return result
