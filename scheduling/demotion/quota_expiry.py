"""Demotion of jobs after their quota has expired, in cells whose settings ask for it (§2.5).

Jobs with the lowest priority are demoted first. Among jobs with equal priority, the newest is demoted first. Only jobs
that use a resource whose quota is exceeded are demoted. This ends when the other jobs are within the quota.
"""

from __future__ import annotations

from functools import partial

from django.db.models import QuerySet

from quota.admission import admission
from quota.market.quota_expiry import expiries_due
from quota.models import QuotaExpiry
from quota.vocabulary.bands import FREE_PRIORITY
from scheduling.demotion.demotion import AT_ONCE, DemotionCause, jobs_demote
from scheduling.models import Cell, Job


def expiries_drop(cell: Cell) -> list[Job]:
    """Demote jobs of each tenant whose quota has expired, until the tenant's other jobs are within its remaining
    quota. Return the demoted jobs.

    Takes the same locks as `jobs_demote`.
    """
    return [job for expiry in expiries_due(cell.name) for job in jobs_demote(cell, expiry.tenant, _cause(cell, expiry))]


def _cause(cell: Cell, expiry: QuotaExpiry) -> DemotionCause:
    reason = f"{expiry.band.name} quota of {expiry.tenant.name} expired at {expiry.over_at:%F %R} UTC"
    text = f"The {reason}. These jobs were demoted to priority {FREE_PRIORITY}, so that the others fit"
    return DemotionCause("quota.dropped", reason, text, partial(_chosen, cell, expiry), {"band": expiry.band.name})


def _chosen(cell: Cell, expiry: QuotaExpiry, live: QuerySet[Job]) -> list[Job]:
    excess = list(admission.excess(cell=cell.name, tenant_id=expiry.tenant_id, band_id=expiry.band_id))
    chosen: list[Job] = []
    in_band = live.filter(priority__gte=expiry.band.low, priority__lte=expiry.band.high)
    for job in in_band.iterator(chunk_size=500) if any(excess) else ():
        if any(job.requested[i] for i, value in enumerate(excess) if value):
            chosen.append(job)
            excess = [max(0, value - job.requested[i]) for i, value in enumerate(excess)]
        if not any(excess) or len(chosen) == AT_ONCE:
            break
    return chosen
