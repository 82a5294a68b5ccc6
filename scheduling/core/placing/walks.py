"""The positions at which groups of tasks begin their walks over the machines (§3.4, relaxed randomisation)."""

from __future__ import annotations

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary.layout import Bools, Ints, Ints32
from scheduling.core.vocabulary.policy import Policy

# Share of the free capacity for a kind of work. A class that asks for more of a resource than this packs from one end.
_MOST = 0.75


def beginnings(
    state: CellState, policy: Policy, limit: Ints, by_limit: Bools, of_task: Ints32, rng: np.random.Generator
) -> Ints32:
    """Return positions [G] in the walk. `limit` [G, R], `by_limit`: of the groups; `of_task`: group of each queued
    task.

    While there is plenty of room each group begins somewhere else: work of all kinds mixes on the machines, and
    what one kind cannot use is left where the other finds it. A kind (by limit, or by reservation, §5.5) that asks
    for most of the room there is for it begins at one place: the machines met first fill up, and those met
    last stay empty for tasks that come late and are large. E-PVM spreads load, whatever is asked for.
    """
    number = len(limit)
    if not policy.search.randomise or len(state.machines) == 0:
        return np.zeros(number, dtype=np.int32)
    result: Ints32 = rng.integers(len(state.machines), size=number, dtype=np.int32)
    if policy.scorer == "e-pvm":
        return result
    counted = [r for r, weight in enumerate(policy.resource_weights[: state.axis]) if weight > 0]
    asked = limit[:, counted] * np.bincount(of_task, minlength=number)[:, None].astype(np.float64)
    machines = state.machines
    up = machines.up.astype(np.int64)
    for placed_by_limit, used in ((True, machines.prod_limit), (False, machines.reserved)):
        kind = by_limit == placed_by_limit
        if not kind.any():
            continue
        room = np.einsum("m,mr->r", up, np.maximum(machines.capacity - used, 0))[counted]
        if (asked[kind].sum(axis=0) > _MOST * room).any():
            result[kind] = result[0]
    return result
