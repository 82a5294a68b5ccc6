"""Jobs beyond a quota that is over go to the free priority, where their cell says so (§2.5): never a silent kill.

    Lapse, due ─► cell locked ─► still too much? ─► which jobs ─► updates to priority 0, notice: one transaction
                                                                   └─► tasks follow as with any update

Whole jobs are lowered, of the lowest priority first, of these the newest first, and only those that hold something of
what is too much, until the rest fits. A priority is changed in place (§2.3): no task is restarted for it, but from then
on it may be preempted. Nothing is raised again by itself; `borgctl undo JOB` does that, and asks admission.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import structlog
from django.db import connection, transaction

from quota import records
from quota.bands import FREE_PRIORITY
from quota.errors import Refused
from quota.models import Lapse
from quota.permissions import system
from quota.resources import Vector, told
from quota.services import admission
from quota.services.lapses import lapses_due
from quota.services.notices import tell
from scheduling.core.states import JobState
from scheduling.models import Cell, Job
from scheduling.services import updates

log = structlog.get_logger(__name__)

ME = system("lapses")
# Lowered in one transaction, under the cell's lock.
AT_ONCE = 20


def lapses_drop(cell: Cell) -> list[Job]:
    """Lower jobs of every lapse of the cell that is due until the rest fits its quota. Returns the jobs lowered.

    Locks: the cell's row, then for each job what an update of it locks, at most `AT_ONCE` jobs at a time.
    """
    dropped: list[Job] = []
    for lapse in lapses_due(cell.name):
        kept: set[int] = set()  # that can't be lowered
        while True:
            done, failed = _drop(cell, lapse, kept)
            for job in done:
                updates.update_advance_job(job)
            dropped += done
            kept |= failed
            if not done and not failed:
                break
    return dropped


def _drop(cell: Cell, lapse: Lapse, kept: set[int]) -> tuple[list[Job], set[int]]:
    """One transaction: the jobs lowered, and the ids of those that could not be."""
    done: list[Job] = []
    failed: set[int] = set()
    with records.write(ME) as entry:
        _lock(cell)
        missing = admission.excess(cell=cell.name, tenant_id=lapse.tenant_id, band_id=lapse.band_id)
        for job in _chosen(cell, lapse, missing, kept):
            current = updates.spec_of(job)
            try:
                updates.job_update(
                    principal=ME, job=job, job_spec=msgspec.structs.replace(current, priority=FREE_PRIORITY),
                    reason=f"{lapse.band.name} quota of {lapse.tenant.name} is over since {lapse.over_at:%F %R} UTC",
                    later=True,
                )  # fmt: skip
            except Refused as problem:
                log.warning("a job can't be lowered", job=job.name, cell=cell.name, problem=problem.detail)
                failed.add(job.id)
            else:
                done.append(job)
        if done:
            _tell(entry, cell, lapse, done)
    return done, failed


def _lock(cell: Cell) -> None:
    """Nothing is submitted, changed or ended in the cell until the transaction ends."""
    assert transaction.get_connection().in_atomic_block
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM scheduling_cell WHERE id = %s FOR UPDATE", [cell.id])


def _chosen(cell: Cell, lapse: Lapse, missing: Vector, kept: set[int]) -> list[Job]:
    """The next jobs to lower, as many as needed; whole ones, as they are."""
    live = (
        Job.objects.select_related("cell", "tenant", "alloc_set")
        .filter(cell=cell, tenant_id=lapse.tenant_id, priority__gt=FREE_PRIORITY)
        .filter(priority__gte=lapse.band.low, priority__lte=lapse.band.high)
        .exclude(state=JobState.DEAD.value)
        .exclude(id__in=kept)
        .order_by("priority", "-created_at", "-id")
    )
    chosen: list[Job] = []
    left = list(missing)
    for job in live.iterator(chunk_size=500):
        if not any(left) or len(chosen) == AT_ONCE:
            break
        if any(job.requested[i] for i, value in enumerate(left) if value):
            chosen.append(job)
            left = [max(0, value - job.requested[i]) for i, value in enumerate(left)]
    return chosen


def _tell(entry: records.Entry, cell: Cell, lapse: Lapse, jobs: Sequence[Job]) -> None:
    tenant, band = lapse.tenant, lapse.band.name
    names = [job.name for job in jobs]
    undo = "\n".join(f"borgctl undo {cell.name}/{tenant.name}/{name}" for name in names)
    held = told({i: sum(job.requested[i] for job in jobs) for i in admission.COUNTED})
    data = {"cell": cell.name, "band": band, "jobs": names}
    entry.append("quota.dropped", tenant=tenant.name, **data)
    tell(
        entry, tenant, "quota.dropped", f"{len(jobs)} jobs in cell {cell.name} go on at the free priority",
        f"The {band} quota of {tenant.name} is over since {lapse.over_at:%F %R} UTC, and these jobs were lowered to"
        f" priority {FREE_PRIORITY}, so that the others fit: {', '.join(names)} ({held}). Their tasks go on, and may be"
        " preempted from now on. Nothing is raised again by itself; when there is quota:\n" + undo,
        url=f"/jobs/?tenant={tenant.name}", level="urgent", **data,
    )  # fmt: skip
