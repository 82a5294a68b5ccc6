"""Rows of stopped jobs: the jobs that a stop of their service has ended, and that a start brings back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary import events
from scheduling.jobs.update_gates import last_good
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.models import Cell, Job, ServiceWeighting, StoppedJob, Update
from scheduling.services.selectors import Service, stopped_jobs

MOST_STOPPED = 1_000


def store(entry: JournalEntry, service: Service, live: Sequence[Job], versions: Mapping[int, int], reason: str) -> None:
    """Store which versions of these jobs a start brings back, before their updates are closed. `versions`: the current
    version of each job, by its id.

    If an earlier stop was interrupted, the version that it has stored stays, because it has closed the update.
    """
    begun = StoppedJob.objects.filter(job__in=versions)
    kept = {row.pk for row in begun if row.seen == versions[row.pk]}
    canaries = Update.objects.filter(job__in=versions, state=Update.OPEN, canary__gt=0)
    # Canary tasks that nobody has promoted do not count. Few jobs have some.
    before = {update.job_id: last_good(update) or update.from_version for update in canaries}
    rows = [
        StoppedJob(
            job=job,
            service=service.name,
            version=before.get(job.pk, versions[job.pk]),
            seen=versions[job.pk],
            at=entry.time,
            by=entry.principal.name,
        )
        for job in live
        if job.pk not in kept
    ]
    columns = ("service", "version", "seen", "at", "by")
    StoppedJob.objects.bulk_create(rows, update_conflicts=True, unique_fields=["job"], update_fields=columns)
    if rows:
        entry.append(_event(service, "stopped", len(rows), reason))


def remove(principal: Principal, service: Service, jobs: Sequence[int], change: str, reason: str = "") -> int:
    """Delete the rows of those of the jobs that a stop has ended or begun to end. Return how many jobs these were."""
    rows = StoppedJob.objects.filter(job__cell=service.cell, job__tenant__name=service.tenant, service=service.name)
    rows = rows.filter(pk__in=jobs)
    if not rows.exists():
        return 0
    with journal.write(service.cell.pk, principal) as entry:
        removed, _ = rows.delete()
        if removed:
            entry.append(_event(service, change, removed, reason))
    return removed


def check_number(service: Service, more: int) -> None:
    found = stopped_jobs(service.cell).filter(job__tenant__name=service.tenant).count()
    if found + more > MOST_STOPPED:
        raise Rejected(
            "too-many-jobs",
            f"cannot stop service {service.name}: tenant {service.tenant} has {found} stopped jobs in cell"
            f" {service.cell.name}, and at most {MOST_STOPPED} are possible; start some services, or forget their"
            " stopped jobs",
            figures={"stopped": found, "most": MOST_STOPPED},
            status=403,
        )


def services_remove(cell: Cell) -> None:
    """Forget the stopped jobs and the weights of services of a cell that is being deleted, in the caller's
    transaction.
    """
    StoppedJob.objects.filter(job__cell=cell).delete()
    ServiceWeighting.objects.filter(cell=cell).delete()


def _event(service: Service, change: str, jobs: int, reason: str = "") -> events.ServiceSet:
    return events.ServiceSet(service=service.name, tenant=service.tenant, change=change, jobs=jobs, reason=reason)
