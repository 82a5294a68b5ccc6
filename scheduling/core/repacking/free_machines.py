"""The plan that frees whole machines.

candidates, fewest tasks first ─► chosen, within all limits ─► places for all their tasks together ─┐
         ▲                                                                                          │
         └──────── machines with a task that fits nowhere are left out, the next ones come ◄────────┘
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.placing.queue import Slots
from scheduling.core.repacking.movable_tasks import MovableTasks, MovesLeft
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.repacking.repack_plan import RepackPlan, RepackRules
from scheduling.core.vocabulary.policy import Policy

# So often the plan replaces machines whose tasks fit nowhere. Afterwards it only leaves such machines out.
ROUNDS = 100


def plan_free_machines(
    state: CellState, policy: Policy, rules: RepackRules, *, number: int, now: float, spares: int = 0
) -> RepackPlan:
    """Return a plan after which `number` machines have no task, machines without tasks included. If fewer can be freed
    within the rules, the plan frees as many as it finds, and has the obstacles.

    `spares`: how many further machines the plan names, if the rules allow it for all of them together.
    """
    plan = _Search(state, policy, rules, now).plan(number, spares)
    if spares and not plan.reached:
        plan = _Search(state, policy, rules, now).plan(number, 0)
    return plan


class _Search:
    def __init__(self, state: CellState, policy: Policy, rules: RepackRules, now: float) -> None:
        self.state = state
        self.movable = MovableTasks(state, rules)
        self.left = MovesLeft(rules)
        self.relocation = Relocation(state, policy, now=now)
        machines = state.machines
        self.closed = np.array(
            [machines.slot[machine] for machine in sorted(rules.closed_machines) if machine in machines.slot],
            dtype=np.int64,
        )
        self.waiting = self.movable.cheapest_first()
        self.chosen: list[int] = []
        self.failed = 0

    def plan(self, number: int, spares: int) -> RepackPlan:
        places = self._find(number + spares)
        reached = len(self.chosen) >= number
        steps = tuple(self.movable.step(m, self.movable.on(m), places[m]) for m in self.chosen)
        return RepackPlan(
            steps=steps[:number],
            spares=steps[number:],
            already_free=sum(not step.moves for step in steps[:number]),
            reached=reached,
            obstacles={} if reached else self._obstacles(),
        )

    def _find(self, number: int) -> dict[int, Slots]:
        """Choose machines whose tasks all fit elsewhere, at most `number`. Return the places of their tasks."""
        rounds = 0
        while True:
            if rounds < ROUNDS:
                self._choose(number)
            places = self._places()
            failed = self._without_place(places)
            if not failed:
                return places
            rounds += 1
            self._leave_out(failed)
            self.failed += len(failed)
            if rounds > 2 * ROUNDS:  # machines come and go in turn: fewer are surely possible
                self._leave_out(self.chosen[len(self.chosen) // 2 :])

    def _without_place(self, places: dict[int, Slots]) -> list[int]:
        return [machine for machine in self.chosen if (places[machine] < 0).any()]

    def _leave_out(self, machines: list[int]) -> None:
        for machine in machines:
            self.left.give_back(self._disrupted(machine))
        out = set(machines)
        self.chosen = [machine for machine in self.chosen if machine not in out]

    def _obstacles(self) -> dict[str, int]:
        kept = int(np.count_nonzero(self.movable.busy[self.movable.candidates]))
        found = {"kept-task": kept, "limit": len(self.waiting), "no-place": self.failed}
        return {code: number for code, number in found.items() if number}

    @cache  # noqa: B019 - the search ends with the plan
    def _disrupted(self, machine: int) -> Counter[int]:
        return self.movable.disrupted(self.movable.on(machine))

    def _choose(self, number: int) -> None:
        """Add candidates to the chosen machines until there are `number`. The others wait, and may be chosen later, if
        machines with the same jobs are left out.
        """
        passed_over: list[int] = []
        for position, machine in enumerate(self.waiting):
            if len(self.chosen) >= number or self.movable.cost[machine] > self.left.total:
                self.waiting = passed_over + self.waiting[position:]
                return
            if self.left.take(self._disrupted(machine)):
                self.chosen.append(machine)
            else:
                passed_over.append(machine)
        self.waiting = passed_over

    def _places(self) -> dict[int, Slots]:
        """Return the places of the tasks on the chosen machines, by slot of the machine, in the order of `on`."""
        there = [self.movable.on(machine) for machine in self.chosen]
        leaving = np.concatenate([np.zeros(0, dtype=np.int64), *there])
        closed = np.concatenate((self.closed, np.array(self.chosen, dtype=np.int64)))
        found = self.relocation.places(leaving, closed)
        ends = np.cumsum([len(tasks) for tasks in there], dtype=np.int64)
        return dict(zip(self.chosen, np.split(found, ends[:-1]) if len(there) else [], strict=True))
