"""The decisions of one reclamation cycle: which reservations change, and which tasks leave machines that are short of
RAM or disk (§5.5). Pure. The master and the simulator share them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from quota.vocabulary.bands import MAX_PRIORITY, Band, band_of
from quota.vocabulary.resources import NAMES, describe
from scheduling.core.cell.state import CellState
from scheduling.core.reclamation.shortage import INCOMPRESSIBLE, MachineShortage, Occupants, ShortageVictim, relieve
from scheduling.core.reclamation.usage_history import Reservations, most_urgent
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints, Ints32
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.core.vocabulary.task_events import Eviction

EVERY_S = 5.0
"""Seconds from one cycle to the next."""

# The most increases, or else decreases, in one chunk, and the most changes in one cycle. Increases are urgent.
RAISES_A_TURN = 5_000
DROPS_A_TURN = 1_000
CHANGES_A_LOOK = 5_000


class ReservationChanges(NamedTuple):
    """Reservations that are written together. `slots` [N]: the slots of the tasks in the state. `wanted` [N, K]: the
    new reservations. `raised`: how many of the reservations increase.
    """

    task_id: Ints
    incarnation: Ints32
    wanted: Ints
    raised: int
    slots: Ints


def changes_due(state: CellState, found: Reservations, due: Bools) -> list[ReservationChanges]:
    """Return the most important changes of reservations, in groups that are written together. Increases come first.
    Changes that are left out are computed again in the next cycle. `due` [N]: which of the reservations in `found` may
    change now (`ReservationPace.due`).
    """
    found = dataclasses.replace(found, raised=found.raised & due, lowered=found.lowered & due)
    raises = int(found.raised.sum())
    chosen = most_urgent(found, at_most=max(CHANGES_A_LOOK, min(raises, 4 * RAISES_A_TURN)))
    raises = min(raises, len(chosen))
    if len(chosen) <= DROPS_A_TURN:
        bounds = [0, len(chosen)] if len(chosen) else []
    else:
        bounds = [*range(0, raises, RAISES_A_TURN), *range(raises, len(chosen), DROPS_A_TURN), len(chosen)]
    chunks = []
    for first, last in itertools.pairwise(bounds):
        part = chosen[first:last]
        slots = found.slots[part]
        chunks.append(
            ReservationChanges(
                state.tasks.id[slots],
                state.tasks.incarnation[slots],
                found.wanted[part],
                raised=max(0, min(last, raises) - first),
                slots=slots,
            )
        )
    return chunks


def prod_by_priority(bands: Sequence[Band]) -> Bools:
    """Return an array with one boolean per priority: whether the priority is in a prod band."""
    prod = np.zeros(MAX_PRIORITY + 1, dtype=np.bool_)
    for band in bands:
        prod[band.low : band.high + 1] = band_of(band.low, bands).prod
    return prod


class Relief(NamedTuple):
    """The result of `shortages`. `short`: the machines that lack RAM or disk. `leaving`: the evictions that help."""

    short: list[MachineShortage]
    leaving: list[Eviction]


def shortages(state: CellState, found: Reservations, demand: Ints, prod: Bools, share: float) -> Relief:
    """Return the machines whose tasks use more than the share `share` (0 to 1) of their RAM or disk, and the evictions
    that end this. If `share` is 0, both lists are empty.

    `demand` [S, K]: the recent usage, with one row per measured task and one column per resource. `prod`: one boolean
    per priority, whether it is prod.
    """
    if share == 0:
        return Relief([], [])
    tasks, machines = state.tasks, state.machines
    measured = np.flatnonzero(found.sample >= 0)
    on = tasks.machine[found.slots[measured]]
    measured, on = measured[on >= 0], on[on >= 0]
    # Sums of one machine are far below 2**53, so that floats are exact.
    short_of = np.zeros(len(machines.id), dtype=np.bool_)
    for resource in INCOMPRESSIBLE:
        weights = demand[found.sample[measured], resource].astype(np.float64)
        used = np.bincount(on, weights=weights, minlength=len(machines.id))
        short_of |= used > machines.capacity[:, resource] * share
    measured = measured[short_of[on]]
    if not len(measured):
        return Relief([], [])
    slots = found.slots[measured]
    priority = tasks.job_priority[tasks.job[slots]]
    occupants = Occupants(
        task_id=tasks.id[slots],
        machine=tasks.machine[slots].astype(np.int64),
        priority=priority.astype(np.int64),
        prod=prod[np.clip(priority, 0, MAX_PRIORITY)],
        usage=demand[found.sample[measured]],
        limit=tasks.shapes.limit[tasks.shape[slots]],
    )
    short = relieve(occupants, state.machines.capacity, share=share)
    leaving = [
        Eviction(
            int(occupants.task_id[victim.position]),
            int(tasks.incarnation[slots[victim.position]]),
            EvictionCause.OUT_OF_RESOURCES.value,
            detail=_format_shortage(state, shortage, victim, occupants),
            avoid=True,
        )
        for shortage in short
        for victim in shortage.victims
    ]
    return Relief(short, leaving)


def _format_shortage(state: CellState, shortage: MachineShortage, victim: ShortageVictim, occupants: Occupants) -> str:
    resource = shortage.resource

    def amount(value: Any) -> str:
        return describe(resource, int(value))

    uses = amount(occupants.usage[victim.position, resource])
    limit = amount(occupants.limit[victim.position, resource])
    why = f"over its limit of {limit}" if victim.over else f"within its limit of {limit}, but is not prod"
    return (
        f"machine {state.machines.facts[shortage.machine].hostname} is short of {NAMES[resource]}:"
        f" its tasks use {amount(shortage.used)} where {amount(shortage.bound)} is the most;"
        f" this one uses {uses}, {why}"
    )
