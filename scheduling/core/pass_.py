"""The seam of scheduling (§3.2): one function, and all of a pass is behind it.

pending ─ queue.py ─► order ─ classes.py ─► groups ─ kernels/walk.py ─► machines, victims ─► ports ─► Plan
              └─ who lives in allocs ─ allocs.py ─► allocs ─┘              └─ groups that are full ─ explain.py ─► Why
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import PORTS
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import Explainer
from scheduling.core.kernels.scorers import PART_NAMES
from scheduling.core.kernels.walk import NOT_TRIED, place
from scheduling.core.placing.allocs import PortsBySlot, place_in_allocs
from scheduling.core.placing.classes import GroupedQueue, sort_into_groups
from scheduling.core.placing.cores import cores_held
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.queue import pending_in_order, pending_of
from scheduling.core.placing.tables import tables_of
from scheduling.core.vocabulary.layout import Tables
from scheduling.core.vocabulary.plan import Assignment, PassStats, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import INDEX_BITS, MAX_TASKS, split_task_id

Rows = NDArray[np.int64]


def schedule_pass(
    state: CellState,
    policy: Policy,
    *,
    now: float,
    rng: np.random.Generator,
    memory: PassCache | None = None,
    explainer: Explainer | None = None,
) -> Plan:
    """Find machines for pending tasks. `now`: seconds since the epoch; `rng` seeds the walks over machines.
    `explainer`: what is known of classes left over before, and how many to examine; without, all of them are.

    The state is not changed. Equal state, policy, `now` and seed give an equal plan, whatever the order in which the
    state was built, and with or without a `memory`, which only saves work: give the same one to every pass over
    a state. (Bands other than those the state was counted by are taken over into it first:
    `CellState.count_by_limit`.)
    """
    if state.pending == 0:
        return Plan(revision=state.revision)
    state.count_by_limit(policy)
    own = pending_of(state.tasks, policy.workload)
    if len(own) == 0:
        return Plan(revision=state.revision)
    inside = state.tasks.job_alloc_set[state.tasks.job[own]] > 0
    slots = pending_in_order(state.tasks, own[~inside])
    held = cores_held(state, slots)
    sorting = sort_into_groups(state, policy, slots, now=now, cores=held is not None)
    memory = PassCache() if memory is None else memory
    tables = tables_of(state, policy, sorting, memory, rng, held)
    if len(state.machines):
        memory.invalidate(np.arange(len(state.machines)))
        place(tables)
        memory.invalidate(tables.placed.machine[tables.placed.machine >= 0])
    taken: PortsBySlot = {}
    assignments = _assignments(state, sorting, tables, taken)
    unplaced = (explainer or Explainer()).explain(state, sorting, tables, now=now, crashed_pair_s=policy.crashed_pair_s)
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
    unplaced += tuple(left_out)
    return Plan(
        revision=state.revision,
        assignments=assignments,
        unplaced=unplaced,
        stats=PassStats(
            pending=len(own),
            classes=len(sorting.requirements),
            placed=len(assignments),
            preempted=int(tables.placed.figures[2]),
            cache_hits=int(tables.placed.figures[0]),
            cache_misses=int(tables.placed.figures[1]),
            cut=cut or bool((tables.placed.machine == NOT_TRIED).any()),
        ),
    )


def _assignments(state: CellState, sorting: GroupedQueue, tables: Tables, taken: PortsBySlot) -> tuple[Assignment, ...]:
    """The kernel's answer as values: ids for slots, port numbers, the score by part."""
    placed, tasks, machines = tables.placed, state.tasks, state.machines
    where = np.flatnonzero(placed.machine >= 0)
    identities = tasks.id[sorting.slots[where]]
    at = tables.machines.slot[placed.machine[where]]
    parts = np.round(placed.parts[where], 4).tolist()
    runners = np.where(placed.runner[where] >= 0, machines.id[tables.machines.slot[placed.runner[where]]], 0)
    totals = np.round(placed.runner_score[where], 4).tolist()
    ports = _port_numbers(state, at, tables.groups.limit[sorting.of_task[where], PORTS], taken)
    victims = (
        {
            i: tuple(
                split_task_id(victim)
                for victim in tasks.id[placed.victims[placed.victims_from[q] : placed.victims_to[q]]].tolist()
            )
            for i, q in enumerate(where.tolist())
            if placed.victims_to[q] > placed.victims_from[q]
        }
        if placed.figures[2]
        else {}
    )
    devices = placed.devices[where].tolist()
    packages = _packages(sorting, tables, where)
    result = []
    for i, (job_id, index, machine_id, own, others, scores, mask) in enumerate(
        zip(
            (identities >> INDEX_BITS).tolist(),
            (identities & (MAX_TASKS - 1)).tolist(),
            machines.id[at].tolist(),
            parts,
            runners.tolist(),
            totals,
            devices,
            strict=True,
        )
    ):
        score = {name: value for name, value in zip(PART_NAMES, own, strict=True) if value}
        if others[-1]:
            runners_up = tuple(zip(others, scores, strict=True))
        else:
            runners_up = tuple(pair for pair in zip(others, scores, strict=True) if pair[0])
        result.append(
            Assignment(
                job_id,
                index,
                machine_id,
                ports.get(i, ()),
                victims.get(i, ()),
                score,
                0,
                _bits(mask) if mask else (),
                runners_up,
                packages.get(i, ()),
            )
        )
    return tuple(result)


def _port_numbers(
    state: CellState, at: NDArray[np.int32], wanted: Rows, taken: PortsBySlot
) -> dict[int, tuple[int, ...]]:
    """Return the port numbers of each assignment that needs ports, without duplicates on one machine within the
    pass.
    """
    return {
        i: state.machines.ports[slot].offer(number, taken.setdefault(slot, set()))
        for i, (slot, number) in enumerate(zip(at.tolist(), wanted.tolist(), strict=True))
        if number
    }


def _packages(sorting: GroupedQueue, tables: Tables, where: Rows) -> dict[int, tuple[int, int]]:
    """Return for each assignment with packages how many of their bytes its machine has, and all."""
    groups = tables.groups
    named = groups.packages[sorting.of_task[where]]
    found = {}
    for i in np.flatnonzero(named >= 0).tolist():
        total = sum(size for _, size in sorting.requirements[sorting.of_task[where[i]]].packages)
        share = groups.present[named[i], tables.placed.machine[where[i]]]
        found[i] = (round(float(share) * total), total)
    return found


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
