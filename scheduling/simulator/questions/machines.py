"""Questions about machines: what a drain would do, and which machines the cell does not need, so that they can be
removed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.core.cell.machines import UP
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import EvictionCause, MachineStatus
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.simulator.simulation import Simulation

SETTLED_S = 60.0
"""Seconds that are simulated after a drain. Tasks that are then without a machine count as pending."""

MAY_STAY_PENDING = 0.002
"""The share of the running tasks that may stay pending in a smaller cell, as in §5.1 of the paper."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The effect of a drain. `moved`: tasks that had to leave the machines. `pending_before`, `pending_after`: pending
    tasks of the cell before the drain, and 60 s after its tasks have left. `preempted`: tasks on other machines that
    were evicted for them.
    """

    machines: int
    moved: int
    pending_before: int
    pending_after: int
    preempted: int

    @property
    def left_pending(self) -> int:
        return max(0, self.pending_after - self.pending_before)


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The machines that can be removed from a cell because its tasks fit on the others. `hostnames`: their names.
    `empty`: how many of them have no task now. `of`: how many machines of the cell are up. `drained`: what would happen
    to the tasks if these machines were drained.
    """

    hostnames: tuple[str, ...]
    empty: int
    of: int
    drained: Drained


def machines_of(simulation: Simulation, *, racks: Sequence[str] = (), hostnames: Sequence[str] = ()) -> list[int]:
    """Return the ids of the machines in `racks`, and of the machines with the names `hostnames`. Raises `LookupError`
    if the cell does not have one of them; the message names it.
    """
    facts = simulation.state.machines.facts.values()
    for wanted, known, what in (
        (racks, {one.rack for one in facts}, "rack"),
        (hostnames, {one.hostname for one in facts}, "machine"),
    ):
        missing = sorted(set(wanted) - known)
        if missing:
            example = min(known, default="")
            raise LookupError(
                f"the cell has no {what} {', '.join(missing)}; give names that exist, such as {example!r}"
            )
    return sorted(one.machine_id for one in facts if one.rack in set(racks) or one.hostname in set(hostnames))


def drain(simulation: Simulation, machine_ids: Sequence[int]) -> Drained:
    """Return what would happen if all tasks left these machines at once, and the machines accepted no new tasks.
    Disruption budgets, which make a real drain slower, do not apply. The question does not change `simulation`.
    """
    copied = simulation.copy()
    cell = copied.cell
    before = cell.pending
    copied.forget_figures()
    cell.begin(copied.now)
    moved = 0
    for machine_id in machine_ids:
        cell.append(events.MachineState(machine_id=machine_id, state=MachineStatus.DRAINING.value, reason="question"))
        cause = EvictionCause.MACHINE_SHUTDOWN.value
        leaving = [
            Eviction(identity, incarnation, cause, detail="its machine is being drained", gone=True)
            for _, identity, incarnation in cell.tasks_on(machine_id)
        ]
        moved += len(cell.evict(leaving))
    cell.flush()
    copied.run_only_passes(copied.now + SETTLED_S)
    evictions = copied.cell.keeper.figures.evictions
    preemption = EvictionCause.PREEMPTION.value
    return Drained(
        machines=len(machine_ids),
        moved=moved,
        pending_before=before,
        pending_after=copied.cell.pending,
        preempted=evictions[preemption, True] + evictions[preemption, False],
    )


def give_back(simulation: Simulation) -> GivenBack:
    """Return the machines that can be removed from the cell, as many as possible (§5.1). After their drain, only few
    tasks may stay pending: at most 0.2 % of the running tasks. Machines with the fewest tasks are chosen first. The
    number of machines is found by bisection.
    """
    table = simulation.state.machines
    up = table.order[table.status[table.order] == UP]
    slots = up[np.argsort(table.tasks[up], kind="stable")]
    ids = table.id[slots].tolist()
    may_wait = int(MAY_STAY_PENDING * simulation.state.running)
    low, high = 0, len(ids)
    best = drain(simulation, [])
    while high - low > max(1, len(ids) // 500):
        middle = (low + high) // 2
        tried = drain(simulation, ids[:middle])
        if tried.left_pending <= may_wait:
            low, best = middle, tried
        else:
            high = middle
    chosen = slots[:low].tolist()
    return GivenBack(
        hostnames=tuple(table.facts[slot].hostname for slot in chosen),
        empty=int(np.count_nonzero(table.tasks[slots[:low]] == 0)),
        of=len(ids),
        drained=best,
    )
