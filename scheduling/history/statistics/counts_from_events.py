"""Computes evictions, start times and delays from the events of a cell. Pure.

The state contains only what later events need: the live jobs, how many of their tasks are running, and for each task
that is not up yet, when its steps happened. It can be stored and read again between any two revisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event
from scheduling.history.statistics.tallies import HOUR_S, Figure, Tallies

_JOB = "job"
STARTING, UP = "starting", "up"


class OpenTask(msgspec.Struct, array_like=True):
    """A task that is pending, or that runs and was not up yet. Times are seconds since the epoch, and 0 is unknown.
    `again`: the task was placed before.
    """

    queued_at: float
    again: bool = False
    placed_at: float = 0.0
    starting_at: float = 0.0
    incarnation: int = 0
    spec_version: int = 0


class LiveJob(msgspec.Struct, array_like=True):
    """A job that has not ended. `counted`: whether its tasks are counted; false for alloc sets. `running`: how many of
    its tasks are running. `waiting`: its open tasks by index.
    """

    prod: bool
    counted: bool  # False for alloc sets
    running: int = 0
    waiting: dict[int, OpenTask] = {}


class FoldState(msgspec.Struct):
    """What the fold stores between events: the result of all events so far. `time`: the time of the last event, in
    seconds since the epoch. `running`: the numbers of running non-prod and prod tasks. `jobs`: the live jobs, by id.
    """

    time: float = 0.0
    running: list[int] = msgspec.field(default_factory=lambda: [0, 0])
    jobs: dict[int, LiveJob] = {}


@dataclass(frozen=True, slots=True)
class Start:
    """A task that is up for the first time in its incarnation. `install_s`: the seconds from its placement until its
    packages were installed and it started. `total_s`: the seconds from the beginning of its wait for a machine until it
    was up.
    """

    at: float
    job_id: int
    spec_version: int
    prod: bool
    install_s: float
    total_s: float


@dataclass(slots=True)
class Fold:
    """Applies events to a state and counts them. `is_prod`: returns whether a priority is a prod priority. `starts`:
    the starts of tasks since this object was made, for statistics per package.
    """

    state: FoldState
    is_prod: Callable[[int], bool]
    tallies: Tallies = field(default_factory=Tallies)
    starts: list[Start] = field(default_factory=list)

    def apply_all(self, news: Iterable[tuple[Event, float]]) -> None:
        """Apply events, oldest first, as (event, seconds since the epoch)."""
        for event, time in news:
            self.advance(time)
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, time)

    def begin(self, snapshot: Iterable[tuple[Event, float]], *, now: float) -> None:
        """Begin with a snapshot of the cell (`scheduling.master.snapshot`). The events of the snapshot are not counted.
        The waiting times of its tasks are unknown.
        """
        state = self.state
        for event, _ in snapshot:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event, 0.0)
        state.time = now
        for job in state.jobs.values():
            job.waiting = {index: task for index, task in job.waiting.items() if not task.incarnation}
        self.tallies, self.starts = Tallies(), []

    def advance(self, time: float) -> None:
        """Count the time that tasks were running until `time`."""
        state = self.state
        if state.time and time > state.time:
            for prod, number in enumerate(state.running):
                began = state.time
                while number and began < time:
                    end = min(time, (began // HOUR_S + 1) * HOUR_S)
                    for tally in self.tallies.at(began, Figure.RUNNING, prod=bool(prod)):
                        tally.add(number * (end - began), number=0)
                    began = end
        state.time = max(state.time, time)

    # --- events

    def _submitted(self, event: events.JobSubmitted, time: float) -> None:
        self.state.jobs[event.job_id] = LiveJob(self.is_prod(event.priority), event.job_kind == _JOB, waiting={})
        self._added(event, time)

    def _added(self, event: events.JobSubmitted | events.TasksAdded, time: float) -> None:
        if (job := self.state.jobs.get(event.job_id)) is not None:
            for group in event.groups:
                job.waiting.update((index, OpenTask(time)) for index in group.indexes())

    def _changed(self, event: events.JobChanged, time: float) -> None:
        job = self.state.jobs.get(event.job_id)
        if job is not None and job.prod != (prod := self.is_prod(event.priority)):
            if job.counted:
                self.state.running[job.prod] -= job.running
                self.state.running[prod] += job.running
            job.prod = prod

    def _ended(self, event: events.JobEnded, time: float) -> None:
        self.state.jobs.pop(event.job_id, None)

    def _revived(self, event: events.TaskRevived, time: float) -> None:
        if (job := self.state.jobs.get(event.job_id)) is not None:
            job.waiting[event.index] = OpenTask(time, again=True)

    def _placed(self, event: events.TaskPlaced, time: float) -> None:
        job = self.state.jobs.get(event.job_id)
        if job is None:
            return
        self._run(job, 1)
        task = job.waiting.setdefault(event.index, OpenTask(0.0))
        if job.counted and task.queued_at:
            label = "again" if task.again else "first"
            for tally in self.tallies.at(time, Figure.DELAY, prod=job.prod, label=label):
                tally.observe(max(0.0, time - task.queued_at))
        task.placed_at, task.incarnation, task.spec_version = time, event.incarnation, event.spec_version

    def _reported(self, event: events.TaskReported, time: float) -> None:
        job = self.state.jobs.get(event.job_id)
        task = job.waiting.get(event.index) if job is not None else None
        if job is None or task is None or task.incarnation != event.incarnation:
            return
        if event.phase in (STARTING, UP) and not task.starting_at:
            task.starting_at = time
        if event.up:
            del job.waiting[event.index]
            if job.counted and task.queued_at:
                self._started(event.job_id, job, task, time)

    def _started(self, job_id: int, job: LiveJob, task: OpenTask, time: float) -> None:
        starting_at = task.starting_at or time
        parts = {
            "queue": task.placed_at - task.queued_at,
            "install": starting_at - task.placed_at,
            "start": time - starting_at,
            "total": time - task.queued_at,
        }
        for part, seconds in parts.items():
            for tally in self.tallies.at(time, Figure.START, prod=job.prod, label=part):
                tally.observe(max(0.0, seconds))
        self.starts.append(Start(time, job_id, task.spec_version, job.prod, parts["install"], parts["total"]))

    def _evicted(self, event: events.TaskEvicted, time: float) -> None:
        job = self.state.jobs.get(event.job_id)
        if job is None:
            return
        self._run(job, -1)
        job.waiting[event.index] = OpenTask(time, again=True)
        if job.counted:
            for tally in self.tallies.at(time, Figure.EVICTIONS, prod=job.prod, label=event.cause):
                tally.add(0.0)

    def _finished(self, event: events.TaskEnded, time: float) -> None:
        job = self.state.jobs.get(event.job_id)
        if job is None:
            return
        if event.machine_id:
            self._run(job, -1)
        job.waiting.pop(event.index, None)

    def _run(self, job: LiveJob, change: int) -> None:
        job.running += change
        if job.counted:
            self.state.running[job.prod] += change


_HANDLERS: dict[type, Callable[[Fold, Any, float], None]] = {
    events.JobSubmitted: Fold._submitted,
    events.TasksAdded: Fold._added,
    events.JobChanged: Fold._changed,
    events.JobEnded: Fold._ended,
    events.TaskRevived: Fold._revived,
    events.TaskPlaced: Fold._placed,
    events.TaskReported: Fold._reported,
    events.TaskEvicted: Fold._evicted,
    events.TaskEnded: Fold._finished,
}
