"""Topics of live pages. A topic stands for one page. When events happen, the topic renders the changed parts of the
page.

The browser gets the message `{"seq", "revision", "rows": {id: html}, "parts": {id: html}, "resync": bool}`. Rows and
parts use the same templates as the page. If `resync` is true, the browser must load the whole page again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from django.db.models import Case, Q, TextField, Value, When
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Concat
from django.template.loader import render_to_string

from naming.api.selectors import jobs_of_service
from naming.table.names import ServiceName
from portal.sigma.jobs.job import live_context
from portal.sigma.reads.cells import machine_rows_by_id
from portal.sigma.reads.jobs import tasks_by_id
from portal.sigma.reads.names import service_over
from scheduling.cells.cell_counts import cell_counts
from scheduling.core.vocabulary.requirement import task_id
from scheduling.master.queue_health import queues
from scheduling.models import Event, Job, PendingVerdict, Task
from scheduling.services.selectors import service_at
from scheduling.services.weights import traffic_of

# A message with more rows costs more than reading the page again.
MOST_ROWS = 150
# If there are more new events, the browser reads the page again.
MOST_EVENTS = 5_000


class Happened(NamedTuple):
    """An event of the journal: its kind, and the job, the task (by index) and the machine that it concerns. `service`:
    for an event of a service, `tenant/service`; otherwise empty.
    """

    kind: str
    job_id: int | None
    task_index: int | None
    machine_id: int | None
    revision: int = 0
    service: str = ""


@dataclass(frozen=True, slots=True)
class CellNews:
    """The new events of a cell up to `revision`. `events`: the events, or None if there are too many to read."""

    revision: int
    events: Sequence[Happened] | None


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """The changed parts of a page. `rows`, `parts`: new HTML, by the id of the HTML element to replace. `resync`:
    whether the browser must load the whole page again.
    """

    rows: dict[str, str] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)
    resync: bool = False

    def message(self) -> dict[str, Any]:
        """Return the fields of the message to the browser."""
        return {"rows": self.rows, "parts": self.parts, "resync": self.resync}


class Announcement(Protocol):
    """Changes of a live page or of a watched name. All its viewers receive them as one message."""

    def message(self) -> dict[str, Any]:
        """Return the fields of the message to viewers."""


class Topic(Protocol):
    """A live page or a watched name. The topics of two viewers of the same page are equal, so the changes of the page
    are computed only once.
    """

    @property
    def cell_id(self) -> int: ...

    def changes(self, news: CellNews) -> Announcement | None:
        """Return the changes that new events cause, or None if nothing changed."""


@dataclass(frozen=True, slots=True)
class MachinesTopic:
    """The live page with the machines of a cell. When events happen, it renders the rows of the machines that they
    concern, and the counts of the cell.
    """

    cell_id: int

    def changes(self, news: CellNews) -> TopicChanges | None:
        if news.events is None:
            return TopicChanges(resync=True)
        events = [event for event in news.events if event.kind not in _NOT_OF_MACHINES]
        if not events:
            return None
        ids = {event.machine_id for event in events if event.machine_id} | self._resized_on(events)
        rows = machine_rows_by_id(self.cell_id, sorted(ids)) if len(ids) <= MOST_ROWS else []
        counts = cell_counts([self.cell_id])[self.cell_id]
        return TopicChanges(
            rows={f"machine-{row.machine.id}": _render("rows/machine", row=row) for row in rows},
            parts={
                "cell-counts": _render("parts/cell_counts", counts=counts),
                "cell-queues": _render("parts/cell_queues", queues=queues(self.cell_id)),
            },
            resync=len(ids) > MOST_ROWS or any(event.kind in ("machine.set", "machine.removed") for event in events),
        )

    def _resized_on(self, events: Sequence[Happened]) -> set[int]:
        """Return the ids of the machines whose tasks got new limits without a restart. The events of such changes do
        not contain the machine, so the method looks it up.
        """
        tasks = [
            task_id(event.job_id, event.task_index)
            for event in events
            if event.kind == "task.updated" and event.job_id is not None and event.task_index is not None
        ]
        if not tasks:
            return set()
        rows = Task.objects.filter(id__in=tasks, machine__isnull=False)
        return set(rows.values_list("machine_id", flat=True))


@dataclass(frozen=True, slots=True)
class TasksTopic:
    """The live page of a job. When events of the job happen, it renders the tasks that they concern, and the job's
    counters, update, events and explanations of pending tasks.
    """

    cell_id: int
    job_id: int

    def changes(self, news: CellNews) -> TopicChanges | None:
        if news.events is None:
            return TopicChanges(resync=True)
        events = [event for event in news.events if event.job_id == self.job_id]
        if not events:
            return None
        job = Job.objects.select_related("cell", "tenant").filter(pk=self.job_id).first()
        if job is None:
            return TopicChanges(resync=True)
        ids = {task_id(self.job_id, event.task_index) for event in events if event.task_index is not None}
        tasks = tasks_by_id(sorted(ids)) if len(ids) <= MOST_ROWS else []
        status = live_context(job)
        return TopicChanges(
            rows={f"task-{task.id}": _render("rows/task", task=task, job=job) for task in tasks},
            parts=({"job-grid": _render("parts/job_grid", **status)} if status["grid"] else {})
            | {
                "job-status": _render("parts/job_status", **status),
                "job-answers": _render("parts/job_answers", job=job),
                "job-events": _render("parts/job_events", **status),
            },
            resync=len(ids) > MOST_ROWS or any(event.kind in _RESHAPES_JOB for event in events),
        )


@dataclass(frozen=True, slots=True)
class Behind:
    """The live page of a service. When events of its jobs happen, it renders their states and the share of the clients
    that each job gets.
    """

    cell_id: int
    name: ServiceName

    def changes(self, news: CellNews) -> TopicChanges | None:
        if news.events is None:
            return TopicChanges(resync=True)
        own = {event.kind for event in news.events if event.service == f"{self.name.tenant}/{self.name.service}"}
        if "service.set" in own:
            return TopicChanges(resync=True)
        touched = {event.job_id for event in news.events if event.job_id is not None}
        if not touched and not own:
            return None
        jobs = jobs_of_service(self.name)
        ids = {job.id for job in jobs}
        reshaped = {event.job_id for event in news.events if event.kind in _RESHAPES_SERVICE}
        if reshaped & ids or self._left(news.events):
            return TopicChanges(resync=True)
        if not touched & ids and not own:
            return None
        found = service_at(jobs[0].cell, self.name.tenant, self.name.service) if jobs else None
        if found is None:
            return TopicChanges(resync=True)
        return TopicChanges(
            parts={
                "service-jobs": _render("parts/service_jobs", found=found),
                "service-tracks": _render("parts/service_tracks", traffic=traffic_of(found)),
                "service-answers": _render("parts/service_answers", service=service_over(self.name, jobs)),
            }
        )

    def _left(self, events: Sequence[Happened]) -> bool:
        """Return whether a job may have left the service, because the job ended or its tenant changed it."""
        changed = {event.job_id for event in events if event.kind == "job.changed"}
        ended = {event.job_id for event in events if event.kind == "job.ended"}
        if not changed and not ended:
            return False
        rows = Job.objects.filter(tenant__name=self.name.tenant)
        behind = Q(id__in=ended, labels__service=self.name.service)
        return rows.filter(Q(id__in=changed) | behind).exists()


# Events that do not change the row of a machine.
_NOT_OF_MACHINES = frozenset(
    {
        "cell.deleted",
        "cell.copied",
        "cell.restored",
        "cell.lease",
        "cell.brake",
        "cell.repacking",
        "cell.maintenance",
        "cell.pool",
        "packages.held",
        "reservations.set",
        "job.rejected",
        "job.released",
        "job.secret",
        "job.config",
        "cron.set",
        "cron.deleted",
        "cron.skipped",
        "template.set",
        "template.deleted",
        "service.set",
        "service.weighed",
        "workflow.set",
        "workflow.ended",
        "update.started",
        "update.paused",
        "update.promoted",
        "update.ended",
        "shell.opened",
        "shell.closed",
    }
)
# The buttons of a job's page depend on whether an update is open or paused.
_RESHAPES_JOB = frozenset(
    {"tasks.added", "job.changed", "job.ended", "update.started", "update.paused", "update.promoted", "update.ended"}
)
_RESHAPES_SERVICE = frozenset({"tasks.added", "job.submitted", "job.changed", "job.ended"})


# PostgreSQL reads the data of other events only if it needs them.
_SERVICE = Case(
    When(
        kind__in=("service.set", "service.weighed"),
        then=Concat(KeyTextTransform("tenant", "data"), Value("/", TextField()), KeyTextTransform("service", "data")),
    ),
    default=Value("", TextField()),
    output_field=TextField(),
)


def verdict_marks(job_ids: Sequence[int]) -> dict[int, Any]:
    """Return, by job id, when the scheduler last changed its explanation of the job's pending tasks. The value is None
    if the job has no explanation.

    The journal has no events for these explanations. Makes one query.
    """
    rows = PendingVerdict.objects.filter(job_id__in=job_ids)
    return dict.fromkeys(job_ids) | dict(rows.values_list("job_id", "at"))


def news_of(cell_id: int, *, after: int, until: int) -> CellNews:
    """Return the events of a cell whose revision is above `after` and at most `until`. Makes one query."""
    rows = (
        Event.objects.filter(cell_id=cell_id, revision__gt=after, revision__lte=until)
        .order_by("revision", "seq")
        .values_list("kind", "job_id", "task_index", "machine_id", "revision", _SERVICE)[: MOST_EVENTS + 1]
    )
    events = [Happened(*row) for row in rows]
    return CellNews(until, events if len(events) <= MOST_EVENTS else None)


def _render(template: str, **context: Any) -> str:
    return render_to_string(f"sigma/{template}.html", context)
