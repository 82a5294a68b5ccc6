"""Jobs beyond a quota that is over go to the free priority, where their cell says so (§2.5).

Of the lowest priority first, of these the newest first, and only those that hold something of what is too much, until
the rest fits. `services.lowering` says how.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import QuerySet

from quota import records
from quota.admission import admission
from quota.market.quota_expiry import expiries_due
from quota.models import QuotaExpiry
from quota.notifications.notices import notify
from quota.vocabulary.bands import FREE_PRIORITY
from scheduling.demotion.demotion import AT_ONCE, jobs_demote, jobs_with_undo
from scheduling.models import Cell, Job


def expiries_drop(cell: Cell) -> list[Job]:
    """Lower jobs of every expiry of the cell that is due until the rest fits its quota. Returns the jobs lowered.

    Locks as `jobs_demote`.
    """
    return [
        job
        for expiry in expiries_due(cell.name)
        for job in jobs_demote(cell, expiry.tenant, _ExpiredQuota(cell, expiry))
    ]


@dataclass(frozen=True, slots=True)
class _ExpiredQuota:
    cell: Cell
    expiry: QuotaExpiry

    @property
    def reason(self) -> str:
        return f"{self.expiry.band.name} quota of {self.expiry.tenant.name} expired at {self.expiry.over_at:%F %R} UTC"

    def chosen(self, live: QuerySet[Job]) -> Iterable[Job]:
        expiry = self.expiry
        left = list(admission.excess(cell=self.cell.name, tenant_id=expiry.tenant_id, band_id=expiry.band_id))
        chosen: list[Job] = []
        held = live.filter(priority__gte=expiry.band.low, priority__lte=expiry.band.high)
        for job in held.iterator(chunk_size=500) if any(left) else ():
            if any(job.requested[i] for i, value in enumerate(left) if value):
                chosen.append(job)
                left = [max(0, value - job.requested[i]) for i, value in enumerate(left)]
            if not any(left) or len(chosen) == AT_ONCE:
                break
        return chosen

    def report(self, entry: records.RecordEntry, jobs: Sequence[Job]) -> None:
        tenant, cell = self.expiry.tenant, self.cell.name
        data = {"cell": cell, "band": self.expiry.band.name, "jobs": [job.name for job in jobs]}
        entry.append("quota.dropped", tenant=tenant.name, **data)
        notify(
            entry,
            tenant,
            "quota.dropped",
            f"{len(jobs)} jobs in cell {cell} were demoted to the free priority",
            f"The {self.reason}. These jobs were demoted to priority {FREE_PRIORITY}, so that the others fit:"
            f" {jobs_with_undo(jobs)}",
            url=f"/jobs/?tenant={tenant.name}",
            level="urgent",
            **data,
        )
