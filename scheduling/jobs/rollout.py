"""The next part of an update (§2.3): which tasks follow the new spec now, and when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import Max, Q, QuerySet

from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.core.vocabulary.states import EvictionCause, TaskState
from scheduling.jobs.in_place import InPlaceCapacity
from scheduling.journal import journal
from scheduling.journal.journal import Cause, JournalEntry
from scheduling.models import CrashedPair, Event, JobSpec, Task, Update
from scheduling.spec import job_spec, parser
from scheduling.spec.task_spec import SpecChange
from scheduling.tasks import counters, new_tasks, transitions
from scheduling.tasks.changes import Ending, Eviction
from scheduling.tasks.counters import SHRUNK
from scheduling.tasks.new_tasks import NewTasks

PENDING, RUNNING, DEAD = TaskState.PENDING.value, TaskState.RUNNING.value, TaskState.DEAD.value
# A task of the new version that was restarted this often and is not up counts as hopeless: it may stop the update.
HOPELESS_RESTARTS = 3


def advance(cell_id: int, job_id: int, *, principal: Principal, in_turns: bool = False) -> bool:
    """Continue a job's open update as far as possible now, in chunks. Return whether anything changed.

    `in_turns`: a job grows by only one chunk, and the caller continues after the turns of other jobs.

    Locks: the cell's row, then the tasks in order of id; at most `journal.CHUNK` tasks at a time.
    """
    changed = False
    while True:
        with journal.write(cell_id, principal) as entry:
            again = _step(entry, job_id)
            changed = changed or len(entry) > 0
        grew = any(isinstance(event, events.TasksAdded) for event in entry.events)
        if not again or (in_turns and grew):
            return changed


@dataclass(slots=True)
class _Part:
    """The changes of tasks in one step. `left`: tasks that wait for others to be up."""

    revive: list[int] = field(default_factory=list)
    evict: list[Eviction] = field(default_factory=list)
    follow: list[tuple[int, int, Requirement]] = field(default_factory=list)
    disruptions: int = 0
    left: int = 0

    def __bool__(self) -> bool:
        return bool(self.revive or self.evict or self.follow)


def _step(entry: JournalEntry, job_id: int) -> bool:
    """Do one chunk of an update. Return whether there may be more to do at once."""
    update = Update.objects.select_related("job__cell").filter(job_id=job_id, state=Update.OPEN).first()
    if update is None:
        return False
    target = _load(update, [update.to_version])[update.to_version]
    if _add_missing(entry, update, target) or _end_surplus(entry, update, target):
        return True
    part = _choose(update, target)
    if not part:
        _end_if_over(entry, update, target, part.left)
        return False
    if part.revive:
        transitions.tasks_revive(entry, part.revive, spec_version=update.to_version)
    if part.evict:
        transitions.tasks_evict(entry, part.evict)
    transitions.tasks_follow(entry, part.follow)
    if part.disruptions:
        update.disruptions += part.disruptions
        update.save(update_fields=["disruptions"])
    return True


def _load(update: Update, versions: list[int]) -> dict[int, job_spec.JobSpecification]:
    rows = JobSpec.objects.filter(job_id=update.job_id, version__in=versions)
    extra = tuple(update.job.cell.extra_resources)
    return {
        version: parser.load(stored, extra=extra, packages=packages)
        for version, stored, packages in rows.values_list("version", "spec", "packages")
    }


def _add_missing(entry: JournalEntry, update: Update, target: job_spec.JobSpecification) -> bool:
    highest = Task.objects.filter(job_id=update.job_id).aggregate(highest=Max("index"))["highest"]
    first = 0 if highest is None else highest + 1
    if first >= target.tasks:
        return False
    groups = target.groups(first, min(target.tasks, first + journal.CHUNK) - 1)
    entry.append(events.TasksAdded(job_id=update.job_id, groups=groups, spec_version=update.to_version))
    new_tasks.tasks_create(entry, [NewTasks(update.job_id, groups, update.to_version)])
    return True


def _end_surplus(entry: JournalEntry, update: Update, target: job_spec.JobSpecification) -> bool:
    surplus = (
        Task.objects.filter(job_id=update.job_id, index__gte=target.tasks)
        .exclude(state=DEAD)
        .order_by("id")
        .values_list("id", flat=True)[: journal.CHUNK]
    )
    cause = _cause(update)
    endings = [Ending(task, "killed", cause="update", detail=SHRUNK, caused_by=cause) for task in surplus]
    return bool(endings) and bool(transitions.tasks_end(entry, endings))


def _cause(update: Update) -> Cause | None:
    """The event that started the update: what happens to its tasks happens because of it."""
    place = (
        Event.objects.filter(job_id=update.job_id, kind="update.started", data__update_id=update.id)
        .order_by("-revision", "-seq")
        .values_list("revision", "seq")
        .first()
    )
    return Cause(*place) if place else None


def _choose(update: Update, target: job_spec.JobSpecification) -> _Part:
    """Tasks that are not up follow at once; of those that are up, as many as may be down."""
    older = Task.objects.filter(job_id=update.job_id, index__lt=target.tasks).exclude(spec_version=update.to_version)
    idle = _rows(older.filter(up=False))
    serving = _rows(older.filter(up=True)) if len(idle) < journal.CHUNK else []
    part = _Part()
    if not idle and not serving:
        return part
    specs = _load(update, sorted({row["spec_version"] for row in (*idle, *serving)}))
    cause = _cause(update)
    room = InPlaceCapacity(update, target, specs, [*idle, *serving])
    for row in idle:
        _take(part, update, target, specs, row, room, cause)
    budget = max(0, update.max_down - _down(update, target) - len(part.revive))
    if update.max_disruptions:
        budget = min(budget, max(0, update.max_disruptions - update.disruptions))
    for row in serving:
        if len(part.follow) >= journal.CHUNK:
            break
        if _kind(target, specs, row) is not SpecChange.RESTART and room.in_place(row):
            part.follow.append((row["id"], update.to_version, target.requirement(row["index"])))
        elif part.disruptions < budget:
            _evict(part, update, target, row, cause)
            part.disruptions += 1
        else:
            part.left += 1
    return part


def _rows(tasks: QuerySet[Task]) -> list[dict[str, Any]]:
    return list(
        tasks.order_by("id").values(  # type: ignore[arg-type]
            "id",
            "index",
            "state",
            "machine_id",
            "incarnation",
            "spec_version",
            "alloc_id",
            "limit",
            "outcome",
            "detail",
        )[: journal.CHUNK]
    )


def _kind(
    target: job_spec.JobSpecification, specs: dict[int, job_spec.JobSpecification], row: dict[str, Any]
) -> SpecChange:
    before = specs.get(row["spec_version"])
    if before is None or row["index"] >= before.tasks:
        return SpecChange.RESTART
    return job_spec.change(before, target, row["index"])


def _take(
    part: _Part,
    update: Update,
    target: job_spec.JobSpecification,
    specs: dict[int, job_spec.JobSpecification],
    row: dict[str, Any],
    room: InPlaceCapacity,
    cause: Cause | None,
) -> None:
    """Update a task that is not up now, because this disrupts nothing."""
    restart = _kind(target, specs, row) is SpecChange.RESTART
    if row["state"] == RUNNING and (restart or not room.in_place(row)):
        _evict(part, update, target, row, cause)
        return
    if row["state"] == DEAD and (row["detail"] == SHRUNK or (restart and row["outcome"] != "killed")):
        part.revive.append(row["id"])
    part.follow.append((row["id"], update.to_version, target.requirement(row["index"])))


def _evict(
    part: _Part, update: Update, target: job_spec.JobSpecification, row: dict[str, Any], cause: Cause | None
) -> None:
    part.evict.append(
        Eviction(
            row["id"],
            row["incarnation"],
            EvictionCause.UPDATE.value,
            detail=f"update to version {update.to_version}",
            caused_by=cause,
        )
    )
    part.follow.append((row["id"], update.to_version, target.requirement(row["index"])))


def _down(update: Update, target: job_spec.JobSpecification) -> int:
    return Task.objects.filter(job_id=update.job_id, index__lt=target.tasks, up=False).exclude(state=DEAD).count()


def _end_if_over(entry: JournalEntry, update: Update, target: job_spec.JobSpecification, left: int) -> None:
    down = _down(update, target)
    if left == 0 and (update.disruptions == 0 or down == 0):
        _end(entry, update, Update.DONE, "")
        return
    hopeless = _hopeless(update) if update.disruptions else 0
    if hopeless and (hopeless >= update.max_down or (left == 0 and hopeless >= down)):
        detail = f"{hopeless} tasks of version {update.to_version} do not come up; undo the update, or update again"
        _end(entry, update, Update.STOPPED, detail)
    elif left and update.max_disruptions and update.disruptions >= update.max_disruptions and down == 0:
        detail = f"{left} tasks keep their version, because at most {update.max_disruptions} disruptions were allowed"
        _end(entry, update, Update.STOPPED, detail)


def _hopeless(update: Update) -> int:
    """Return the number of tasks of the new version that crash repeatedly, according to the rows."""
    new = Task.objects.filter(job_id=update.job_id, spec_version=update.to_version, up=False)
    crashed = CrashedPair.objects.filter(task__in=new, at__gte=update.created_at).values("task_id")
    return new.filter(
        Q(state=RUNNING, restarts__gte=HOPELESS_RESTARTS)
        | Q(state=PENDING, id__in=crashed)
        | Q(state=DEAD, outcome="failed", since__gte=update.created_at)
    ).count()


def _end(entry: JournalEntry, update: Update, how: str, detail: str) -> None:
    update.state, update.detail, update.ended_at = how, detail, entry.time
    update.save(update_fields=["state", "detail", "ended_at"])
    entry.append(events.UpdateEnded(job_id=update.job_id, update_id=update.id, how=how, detail=detail))
    counters.jobs_end_if_over(entry, [update.job_id])
