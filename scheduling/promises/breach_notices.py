"""Notifies tenants that a cell broke its promise to their jobs: at most once per cell and day, in the transaction that
reports the breaches.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from uuid import UUID

from quota import records
from quota.billing.credits.breach_rows import BreachRow
from quota.models import PromiseBreach
from quota.models.credits import PENDING
from quota.vocabulary.permissions import system
from scheduling.jobs.notices.sending import notices_write
from scheduling.models import Cell, Job

# A tenant whose promise was broken in the cell within this time before has had its notice. The rule is not per job,
# because each run of a cron job is a job of its own.
_QUIET = dt.timedelta(days=1)


def first_breaches(cell: Cell, rows: Sequence[BreachRow]) -> dict[UUID, BreachRow]:
    """Return the first breach of each job, by the job's UID, without those of tenants that were notified within a day.
    Makes one query, or none if `rows` is empty. Call it before the breaches are stored.
    """
    if not rows:
        return {}
    since = min(row.hour for row in rows) - _QUIET
    tenants = {row.tenant_id for row in rows}
    earlier = PromiseBreach.objects.filter(cell=cell.recorded_name, tenant__in=tenants, hour__gte=since).order_by()
    notified = set(earlier.values_list("tenant", flat=True).distinct())
    return {UUID(row.job_uid): row for row in reversed(rows) if row.tenant_id not in notified}


def breaches_notify(breaches: Mapping[UUID, BreachRow]) -> None:
    """Write one notice per tenant and cell about these first breaches. Jobs whose rows are already in the archive are
    left out.
    """
    if not breaches:
        return
    jobs = list(Job.objects.select_related("cell", "tenant").filter(uid__in=list(breaches)).order_by("id"))
    reasons = {job.pk: _reason(breaches[job.uid]) for job in jobs}
    with records.write(system("promises")) as entry:
        notices_write(entry, "job.promise-broken", jobs, lambda named: reasons)


def _reason(row: BreachRow) -> str:
    if row.kind == PENDING:
        return "Tasks have been pending for longer than the cell promises, because it lacks capacity."
    number = int(row.terms["evictions"])
    most = "1 eviction" if number == 1 else f"{number} evictions"
    return f"The cell promises at most {most} of a task in 30 days. The task was evicted more often ({row.cause})."
