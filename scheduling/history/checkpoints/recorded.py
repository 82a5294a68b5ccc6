"""A cell's state together with details of its jobs that the scheduler does not need, such as labels, versions of specs
and times. Checkpoints and pages show them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import LiveJob
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.published import Published


@dataclass(slots=True)
class JobDetails:
    """Details of a job. `versions`: the version of the spec by task index, where it differs from `first_version`, the
    version at submission. `since`: when a task was last placed or evicted, by task index; of running tasks,
    `TaskTable.since` is newer. `submitted_at` and `since` are in seconds since the epoch. `update`: the update that is
    in progress, and when it began.
    """

    uid: str
    labels: dict[str, str]
    published: Published
    first_version: int
    spec_version: int
    submitted_at: float
    versions: dict[int, int] = field(default_factory=dict)
    since: dict[int, float] = field(default_factory=dict)
    update: tuple[events.UpdateStarted, float] | None = None

    def version_of(self, index: int) -> int:
        """Return the version of the spec of a task."""
        return self.versions.get(index, self.first_version)


class RecordedState(CellState):
    """The state of a cell together with the details of its jobs. `details`: the details by job id. `time`: the time of
    the newest event that was applied, in seconds since the epoch.
    """

    def __init__(self, extra_resources: Iterable[str] = ()) -> None:
        super().__init__(extra_resources)
        self.details: dict[int, JobDetails] = {}
        self._handlers[events.UpdateStarted] = self._update_started
        self._handlers[events.UpdateEnded] = self._update_ended

    def _job_submitted(self, event: events.JobSubmitted, time: float) -> None:
        super()._job_submitted(event, time)
        version = event.spec_version
        self.details[event.job_id] = JobDetails(event.uid, event.labels, event.published, version, version, time)

    def _job_changed(self, event: events.JobChanged, time: float) -> None:
        super()._job_changed(event, time)
        details = self.details[event.job_id]
        details.labels, details.published = event.labels, event.published
        details.spec_version = event.spec_version

    def _tasks_added(self, event: events.TasksAdded, time: float) -> None:
        super()._tasks_added(event, time)
        details = self.details[event.job_id]
        for group in event.groups:
            details.versions.update(dict.fromkeys(group.indexes(), event.spec_version))

    def _tasks_placed(self, many: Sequence[events.TaskPlaced], times: Sequence[float]) -> None:
        super()._tasks_placed(many, times)
        known = self.details
        for event, time in zip(many, times, strict=True):
            details, index, version = known[event.job_id], event.index, event.spec_version
            details.since[index] = time
            if version != details.first_version or index in details.versions:
                details.versions[index] = version

    def _task_placed(self, event: events.TaskPlaced, time: float) -> None:
        super()._task_placed(event, time)
        details = self.details[event.job_id]
        details.since[event.index] = time
        if event.spec_version != details.first_version or event.index in details.versions:
            details.versions[event.index] = event.spec_version

    def _task_evicted(self, event: events.TaskEvicted, time: float) -> None:
        super()._task_evicted(event, time)
        self.details[event.job_id].since[event.index] = time

    def _task_revived(self, event: events.TaskRevived, time: float) -> None:
        super()._task_revived(event, time)
        details = self.details[event.job_id]
        details.since[event.index] = time
        details.versions[event.index] = event.spec_version

    def _task_updated(self, event: events.TaskUpdated, time: float) -> None:
        super()._task_updated(event, time)
        self.details[event.job_id].versions[event.index] = event.spec_version

    def _update_started(self, event: events.UpdateStarted, time: float) -> None:
        if event.job_id in self.details:
            self.details[event.job_id].update = (event, time)

    def _update_ended(self, event: events.UpdateEnded, time: float) -> None:
        details = self.details.get(event.job_id)
        if details is not None and details.update and details.update[0].update_id == event.update_id:
            details.update = None

    def _forget_if_over(self, job: LiveJob) -> None:
        super()._forget_if_over(job)
        if job.id not in self.tasks.jobs:
            del self.details[job.id]
