"""A simulated cell: its state, its journal, and the methods that place, evict and end its tasks.

The methods write the same events as the code of production, but change only memory. Changes are collected, and `flush`
applies them together to the state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import DEAD, RUNNING, LiveJob
from scheduling.core.placing.waking_events import may_let_place
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.core.vocabulary.task_events import (
    Ending,
    Eviction,
    InnerTask,
    ended_event,
    evicted_event,
    evictions_inside,
    placed_event,
    preemptions,
    victims_of,
)
from scheduling.simulator.figures import FigureKeeper
from scheduling.simulator.journal import Journal

_ALLOC_SET = "alloc-set"
_WORST = {"finished": 0, "failed": 1, "killed": 2}


class SimulatedCell:
    """The cell of one simulation. `now`: the virtual time in seconds. `placeable`: whether something has happened since
    the last pass that may let a pending task be placed.
    """

    def __init__(self, state: CellState, now: float) -> None:
        self.state = state
        self.now = now
        self.journal = Journal()
        self.keeper = FigureKeeper(state, now)
        self.placeable = True
        self._revision = state.revision
        self._batch: list[tuple[events.Event, int, float]] = []
        tasks = state.tasks
        alive = Counter(tasks.job[(tasks.state != 0) & (tasks.state != DEAD)].tolist())
        self._alive = {job.id: alive[job.slot] for job in tasks.jobs.values()}
        self._outcome: dict[int, str] = {}
        self._stopping: list[events.TaskEvicted] = []
        self._alloc_sets = {job.alloc_set for job in tasks.jobs.values() if job.alloc_set}

    @property
    def pending(self) -> int:
        """Return how many tasks wait for a machine, including changes that `flush` has not applied yet."""
        return self.keeper.pending[True] + self.keeper.pending[False]

    @property
    def running(self) -> int:
        return self.keeper.running

    def begin(self, now: float) -> None:
        """Begin a new revision at the time `now`."""
        self.pass_time(now)
        self._revision += 1

    def pass_time(self, now: float) -> None:
        """Set the clock to the time `now`, if this is later."""
        if now > self.now:
            self.keeper.pass_time(now)
            self.now = now

    def append(self, event: events.Event) -> None:
        """Add an event to the present revision."""
        self._batch.append((event, self._revision, self.now))
        self.journal.append(self._revision, self.now, event)
        self.keeper.figures.events += 1
        self.placeable = self.placeable or may_let_place(event, self._alloc_sets)

    def flush(self) -> None:
        """Apply all collected changes to the state."""
        if self._batch:
            batch, self._batch = self._batch, []
            self.state.apply_all(batch)

    def submit(self, job: events.JobSubmitted, *, prod: bool) -> None:
        self.append(job)
        self._alive[job.job_id] = sum(group.size for group in job.groups)
        if job.alloc_set:
            self._alloc_sets.add(job.alloc_set)
        self.keeper.submitted(job, prod)

    def running_of(self, identity: int) -> tuple[int, int] | None:
        """Return (machine id, incarnation) of a task, or None if it does not run. Call `flush` before."""
        job_id, index = split_task_id(identity)
        tasks = self.state.tasks
        job = tasks.jobs.get(job_id)
        slot = job.tasks.item(index) if job is not None and index < len(job.tasks) else -1
        if slot < 0 or tasks.state.item(slot) != RUNNING:
            return None
        machine = tasks.machine.item(slot)
        return (self.state.machines.id.item(machine) if machine >= 0 else 0), tasks.incarnation.item(slot)

    def place(self, assignments: Sequence[Assignment]) -> list[events.TaskPlaced]:
        """Evict the victims of the assignments, and place their tasks. Return the events of the placements."""
        claims = victims_of(assignments)
        if claims:
            running = {victim: there for victim in claims if (there := self.running_of(victim)) is not None}
            self.evict(preemptions(claims, running))
        placed = []
        jobs = self.state.tasks.jobs
        for assignment in assignments:
            job = jobs[assignment.job_id]
            incarnation = self.state.tasks.incarnation.item(job.tasks.item(assignment.index)) + 1
            event = placed_event(assignment, incarnation=incarnation)
            self.append(event)
            self.keeper.placed(event, job.by_limit)
            placed.append(event)
        return placed

    def evict(self, evictions: Sequence[Eviction]) -> list[events.TaskEvicted]:
        """Make running tasks pending again. If an alloc is evicted, the tasks inside it are evicted first (§2.4).
        Return the events.
        """
        along = self._along({eviction.task_id: eviction for eviction in evictions})
        by_id = {eviction.task_id: eviction for eviction in (*along, *evictions)}
        evicted = []
        for eviction in by_id.values():
            there = self.running_of(eviction.task_id)
            if there is None or there[1] != eviction.incarnation:
                continue
            event = evicted_event(eviction, machine_id=there[0], incarnation=there[1])
            self.append(event)
            self.keeper.evicted(event, self._job_of(eviction.task_id).by_limit)
            evicted.append(event)
        self._stopping += [event for event in evicted if not event.gone]
        return evicted

    def take_stopping(self) -> list[events.TaskEvicted]:
        """Return the evictions since the last call whose processes have not ended yet."""
        stopping, self._stopping = self._stopping, []
        return stopping

    def end(self, endings: Sequence[Ending]) -> list[events.TaskEnded]:
        """End pending or running tasks. If all tasks of a job are then dead, end the job too. Return the ends of the
        tasks, as events.
        """
        along = self._along({ending.task_id: ending for ending in endings})
        if along:
            self.evict(along)
            self.flush()
        ended = []
        for ending in endings:
            job_id, _ = split_task_id(ending.task_id)
            job = self._job_of(ending.task_id)
            there = self.running_of(ending.task_id)
            if there is not None and ending.incarnation is not None and ending.incarnation != there[1]:
                continue
            event = ended_event(ending, machine_id=there[0] if there else None, incarnation=there[1] if there else 0)
            self.append(event)
            self.keeper.ended(event, job.by_limit)
            ended.append(event)
            worst = self._outcome.get(job_id, "finished")
            self._outcome[job_id] = max(worst, ending.how, key=lambda how: _WORST[how])
            self._alive[job_id] -= 1
            if not self._alive[job_id]:
                self.append(events.JobEnded(job_id=job_id, how=self._outcome.pop(job_id)))
                del self._alive[job_id]
        return ended

    def tasks_on(self, machine_id: int) -> list[tuple[int, int, int]]:
        """Return (priority, task id, incarnation) of the tasks on a machine, without tasks inside allocs. Call `flush`
        before.
        """
        tasks, slot = self.state.tasks, self.state.machines.slot.get(machine_id)
        found = []
        at = self.state.machines.head.item(slot) if slot is not None else -1
        while at >= 0:
            priority = tasks.job_priority.item(tasks.job.item(at))
            found.append((priority, tasks.id.item(at), tasks.incarnation.item(at)))
            at = tasks.next.item(at)
        return found

    def _along(self, why: dict[int, Eviction | Ending]) -> list[Eviction]:
        """Return the evictions of the tasks inside the allocs that are evicted or ended. `why`: the eviction or the end
        of each task and alloc, by task id.
        """
        if not self._alloc_sets:
            return []
        tasks = self.state.tasks
        inside = []
        for identity in why:
            job = self._job_of(identity)
            if job.kind != _ALLOC_SET:
                continue
            _, index = split_task_id(identity)
            held = np.flatnonzero((tasks.alloc == job.tasks[index]) & (tasks.state == RUNNING))
            for slot in held.tolist():
                name = f"{job.name}/{index}"
                inside.append(InnerTask(int(tasks.id[slot]), int(tasks.incarnation[slot]), identity, name))
        return evictions_inside(sorted(inside, key=lambda inner: inner.task_id), why)

    def _job_of(self, identity: int) -> LiveJob:
        return self.state.tasks.jobs[split_task_id(identity)[0]]


def name_of(state: CellState, identity: int) -> str:
    """Return the name of the task with id `identity`, such as `web/3`."""
    job_id, index = split_task_id(identity)
    job = state.tasks.jobs.get(job_id)
    return f"{job.name if job is not None else job_id}/{index}"


def identity_of(event: events.TaskPlaced | events.TaskEvicted | events.TaskEnded) -> int:
    return task_id(event.job_id, event.index)
