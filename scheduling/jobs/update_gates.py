"""Promotes the canary tasks of updates, and rolls back updates that fail (§2.3). The master does this once per second.

    open updates with canary tasks, rollback or a deadline ─► `gate_rules` ─► lock the cell, read again, and act

A job that is rolled back gets the spec of its last good version as a new version, by an update like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import structlog
from django.utils import timezone

from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import undone
from scheduling.jobs.rollouts.failing_tasks import FIGURES, failing_since
from scheduling.jobs.rollouts.gate_rules import Gate, Watched, gate
from scheduling.jobs.rollouts.rollout import UNREADY, UNSETTLED, update_end
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Job, JobSpec, Update

log = structlog.get_logger(__name__)
ME = system("updates")

# The lowest index of a task of the new version that is not up because it failed since the update began. The tasks are
# read only if the update may be rolled back and the job's counters show that some of its tasks are not up.
_FAILING = f"""
SELECT t.index FROM scheduling_task AS t
WHERE u.rollback AND j.tasks_up < j.tasks_total AND t.job_id = u.job_id AND t.spec_version = u.to_version
  AND (u.canary = 0 OR t.index < u.canary) AND {failing_since("u.created_at")}
ORDER BY t.index LIMIT 1
"""
_GATED = f"""
SELECT u.id, u.canary, u.by_hand, NOT EXISTS ({UNREADY}), failing.index, coalesce(u.deadline_at <= %(now)s, false),
  u.rollback, u.paused_at IS NOT NULL, u.rollback AND u.canary = 0 AND NOT EXISTS ({UNSETTLED})
FROM scheduling_update AS u JOIN scheduling_job AS j ON j.id = u.job_id
LEFT JOIN LATERAL ({_FAILING}) AS failing ON true
WHERE u.state = 'open' AND (u.canary > 0 OR u.rollback OR u.deadline_at IS NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class _Found:
    """An open update. `failing`: the index of a task that fails, or None. `settled`: the update can be done."""

    id: int
    watched: Watched
    failing: int | None
    settled: bool

    def reason(self, version: int) -> str:
        if self.failing is not None and self.watched.rollback:
            return f"task {self.failing} of version {version} crashes or fails its health checks"
        return f"the update to version {version} was not done within its deadline_s"


def update_gates_check(cell_id: int) -> bool:
    """Promote, pause, stop or roll back the updates of a cell for which this is due. Return whether updates of the cell
    can go on.

    Makes one query for any number of updates. For each change, locks the cell's row and then the rows of an update.
    """
    changed = False
    for found in _gated("j.cell_id = %(of)s", cell_id):
        if (what := gate(found.watched)) is Gate.ROLL_BACK:
            _roll_back(found)
        elif what is not Gate.WAIT:
            _act(cell_id, found.id)
        changed |= what is not Gate.WAIT or found.settled
    return changed


def _gated(condition: str, of: int) -> list[_Found]:
    values = {**FIGURES, "of": of, "now": timezone.now()}
    return [
        _Found(
            update_id,
            Watched(canary, by_hand, ready, fails=failing is not None, late=late, rollback=rollback, paused=paused),
            failing,
            settled,
        )
        for update_id, canary, by_hand, ready, failing, late, rollback, paused, settled in query(
            f"{_GATED} AND {condition} ORDER BY u.id", values
        )
    ]


def _act(cell_id: int, update_id: int) -> None:
    """Do what the update needs now, under the lock of its cell."""
    with journal.write(cell_id, ME) as entry:
        for found in _gated("u.id = %(of)s", update_id):
            update = Update.objects.get(pk=update_id)
            match gate(found.watched):
                case Gate.PROMOTE:
                    update.canary = 0
                    entry.append(events.UpdatePromoted(job_id=update.job_id, update_id=update.id))
                case Gate.PAUSE:
                    update.paused_at = entry.time
                    entry.append(events.UpdatePaused(job_id=update.job_id, update_id=update.id, paused=True))
                case Gate.STOP:
                    update_end(entry, update, Update.STOPPED, found.reason(update.to_version))
            update.save(update_fields=["canary", "paused_at"])


def _roll_back(found: _Found) -> None:
    """Return the job to its last good version. If this is not possible, the update stops, so that no further task
    changes.
    """
    update = Update.objects.select_related("job__cell", "job__tenant").get(pk=found.id)
    job, reason = update.job, found.reason(update.to_version)

    def still_open(_: Job) -> None:
        if not Update.objects.filter(pk=update.pk, state=Update.OPEN).exists():
            raise Conflict("no-open-update", "the update has ended meanwhile")

    try:
        if (version := last_good(update)) is None:
            raise Conflict("no-good-version", "no earlier version is known to be good; update the job")
        good = undone(job, updates.spec_of(job, version), version)
        if job.priority == FREE_PRIORITY:  # perhaps by a demotion, which only a person takes back
            good = msgspec.structs.replace(good, priority=FREE_PRIORITY)
        done = updates.job_update(
            principal=ME,
            job=job,
            job_spec=good,
            undo=True,
            rolled_back=reason,
            later=True,
            quiet=True,
            check=still_open,
        )
        if done.outcome == "unchanged":
            raise Conflict(
                "same-version",
                "the last good version has the same spec as now, so a rollback would change nothing; update the job",
            )
    except Rejected as problem:
        log.warning("an update could not be rolled back", job=job.name, problem=problem.detail)
        with journal.write(job.cell_id, ME) as entry:
            if (left := Update.objects.filter(pk=update.pk, state=Update.OPEN).first()) is not None:
                update_end(entry, left, Update.STOPPED, f"{reason}; it was not rolled back: {problem.detail}")


def last_good(update: Update) -> int | None:
    """Return the newest version before the update to which an update of the job was finished, else the job's first
    version. Return None if PostgreSQL no longer has this version.
    """
    done = Update.objects.filter(job_id=update.job_id, state=Update.DONE, to_version__lte=update.from_version)
    newest = done.filter(restarts=[]).order_by("-to_version").values_list("to_version", flat=True).first()
    version = newest or 1
    return version if JobSpec.objects.filter(job_id=update.job_id, version=version).exists() else None
