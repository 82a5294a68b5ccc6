"""The plan that frees whole machines.

candidates, fewest tasks first ─► chosen, within all limits ─► places for all their tasks together ─┐
         ▲                                                                                          │
         └──────── machines with a task that fits nowhere are left out, the next ones come ◄────────┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.placing.queue import Slots
from scheduling.core.repacking.movable_tasks import MovableTasks, MovesLeft
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.repacking.repack_plan import RepackPlan, RepackRules
from scheduling.core.vocabulary.policy import Policy

# So often the plan replaces machines whose tasks fit nowhere. Afterwards it only leaves such machines out.
ROUNDS = 100
# In each round, this share of the machines with a task that fits nowhere is left out: those with the most tasks.
LEFT_OUT = 0.5


def plan_free_machines(
    state: CellState,
    policy: Policy,
    rules: RepackRules,
    *,
    number: int,
    now: float,
    spares: int = 0,
    has_time: Callable[[], bool] = lambda: True,
) -> RepackPlan:
    """Return a plan after which `number` machines have no task, machines without tasks included. If fewer can be freed
    within the rules, no further machine can be added to the plan, and it has the obstacles.

    `spares`: how many further machines the plan names, if the rules allow it for all of them together. `has_time`:
    when it returns False, the search ends with what it has found (obstacle `time`).
    """
    plan = _Search(state, policy, rules, now, has_time).plan(number, spares)
    if spares and not plan.reached:
        plain = _Search(state, policy, rules, now, has_time).plan(number, 0)
        plan = plain if len(plain.steps) >= len(plan.steps) else plan  # there may have been no time for it
    return plan


class _Search:
    def __init__(
        self, state: CellState, policy: Policy, rules: RepackRules, now: float, has_time: Callable[[], bool]
    ) -> None:
        self.state = state
        self.movable = MovableTasks(state, rules)
        self.left = MovesLeft(rules)
        self.relocation = Relocation(state, policy, now=now)
        self.has_time = has_time
        machines = state.machines
        self.closed = np.array(
            [machines.slot[machine] for machine in sorted(rules.closed_machines) if machine in machines.slot],
            dtype=np.int64,
        )
        self.waiting = self.movable.cheapest_first()
        self.chosen: list[int] = []
        self.failed: list[int] = []
        self._known: dict[int, Counter[int]] = {}

    def plan(self, number: int, spares: int) -> RepackPlan:
        places = self._find(number + spares)
        if len(self.chosen) < number and not spares:
            places = self._add_singly(number, places)
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
            searching = rounds < ROUNDS and self.has_time()
            if searching:
                self._choose(number)
            places = self._places()
            failed = self._without_place(places)
            if not failed:
                return places
            rounds += 1
            # Machines are closed together, so the others may fit when some are left out.
            failed.sort(key=lambda machine: self.movable.cost[machine])
            kept = int(len(failed) * (1.0 - LEFT_OUT)) if searching else 0
            self._leave_out(failed[kept:])
            self.failed += failed[kept:]

    def _add_singly(self, number: int, places: dict[int, Slots]) -> dict[int, Slots]:
        """Add machines one by one, each if all tasks still fit, until there are `number` or none can be added. Return
        the places of all tasks.
        """
        added = True
        while added:
            added = False
            for machine in sorted([*self.failed, *self.waiting], key=lambda one: (self.movable.cost[one], one)):
                if len(self.chosen) >= number or not self.has_time():
                    return places
                if machine in places or not self.left.take(self._disrupted(machine)):
                    continue
                self.chosen.append(machine)
                found = self._places()
                if self._without_place(found):
                    self._leave_out([machine])
                else:
                    places, added = found, True
        return places

    def _without_place(self, places: dict[int, Slots]) -> list[int]:
        return [machine for machine in self.chosen if (places[machine] < 0).any()]

    def _leave_out(self, machines: list[int]) -> None:
        for machine in machines:
            self.left.give_back(self._disrupted(machine))
        out = set(machines)
        self.chosen = [machine for machine in self.chosen if machine not in out]

    def _obstacles(self) -> dict[str, int]:
        kept = int(np.count_nonzero(self.movable.busy[self.movable.candidates]))
        chosen = set(self.chosen)
        waiting, failed = set(self.waiting) - chosen, set(self.failed) - chosen
        found = {"kept-task": kept, "limit": len(waiting - failed), "no-place": len(failed)}
        found["time"] = int(not self.has_time())
        return {code: number for code, number in found.items() if number}

    def _disrupted(self, machine: int) -> Counter[int]:
        known = self._known.get(machine)
        if known is None:
            known = self._known[machine] = self.movable.disrupted(self.movable.on(machine))
        return known

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
