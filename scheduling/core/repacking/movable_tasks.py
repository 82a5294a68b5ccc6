"""The running tasks that a re-packing may move, and how many would leave with each machine."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduling.core.cell.machines import UP
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.placing.queue import Slots
from scheduling.core.repacking.repack_plan import MachineMoves, Move, RepackRules
from scheduling.core.vocabulary.kernel_arrays import Bools, Ints


class MovableTasks:
    """The running tasks of a state by machine, and which of them may move.

    `kept` [T]: whether a task must stay, by slot. Tasks of gangs stay, because a gang that loses a task may have to
    start again. So do tasks of jobs whose `max_running` holds others back, which would start first. `cost` [M]: how
    many tasks leave if the machine is freed, by slot of the machine. `busy` [M]: whether a task there must stay.
    `candidates`: slots of machines that are up and may be freed.
    """

    def __init__(self, state: CellState, rules: RepackRules) -> None:
        self.state, self.rules = state, rules
        tasks, machines = state.tasks, state.machines
        self.kept = self._kept()
        on = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0))
        self._tasks: Slots = on[np.lexsort((tasks.id[on], tasks.machine[on]))]
        number = len(machines.id)
        where = tasks.machine[self._tasks]
        self._first: Ints = np.searchsorted(where, np.arange(number + 1)).astype(np.int64)
        self.cost = np.diff(self._first)
        self.busy: Bools = np.bincount(where, weights=self.kept[self._tasks], minlength=number) > 0
        kept = np.isin(machines.id, np.fromiter(rules.kept_machines, np.int64, len(rules.kept_machines)))
        self.candidates: Slots = np.flatnonzero((machines.status == UP) & ~kept)
        self._inside: dict[int, Counter[int]] = {}
        inner = np.flatnonzero((tasks.state == RUNNING) & (tasks.alloc >= 0))
        for alloc, job in zip(tasks.alloc[inner].tolist(), tasks.job[inner].tolist(), strict=True):
            known = tasks.job_at[job]
            if known is not None:
                self._inside.setdefault(alloc, Counter())[known.id] += 1

    def on(self, machine: int) -> Slots:
        """Return the slots of the tasks on a machine (slot), without tasks inside allocs, which move with the alloc."""
        here = self._tasks[self._first[machine] : self._first[machine + 1]]
        result: Slots = here[self.state.tasks.alloc[here] < 0]
        return result

    def step(self, machine: int, leaving: Slots, places: Slots) -> MachineMoves:
        """Return the step in which the tasks `leaving` [N] leave the machine (slot). `places` [N]: slots of machines
        that can hold them.
        """
        tasks, machines = self.state.tasks, self.state.machines
        return MachineMoves(
            int(machines.id[machine]),
            tuple(
                Move(int(tasks.id[slot]), int(machines.id[at]) if at >= 0 else 0, self.inside(slot))
                for slot, at in zip(leaving.tolist(), places.tolist(), strict=True)
            ),
        )

    def inside(self, alloc: int) -> tuple[tuple[int, int], ...]:
        """Return how many tasks of each job run inside an alloc (slot), as (job id, number). Empty for other tasks."""
        return tuple(sorted(self._inside.get(alloc, Counter()).items()))

    def disrupted(self, leaving: Slots) -> Counter[int]:
        """Return how many tasks of each job leave if the tasks `leaving` do, by job id."""
        tasks = self.state.tasks
        result = Counter(job.id for slot in leaving.tolist() if (job := tasks.job_at[tasks.job[slot]]) is not None)
        for slot in leaving.tolist():
            result.update(dict(self.inside(slot)))
        return result

    def cheapest_first(self) -> list[int]:
        """Return the candidates on which no task must stay: those with the fewest tasks first, then those of which the
        smallest share is used, then those with the lowest ids.
        """
        machines = self.state.machines
        own = self.candidates[~self.busy[self.candidates]]
        capacity = np.maximum(machines.capacity[own], 1)
        used = np.max(np.maximum(machines.reserved[own], machines.prod_limit[own]) / capacity, axis=1)
        result: list[int] = own[np.lexsort((machines.id[own], used, self.cost[own]))].tolist()
        return result

    def _kept(self) -> Bools:
        """Return `kept`. An alloc stays if a task inside it must stay, and so do all tasks inside it."""
        tasks, rules = self.state.tasks, self.rules
        job_kept = np.ones(len(tasks.job_at), dtype=np.bool_)
        for job in tasks.jobs.values():
            allowed = rules.job_moves.get(job.id, 0) > 0 and job.id not in rules.kept_jobs and not job.gang
            if job.max_running and tasks.job_pending[job.slot]:
                allowed = False  # another task would take the place of one that leaves
            job_kept[job.slot] = not allowed or job.priority > rules.most_priority
        running = tasks.state == RUNNING
        kept: Bools = running & job_kept[tasks.job]
        inner = np.flatnonzero(running & (tasks.alloc >= 0))
        kept[tasks.alloc[inner[kept[inner]]]] = True
        kept[inner] |= kept[tasks.alloc[inner]]
        return kept


class MovesLeft:
    """How many more tasks a plan may move: of each job, and of all jobs (`total`)."""

    def __init__(self, rules: RepackRules) -> None:
        self._jobs = rules.job_moves
        self._taken: Counter[int] = Counter()
        self.total = rules.most_moves

    def take(self, disrupted: Counter[int]) -> bool:
        """Return whether these tasks may move too, given by job id. If so, count them."""
        number = sum(disrupted.values())
        if number > self.total or any(
            self._taken[job] + moved > self._jobs.get(job, 0) for job, moved in disrupted.items()
        ):
            return False
        self._taken.update(disrupted)
        self.total -= number
        return True

    def give_back(self, disrupted: Counter[int]) -> None:
        self._taken.subtract(disrupted)
        self.total += sum(disrupted.values())
