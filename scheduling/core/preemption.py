"""Whom a task takes the place of (§2.5, §3.2): from the lowest priority up, and never more than needed."""

from __future__ import annotations

from quota.bands import may_preempt
from scheduling.core.feasibility import EquivalenceClass, Ledger
from scheduling.core.policy import Policy
from scheduling.core.state import CellState, Ints, TaskRecord


def victims_on(
    state: CellState,
    ledger: Ledger,
    policy: Policy,
    wanted: EquivalenceClass,
    slot: int,
    need: Ints,
    already: set[int],
) -> tuple[TaskRecord, ...] | None:
    """The victims on one machine, lowest priority first; None when not even all of them make room.

    `already`: task ids that this pass has preempted. One whose leaving turns out unnecessary is spared.
    """
    there = state.machines[state.machine_id(slot)].tasks
    candidates = sorted(
        (
            task
            for identity in there
            if identity not in already
            and may_preempt(
                wanted.priority, state.jobs[(task := state.tasks[identity]).job_id].priority, policy.bands
            )
        ),
        key=lambda task: (state.jobs[task.job_id].priority, task.task_id),
    )
    chosen: list[TaskRecord] = []
    for task in candidates:
        if ledger.fits(wanted, slot, need, tuple(chosen)):
            break
        chosen.append(task)
    if not ledger.fits(wanted, slot, need, tuple(chosen)):
        return None
    for task in reversed(tuple(chosen)):
        spared = tuple(other for other in chosen if other is not task)
        if ledger.fits(wanted, slot, need, spared):
            chosen = list(spared)
    return tuple(chosen)
