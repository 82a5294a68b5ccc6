"""Demotion: a job whose quota expired or whose budget is used up is not killed. It gets the priority 0, which needs no
quota (§2.5).

    a cause is due ─► lock the cell ─► choose jobs ─► updates to priority 0, notification ─► end of the transaction
                                                                └─► tasks follow as in any update

A cause is an expired quota or a spent budget. It is due when its jobs must be demoted now. No task restarts, but
demoted tasks can be preempted. An update that is paused stays paused, and a restart goes on. Jobs inside an alloc set
are demoted before the set, because no inner task may have a higher priority than its alloc (§2.4). A user can undo a
demotion with `borgctl undo JOB`, which checks quota again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog
from django.db.models import QuerySet

from quota import records
from quota.admission import admission
from quota.models import Tenant
from quota.notifications.notices import notify
from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import format_quantities
from scheduling.allocs.alloc_sets import KIND
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs import updates
from scheduling.models import Cell, Job

log = structlog.get_logger(__name__)

ME = system("lapses")
# Largest number of jobs that are demoted in one transaction, under the cell's lock.
AT_ONCE = 20


@dataclass(frozen=True, slots=True)
class DemotionCause:
    """The reason why jobs of one tenant in one cell are demoted.

    `kind`: the kind of the record (audit entry) and of the notification. `reason`: the text for the journal. `text`:
    the start of the notification, before the names of the jobs. `chosen`: a function that chooses the next jobs to
    demote from the given live jobs, or no jobs if the cause has ended. `data`: further fields of the record.
    """

    kind: str
    reason: str
    text: str
    chosen: Callable[[QuerySet[Job]], Iterable[Job]]
    data: Mapping[str, str] = field(default_factory=dict)


def jobs_demote(cell: Cell, tenant: Tenant, cause: DemotionCause) -> list[Job]:
    """Demote jobs of the tenant to priority 0 until `cause.chosen` returns no more jobs. Return the demoted jobs.

    One transaction demotes at most `AT_ONCE` jobs. Locks: the cell's row, then the same rows as an update of each of
    these jobs.
    """
    demoted: list[Job] = []
    failed: set[int] = set()
    while True:
        done, not_done = _demote(cell, tenant, cause, failed)
        for job in done:
            updates.update_advance_job(job)
        demoted += done
        failed |= not_done
        if not done and not not_done:
            return demoted


def _demote(cell: Cell, tenant: Tenant, cause: DemotionCause, except_ids: set[int]) -> tuple[list[Job], set[int]]:
    """Demote jobs in one transaction. Return the demoted jobs, and the ids of the jobs that could not be demoted."""
    done: list[Job] = []
    failed: set[int] = set()
    with records.write(ME) as entry:
        # While the cell is locked, no job is submitted, changed or ended.
        Cell.objects.select_for_update().get(pk=cell.pk)
        live = _live(cell, tenant, except_ids)
        for job in _with_inner(live, cause.chosen(live)):
            current = updates.spec_of(job)
            try:
                updates.job_update(
                    principal=ME,
                    job=job,
                    job_spec=msgspec.structs.replace(current, priority=FREE_PRIORITY),
                    reason=cause.reason,
                    later=True,
                    continues=True,
                )
            except Rejected as problem:
                log.warning(
                    "a job could not be demoted to the free priority",
                    job=job.name,
                    cell=cell.name,
                    problem=problem.detail,
                )
                failed.add(job.id)
            else:
                done.append(job)
        if done:
            _report(entry, cell, tenant, cause, done)
    return done, failed


def _live(cell: Cell, tenant: Tenant, except_ids: Collection[int]) -> QuerySet[Job]:
    """Return the tenant's live jobs in the cell, except the jobs `except_ids`. Lower priorities come first. Within a
    priority, newer jobs come first.
    """
    return (
        Job.objects.select_related("cell", "tenant", "alloc_set")
        .filter(cell=cell, tenant=tenant, priority__gt=FREE_PRIORITY)
        .exclude(state=JobState.DEAD.value)
        .exclude(id__in=except_ids)
        .order_by("priority", "-created_at", "-id")
    )


def _with_inner(live: QuerySet[Job], chosen: Iterable[Job]) -> list[Job]:
    """Return the `chosen` jobs and, if a chosen job is an alloc set, the live jobs inside it. The jobs inside an
    alloc set come before the set. The list has at most `AT_ONCE` jobs.
    """
    jobs = list(chosen)
    sets = [job.id for job in jobs if job.kind == KIND]
    inside = list(live.filter(alloc_set__in=sets)) if sets else []
    ordered: dict[int, Job] = {}
    for job in jobs:
        for one in (*(inner for inner in inside if inner.alloc_set_id == job.id), job):
            ordered.setdefault(one.id, one)
    return list(ordered.values())[:AT_ONCE]


def _report(entry: records.RecordEntry, cell: Cell, tenant: Tenant, cause: DemotionCause, jobs: Sequence[Job]) -> None:
    """Append a record of the demotion, and notify the tenant. The notification names the demoted jobs and says how to
    undo the demotion.
    """
    data: dict[str, Any] = {"cell": cell.name, "jobs": [job.name for job in jobs], **cause.data}
    entry.append(cause.kind, tenant=tenant.name, **data)
    used = format_quantities({i: sum(job.requested[i] for job in jobs) for i in admission.COUNTED})
    sets_first = sorted(jobs, key=lambda job: job.kind != KIND)
    undo = "\n".join(f"borgctl undo {cell.name}/{tenant.name}/{job.name}" for job in sets_first)
    text = (
        f"{cause.text}: {', '.join(data['jobs'])} ({used}). Their tasks continue, but can now be preempted. The cell"
        f" does not undo this by itself. When there is quota and money, run:\n{undo}"
    )
    subject = f"{len(jobs)} jobs in cell {cell.name} were demoted to the free priority"
    url = f"/jobs/?tenant={tenant.name}"
    notify(entry, tenant, cause.kind, subject, text, url=url, level="urgent", **data)
