"""Jobs go to the free priority because of money (§2.5): never a silent kill.

    a cause that is due ─► cell locked ─► still so? which jobs? ─► updates to priority 0, notice: one transaction
                                                                    └─► tasks follow as with any update

Whole jobs are lowered. A priority is changed in place (§2.3): no task is restarted for it, but from then on it may be
preempted. What lives in an alloc set goes before the set: nothing inside may be more urgent than it (§2.4). Nothing is
raised again by itself; `borgctl undo JOB` does that, and asks admission.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

import msgspec
import structlog
from django.db import transaction
from django.db.models import QuerySet

from quota import records
from quota.admission import admission
from quota.models import Tenant
from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import format_quantities
from scheduling.allocs.alloc_sets import KIND
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs import updates
from scheduling.journal.sql import execute
from scheduling.models import Cell, Job

log = structlog.get_logger(__name__)

ME = system("lapses")
# Lowered in one transaction, under the cell's lock.
AT_ONCE = 20


class DemotionCause(Protocol):
    """The reason why jobs of one tenant in one cell are moved to the free priority."""

    @property
    def reason(self) -> str:
        """Return the reason for the journal."""

    def chosen(self, live: QuerySet[Job]) -> Iterable[Job]:
        """The next jobs to lower, as many as needed, among those that can be; empty once nothing is too much."""

    def report(self, entry: records.RecordEntry, jobs: Sequence[Job]) -> None:
        """Notify the tenant, and append a record."""


def jobs_demote(cell: Cell, tenant: Tenant, cause: DemotionCause) -> list[Job]:
    """Lower jobs until the cause chooses none. Returns the jobs lowered.

    Locks: the cell's row, then for each job what an update of it locks, at most `AT_ONCE` jobs at a time.
    """
    lowered: list[Job] = []
    kept: set[int] = set()  # that can't be lowered
    while True:
        done, failed = _lower(cell, tenant, cause, kept)
        for job in done:
            updates.update_advance_job(job)
        lowered += done
        kept |= failed
        if not done and not failed:
            return lowered


def _lower(cell: Cell, tenant: Tenant, cause: DemotionCause, kept: set[int]) -> tuple[list[Job], set[int]]:
    """Demote jobs in one transaction. Return them, and the ids of those that could not be demoted."""
    done: list[Job] = []
    failed: set[int] = set()
    with records.write(ME) as entry:
        _lock(cell)
        live = _live(cell, tenant, kept)
        for job in _with_inner(live, cause.chosen(live)):
            current = updates.spec_of(job)
            try:
                updates.job_update(
                    principal=ME,
                    job=job,
                    job_spec=msgspec.structs.replace(current, priority=FREE_PRIORITY),
                    reason=cause.reason,
                    later=True,
                )
            except Rejected as problem:
                log.warning("a job cannot be demoted", job=job.name, cell=cell.name, problem=problem.detail)
                failed.add(job.id)
            else:
                done.append(job)
        if done:
            cause.report(entry, done)
    return done, failed


def _lock(cell: Cell) -> None:
    """Lock the cell: no job is submitted, changed or ended until the transaction ends."""
    assert transaction.get_connection().in_atomic_block
    execute("SELECT FROM scheduling_cell WHERE id = %s FOR UPDATE", [cell.id])


def _live(cell: Cell, tenant: Tenant, kept: Collection[int]) -> QuerySet[Job]:
    """Return the live jobs, lowest priority first, then newest first."""
    return (
        Job.objects.select_related("cell", "tenant", "alloc_set")
        .filter(cell=cell, tenant=tenant, priority__gt=FREE_PRIORITY)
        .exclude(state=JobState.DEAD.value)
        .exclude(id__in=kept)
        .order_by("priority", "-created_at", "-id")
    )


def _with_inner(live: QuerySet[Job], chosen: Iterable[Job]) -> list[Job]:
    """Return at most `AT_ONCE` jobs, each alloc set after the jobs inside it."""
    jobs = list(chosen)
    sets = [job.id for job in jobs if job.kind == KIND]
    inside = list(live.filter(alloc_set__in=sets)) if sets else []
    ordered: dict[int, Job] = {}
    for job in jobs:
        for one in (*(inner for inner in inside if inner.alloc_set_id == job.id), job):
            ordered.setdefault(one.id, one)
    return list(ordered.values())[:AT_ONCE]


def jobs_with_undo(jobs: Sequence[Job]) -> str:
    """Return the end of a notice: the jobs, their resources, and how to raise them again, alloc sets first."""
    names = ", ".join(job.name for job in jobs)
    held = format_quantities({i: sum(job.requested[i] for job in jobs) for i in admission.COUNTED})
    sets_first = sorted(jobs, key=lambda job: job.kind != KIND)
    undo = "\n".join(f"borgctl undo {job.cell.name}/{job.tenant.name}/{job.name}" for job in sets_first)
    return (
        f"{names} ({held}). Their tasks continue, but can now be preempted. The cell does not undo this by itself."
        f" When there is quota and money, run:\n{undo}"
    )
