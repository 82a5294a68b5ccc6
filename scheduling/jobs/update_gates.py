"""Promotes the canary tasks of updates, and rolls back updates that fail (§2.3). The master does this once per second.

    open updates with canary tasks, rollback or a deadline ─► `gate_rules` ─► lock the cell, read again, and act

A job that is rolled back gets the spec of its last good version as a new version, by an update like any other.
"""

from __future__ import annotations

import datetime as dt

import structlog
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import TaskState
from scheduling.jobs import updates
from scheduling.jobs.rollouts.gate_rules import Gate, Watched, gate
from scheduling.jobs.rollouts.rollout import update_end
from scheduling.journal import journal
from scheduling.models import CrashedPair, Job, JobSpec, Task, Update

log = structlog.get_logger(__name__)
ME = system("updates")


def update_gates_check(cell_id: int) -> bool:
    """Promote, pause, stop or roll back the updates of a cell for which this is due. Return whether anything changed.

    Makes one query for any number of updates. For each change, locks the cell's row and then the rows of an update.
    """
    changed = False
    for update in _gated(Update.objects.filter(job__cell_id=cell_id)):
        now = timezone.now()
        if (what := gate(_watched(update, now))) is Gate.WAIT:
            continue
        if what is Gate.ROLL_BACK:
            _roll_back(update, _reason(update))
        else:
            _act(cell_id, update.id)
        changed = True
    return changed


def _gated(updates_: QuerySet[Update]) -> QuerySet[Update]:
    """Return the open updates that have a gate, with `failing` (the index of a task that fails) and `unready` (whether
    a canary task does not have the new version or is not up).
    """
    new = Task.objects.filter(job_id=OuterRef("job_id"))
    crashed = CrashedPair.objects.filter(task=OuterRef("pk"), at__gte=OuterRef("since"))
    failing = new.filter(spec_version=OuterRef("to_version"), up=False, since__gte=OuterRef("created_at")).filter(
        Q(state=TaskState.RUNNING.value, restarts__gte=1)
        | Q(state=TaskState.DEAD.value, outcome="failed")
        | Q(Exists(crashed), state=TaskState.PENDING.value)
    )
    unready = (
        new.filter(index__lt=OuterRef("canary"))
        .exclude(state=TaskState.DEAD.value)
        .exclude(spec_version=OuterRef("to_version"), up=True)
    )
    return (
        updates_.filter(Q(canary__gt=0) | Q(rollback=True) | Q(deadline_at__isnull=False), state=Update.OPEN)
        .select_related("job__cell", "job__tenant")
        .annotate(failing=Subquery(failing.order_by("index").values("index")[:1]), unready=Exists(unready))
        .order_by("id")
    )


def _watched(update: Update, now: dt.datetime) -> Watched:
    since = update.canary_up_since
    return Watched(
        canary=update.canary,
        canary_s=update.canary_s,
        up_s=None if since is None else (now - since).total_seconds(),
        ready=not update.unready,  # type: ignore[attr-defined]
        fails=update.failing is not None,  # type: ignore[attr-defined]
        late=update.deadline_at is not None and update.deadline_at <= now,
        rollback=update.rollback,
        paused=update.paused_at is not None,
    )


def _act(cell_id: int, update_id: int) -> None:
    """Do what the update needs now, under the lock of its cell."""
    with journal.write(cell_id, ME) as entry:
        update = _gated(Update.objects.filter(pk=update_id)).first()
        if update is None:
            return
        match gate(_watched(update, entry.time)):
            case Gate.UP:
                update.canary_up_since = entry.time
            case Gate.DOWN:
                update.canary_up_since = None
            case Gate.PROMOTE:
                update.canary = 0
            case Gate.PAUSE:
                update.paused_at = entry.time
                entry.append(events.UpdatePaused(job_id=update.job_id, update_id=update.id, paused=True))
            case Gate.STOP:
                update_end(entry, update, Update.STOPPED, _reason(update))
        update.save(update_fields=["canary", "canary_up_since", "paused_at"])


def _roll_back(update: Update, reason: str) -> None:
    """Return the job to its last good version. If this is not possible, the update stops, so that no further task
    changes.
    """

    def still_open(_: Job) -> None:
        if not Update.objects.filter(pk=update.pk, state=Update.OPEN).exists():
            raise Conflict("no-open-update", "the update has ended meanwhile")

    try:
        updates.job_update(
            principal=ME,
            job=update.job,
            job_spec=updates.spec_of(update.job, _last_good(update)),
            undo=True,
            rolled_back=reason,
            later=True,
            quiet=True,
            check=still_open,
        )
    except Rejected as problem:
        log.warning("an update could not be rolled back", job=update.job.name, problem=problem.detail)
        with journal.write(update.job.cell_id, ME) as entry:
            if (left := Update.objects.filter(pk=update.pk, state=Update.OPEN).first()) is not None:
                update_end(entry, left, Update.STOPPED, f"{reason}; it was not rolled back: {problem.detail}")


def _last_good(update: Update) -> int:
    """Return the newest version before the update to which an update of the job was finished, else the oldest version
    that PostgreSQL still has.
    """
    done = Update.objects.filter(job_id=update.job_id, state=Update.DONE, to_version__lte=update.from_version)
    kept = JobSpec.objects.filter(job_id=update.job_id, version__lte=update.from_version)
    finished = kept.filter(version__in=done.values("to_version")).order_by("-version")
    versions = [
        *finished.values_list("version", flat=True)[:1],
        *kept.order_by("version").values_list("version", flat=True)[:1],
    ]
    return versions[0]


def _reason(update: Update) -> str:
    index = update.failing  # type: ignore[attr-defined]
    if index is None:
        return f"the update to version {update.to_version} was not done within its deadline_s"
    return f"task {index} of version {update.to_version} crashes or fails its health checks"
