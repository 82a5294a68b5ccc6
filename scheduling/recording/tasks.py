"""The rows of the tasks of a recorded cell in memory. Events of its simulation change them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import INDEX_BITS
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.models import Job

COLUMNS = (
    *("id", "cell_id", "job_id", "index", "state", "machine_id", "incarnation", "spec_version", "limit", "reservation"),
    *("ports", "phase", "health", "up", "restarts", "evictions", "outcome", "detail", "since"),
)
"""The columns that `RecordedTasks.rows` has, for `copy_rows.values`."""


@dataclass(slots=True)
class RecordedTask:
    """The row of a task: those of its columns that events change."""

    limit: tuple[int, ...]
    reservation: tuple[int, ...]
    since: float
    state: str = TaskState.PENDING.value
    machine_id: int | None = None
    incarnation: int = 0
    ports: tuple[int, ...] = ()
    phase: str = ""
    health: str = ""
    up: bool = False
    evictions: int = 0
    outcome: str = ""
    detail: str = ""

    def leave(self, state: TaskState, time: float, detail: str) -> None:
        self.state, self.since, self.detail = state.value, time, detail
        self.machine_id, self.ports, self.phase, self.health, self.up = None, (), "", "", False
        self.reservation = self.limit


class RecordedTasks:
    """The tasks of a recorded cell, by job id and index. `outcomes`: (outcome, seconds since the epoch) of the jobs
    that have ended, by job id.
    """

    def __init__(self) -> None:
        self.by_job: dict[int, dict[int, RecordedTask]] = {}
        self.outcomes: dict[int, tuple[str, float]] = {}

    def runs(self, job_id: int, index: int, incarnation: int) -> bool:
        """Return whether this incarnation of a task runs."""
        task = self.by_job[job_id][index]
        return task.machine_id is not None and task.incarnation == incarnation

    def apply(self, event: events.Event, time: float) -> None:
        """Apply an event that happened at `time`, in seconds since the epoch."""
        match event:
            case events.JobSubmitted():
                self.by_job[event.job_id] = {
                    index: RecordedTask(group.requirement.limit, group.requirement.limit, time)
                    for group in event.groups
                    for index in group.indexes()
                }
            case events.TaskPlaced():
                task = self.by_job[event.job_id][event.index]
                task.state, task.machine_id, task.since = TaskState.RUNNING.value, event.machine_id, time
                task.incarnation, task.ports, task.detail = event.incarnation, event.ports, ""
            case events.TaskReported():
                task = self.by_job[event.job_id][event.index]
                task.phase, task.health, task.up = event.phase, event.health, event.up
            case events.TaskEvicted():
                task = self.by_job[event.job_id][event.index]
                task.evictions += 1
                task.leave(TaskState.PENDING, time, event.detail)
            case events.TaskEnded():
                task = self.by_job[event.job_id][event.index]
                task.outcome = event.how
                task.leave(TaskState.DEAD, time, event.detail)
            case events.JobEnded():
                self.outcomes[event.job_id] = (event.how, time)
            case events.ReservationsSet():
                for (job_id, index), reservation in zip(event.tasks, event.reservations, strict=True):
                    self.by_job[job_id][index].reservation = reservation

    def rows(self, cell_id: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of all tasks, in the order of `COLUMNS`."""
        for job_id, tasks in self.by_job.items():
            for index, task in tasks.items():
                yield (
                    *(job_id << INDEX_BITS | index, cell_id, job_id, index, task.state, task.machine_id),
                    *(task.incarnation, 1, task.limit, task.reservation, task.ports, task.phase, task.health, task.up),
                    *(0, task.evictions, task.outcome, task.detail, dt.datetime.fromtimestamp(task.since, dt.UTC)),
                )

    def count_into(self, jobs: Mapping[int, Job]) -> None:
        """Set columns of each job from the rows of its tasks: the counts of its tasks per state, and the state, the
        outcome and the end of the job. `jobs`: the rows of jobs by id.
        """
        for job_id, job in jobs.items():
            tasks = self.by_job[job_id].values()
            job.tasks_pending = sum(task.state == TaskState.PENDING for task in tasks)
            job.tasks_running = sum(task.state == TaskState.RUNNING for task in tasks)
            job.tasks_dead = len(tasks) - job.tasks_pending - job.tasks_running
            job.tasks_up = sum(task.up for task in tasks)
            if job_id in self.outcomes:
                job.outcome, ended_at = self.outcomes[job_id]
                job.state, job.ended_at = JobState.DEAD.value, dt.datetime.fromtimestamp(ended_at, dt.UTC)
            elif any(task.incarnation for task in tasks):
                job.state = JobState.RUNNING.value
