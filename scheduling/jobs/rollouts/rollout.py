"""Does the next step of a job's update (§2.3): changes some tasks to the new spec, or ends the update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import Max, Q, QuerySet

from quota.vocabulary.permissions import Principal
from scheduling.access.restarting_tasks import tasks_to_restart
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.core.vocabulary.states import EvictionCause, TaskState
from scheduling.core.vocabulary.task_events import Cause, Ending, Eviction
from scheduling.jobs.rollouts import restart_rule
from scheduling.jobs.rollouts.in_place_capacity import InPlaceCapacity
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.models import CrashedPair, Event, JobSpec, Task, Update
from scheduling.spec import job_spec, parser
from scheduling.tasks import counters, new_tasks, transitions
from scheduling.tasks.counters import SHRUNK
from scheduling.tasks.new_tasks import NewTasks

PENDING, RUNNING, DEAD = TaskState.PENDING.value, TaskState.RUNNING.value, TaskState.DEAD.value
# A task of the new version that was restarted this often and is not up counts as hopeless, which may stop the update.
HOPELESS_RESTARTS = 3
_MOST_DETAIL = 300
# A part of the detail of an update that was stopped because it had caused as many disruptions as it may.
KEPT = "keep their old version"
# A task that has not been up for `healthy_s` with the new version. Finished and killed tasks do not count.
UNSETTLED = """
SELECT 1 FROM scheduling_task AS t
WHERE t.job_id = u.job_id AND (t.state <> 'dead' OR t.outcome = 'failed')
  AND NOT (t.up AND t.spec_version = u.to_version AND t.since <= clock_timestamp() - make_interval(secs => u.healthy_s))
"""
UNREADY = f"{UNSETTLED} AND t.index < u.canary"
_COLUMNS = "id", "index", "state", "machine_id", "incarnation", "spec_version", "alloc_id", "limit", "outcome", "detail"


def advance(cell_id: int, job_id: int, *, principal: Principal, most: int | None = None) -> bool:
    """Continue a job's open update as far as possible now. Return whether anything changed.

    `most`: the largest number of new tasks to add in this call, or None for all.

    Locks: the cell's row, then the tasks in order of id. One transaction changes at most `journal.CHUNK` tasks.
    """
    changed = False
    while True:
        with journal.write(cell_id, principal) as entry:
            again = _advance_once(entry, job_id, most or journal.CHUNK)
            changed = changed or len(entry) > 0
        grew = any(isinstance(event, events.TasksAdded) for event in entry.events)
        if not again or (most is not None and grew):
            return changed


@dataclass(slots=True)
class _Step:
    """The changes of tasks in one step of an update. `left`: how many tasks keep the old version for now, because no
    more tasks may be down or be restarted now.
    """

    update: Update
    target: job_spec.JobSpecification
    specs: dict[int, job_spec.JobSpecification] = field(default_factory=dict)  # by version
    cause: Cause | None = None
    revive: list[int] = field(default_factory=list)
    evict: list[Eviction] = field(default_factory=list)
    follow: list[tuple[int, int, Requirement]] = field(default_factory=list)
    disruptions: int = 0
    left: int = 0

    def __bool__(self) -> bool:
        return bool(self.revive or self.evict or self.follow)

    def restarts(self, row: dict[str, Any]) -> bool:
        """Return whether the task must restart to change to the new spec."""
        before = self.specs.get(row["spec_version"])
        if before is None or row["index"] >= before.tasks:
            return True
        return restart_rule.change(before, self.target, row["index"]) is restart_rule.SpecChange.RESTART

    def add_follow(self, row: dict[str, Any]) -> None:
        """Record that the task changes to the new spec and keeps its state."""
        self.follow.append((row["id"], self.update.to_version, self.target.requirement(row["index"])))

    def add_restart(self, row: dict[str, Any], detail: str) -> None:
        """Record that the task is evicted and keeps its spec. It is then placed again."""
        cause = EvictionCause.UPDATE.value
        self.evict.append(Eviction(row["id"], row["incarnation"], cause, detail=detail, caused_by=self.cause))

    def add_evict(self, row: dict[str, Any]) -> None:
        """Record that the task is evicted and changes to the new spec. It is then placed again."""
        self.add_restart(row, f"update to version {self.update.to_version}")
        self.add_follow(row)

    def add_idle(self, row: dict[str, Any], capacity: InPlaceCapacity) -> None:
        """Record the change of a task that is not up. Such a task always changes in this step, because nothing is
        disrupted.
        """
        restarts = self.restarts(row)
        if row["state"] == RUNNING and (restarts or not capacity.in_place(row)):
            self.add_evict(row)
            return
        if row["state"] == DEAD and (row["detail"] == SHRUNK or (restarts and row["outcome"] != "killed")):
            self.revive.append(row["id"])
        self.add_follow(row)


def _advance_once(entry: JournalEntry, job_id: int, most: int) -> bool:
    """Continue an update within the transaction of `entry`, and add at most `most` new tasks. Return whether the
    caller should call this function again now.
    """
    update = Update.objects.select_related("job__cell").filter(job_id=job_id, state=Update.OPEN).first()
    if update is None or update.paused_at is not None:
        return False
    target = _load(update, [update.to_version])[update.to_version]
    # Until the canary tasks are promoted, the job gets no further tasks.
    if (not update.canary and _add_missing(entry, update, target, most)) or _end_surplus(entry, update, target):
        return True
    step = _choose_restarts(update, target) if update.restarts else _choose(update, target)
    if not step:
        _end_if_over(entry, update, target, step.left)
        return False
    if step.revive:
        transitions.tasks_revive(entry, step.revive, spec_version=update.to_version)
    if step.evict:
        transitions.tasks_evict(entry, step.evict)
    if step.follow:
        transitions.tasks_follow(entry, step.follow)
    if step.disruptions:
        update.disruptions += step.disruptions
        update.save(update_fields=["disruptions"])
    return True


def _load(update: Update, versions: list[int]) -> dict[int, job_spec.JobSpecification]:
    rows = JobSpec.objects.filter(job_id=update.job_id, version__in=versions)
    extra = tuple(update.job.cell.extra_resources)
    return {
        version: parser.load(stored, extra=extra, packages=packages)
        for version, stored, packages in rows.values_list("version", "spec", "packages")
    }


def _add_missing(entry: JournalEntry, update: Update, target: job_spec.JobSpecification, most: int) -> bool:
    highest = Task.objects.filter(job_id=update.job_id).aggregate(highest=Max("index"))["highest"]
    first = 0 if highest is None else highest + 1
    if first >= target.tasks:
        return False
    groups = target.groups(first, min(target.tasks, first + most) - 1)
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
    """Return a reference to the event that started the update, or None if the journal no longer contains this event.
    The event is the cause of all changes that the update makes.
    """
    place = (
        Event.objects.filter(job_id=update.job_id, kind="update.started", data__update_id=update.id)
        .order_by("-revision", "-seq")
        .values_list("revision", "seq")
        .first()
    )
    return Cause(*place) if place else None


def _choose(update: Update, target: job_spec.JobSpecification) -> _Step:
    """Return the next step of an update. The step changes all tasks that are not up, and all tasks that can change in
    place. Of the other tasks, it restarts only as many as may be down at the same time.
    """
    older = _changing(update, target).exclude(spec_version=update.to_version)
    idle = _rows(older.filter(up=False))
    serving = _rows(older.filter(up=True)) if len(idle) < journal.CHUNK else []
    if not idle and not serving:
        return _Step(update, target)
    specs = _load(update, sorted({row["spec_version"] for row in (*idle, *serving)}))
    step = _Step(update, target, specs, _cause(update))
    capacity = InPlaceCapacity(update, target, specs, [*idle, *serving])
    for row in idle:
        step.add_idle(row, capacity)
    budget = _budget(update, target, reviving=len(step.revive))
    for row in serving:
        if len(step.follow) >= journal.CHUNK:
            break
        if not step.restarts(row) and capacity.in_place(row):
            step.add_follow(row)
        elif step.disruptions < budget:
            step.add_evict(row)
            step.disruptions += 1
        else:
            step.left += 1
    return step


def _choose_restarts(update: Update, target: job_spec.JobSpecification) -> _Step:
    """Return the next step of a rolling restart. The step restarts all of its tasks that are not up. Of the other
    tasks, it restarts only as many as may be down at the same time.
    """
    left = tasks_to_restart(update)
    idle = _rows(left.filter(up=False))
    serving = _rows(left.filter(up=True)) if len(idle) < journal.CHUNK else []
    step = _Step(update, target, cause=_cause(update))
    budget = _budget(update, target)
    step.disruptions = min(budget, len(serving))
    step.left = len(serving) - step.disruptions
    for row in (*idle, *serving[:budget]):
        step.add_restart(row, f"restart by {update.actor}")
    return step


def _budget(update: Update, target: job_spec.JobSpecification, *, reviving: int = 0) -> int:
    """Return how many tasks that are up may restart now. `reviving`: how many dead tasks this step makes pending."""
    budget = max(0, update.max_down - _down(update, target) - reviving)
    if update.max_disruptions:
        budget = min(budget, max(0, update.max_disruptions - update.disruptions))
    return budget


def _rows(tasks: QuerySet[Task]) -> list[dict[str, Any]]:
    return list(tasks.order_by("id").values(*_COLUMNS)[: journal.CHUNK])


def _changing(update: Update, target: job_spec.JobSpecification) -> QuerySet[Task]:
    """Return the tasks that may change now: until their promotion, only the canary tasks."""
    return Task.objects.filter(job_id=update.job_id, index__lt=min(update.canary or target.tasks, target.tasks))


def _down(update: Update, target: job_spec.JobSpecification) -> int:
    """Return how many tasks are down, without those that are pending because of the job's `max_running`."""
    living = _changing(update, target).exclude(state=DEAD)
    down = living.filter(up=False).count()
    if target.max_running and down:
        down = max(0, down - max(0, living.count() - target.max_running))
    return down


def unready_canaries(update: Update) -> bool:
    """Return whether a canary task of the update has not been up long enough with the new version."""
    return _exists(update, UNREADY)


def _is_settled(update: Update) -> bool:
    """Return whether all tasks of the job have been up long enough with the new version, or have finished."""
    return not _exists(update, UNSETTLED)


def _exists(update: Update, tasks: str) -> bool:
    return bool(query(f"SELECT 1 FROM scheduling_update AS u WHERE u.id = %s AND EXISTS ({tasks})", [update.id]))


def _end_if_over(entry: JournalEntry, update: Update, target: job_spec.JobSpecification, left: int) -> None:
    down = _down(update, target)
    unchanged = left > 0 or update.canary > 0
    if not unchanged and (_is_settled(update) if update.rollback else update.disruptions == 0 or down == 0):
        update_end(entry, update, Update.DONE, "")
        return
    # `scheduling.jobs.update_gates` rolls an update back before it has to stop.
    hopeless = hopeless_tasks(update) if update.disruptions and not update.rollback else 0
    if hopeless and (hopeless >= update.max_down or (left == 0 and hopeless >= down)):
        if update.restarts:
            detail = f"{hopeless} tasks crash again and again; look at their logs, then update or restart the job"
        else:
            detail = f"{hopeless} tasks of version {update.to_version} crash again and again"
            detail += "; undo the update, or update again"
        update_end(entry, update, Update.STOPPED, detail)
    elif left and is_used_up(update) and down == 0:
        older = Task.objects.filter(job_id=update.job_id).exclude(spec_version=update.to_version).exclude(state=DEAD)
        detail = (
            f"{older.count()} tasks {KEPT}, because the update may cause at most {update.max_disruptions} disruptions"
        )
        update_end(entry, update, Update.STOPPED, detail)


def is_used_up(update: Update) -> bool:
    """Return whether the update has caused as many disruptions as it may."""
    return 0 < update.max_disruptions <= update.disruptions


def hopeless_tasks(update: Update) -> int:
    """Return the number of tasks of the new version that crash repeatedly; for a restart, of all tasks."""
    new = Task.objects.filter(job_id=update.job_id, up=False)
    if not update.restarts:
        new = new.filter(spec_version=update.to_version)
    crashed = CrashedPair.objects.filter(task__in=new, at__gte=update.created_at).values("task_id")
    return new.filter(
        Q(state=RUNNING, restarts__gte=HOPELESS_RESTARTS)
        | Q(state=PENDING, id__in=crashed)
        | Q(state=DEAD, outcome="failed", since__gte=update.created_at)
    ).count()


def update_end(entry: JournalEntry, update: Update, how: str, detail: str) -> None:
    """End an open update. `how`: its state afterwards. `detail`: the reason."""
    detail = detail[:_MOST_DETAIL]
    update.state, update.detail, update.ended_at = how, detail, entry.time
    update.save(update_fields=["state", "detail", "ended_at"])
    entry.append(events.UpdateEnded(job_id=update.job_id, update_id=update.id, how=how, detail=detail))
    counters.jobs_end_if_over(entry, [update.job_id])
