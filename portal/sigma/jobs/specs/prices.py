"""What a job costs, and what its quota costs before and after a change of its spec."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.utils import timezone

from quota.admission.admission import bands
from quota.billing.costs import job_usage_price
from quota.pricing.list_prices import DAYS, ListPrices
from quota.vocabulary.bands import FREE_PRIORITY, band_of
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.updates import spec_of
from scheduling.models import Cell, Job
from scheduling.spec.job_spec import JobSpecification

# Metered hours of this time are never in the archive (`quota.vocabulary.months.LEAST_METERED_DAYS`).
RECENT = dt.timedelta(days=28)


@dataclass(frozen=True, slots=True)
class PriceChange:
    """The list price of a job's quota for `days` days in micro-credits. `before`: None for a new job."""

    before: int | None
    after: int
    days: int = DAYS

    @property
    def difference(self) -> int:
        return self.after - (self.before or 0)


def price_change(
    principal: Principal, cell: Cell, old: JobSpecification | None, new: JobSpecification, *, old_band: str = ""
) -> PriceChange | None:
    """Return what the quota of a job costs with its current spec `old`, which is in the band `old_band`, and with the
    spec `new`. Return None if the caller may not see the quota of the tenant, or if there is no such price. Makes at
    most four queries.
    """
    if not may(principal, Action.QUOTA_VIEW, tenant=new.tenant, cell=cell.name):
        return None
    try:
        prices = ListPrices([cell.name])
        before = _price(prices, cell, old, old_band) if old is not None else None
        band = "" if new.priority == FREE_PRIORITY else band_of(new.priority, bands()).name
        return PriceChange(before, _price(prices, cell, new, band))
    except (Rejected, LookupError):  # the price is too large for a number, or there is no such band
        return None


@dataclass(frozen=True, slots=True)
class JobCost:
    """What a job costs. `usage`: the price of its metered usage in the last `days_of_usage` days in micro-credits.
    `quota`: the list price of its quota for `days` days; None if it is not known.
    """

    usage: int
    quota: int | None
    days: int = DAYS
    days_of_usage: int = RECENT.days


def cost_of(principal: Principal, job: Job) -> JobCost | None:
    """Return what a job costs, or None if the caller may not see the costs of its tenant. Makes at most four queries,
    and does not read the archive.
    """
    if not may(principal, Action.BILLING_VIEW, tenant=job.tenant.name, cell=job.cell.name):
        return None
    since = max(job.created_at, timezone.now() - RECENT)
    usage = job_usage_price(tenant=job.tenant_id, cell=job.cell.recorded_name, job_uid=job.uid.hex, since=since)
    if job.state == JobState.DEAD or not may(principal, Action.QUOTA_VIEW, tenant=job.tenant.name, cell=job.cell.name):
        return JobCost(usage, None)
    try:
        return JobCost(usage, _price(ListPrices([job.cell.name]), job.cell, spec_of(job), job.band))
    except (Rejected, LookupError):  # as in `price_change`
        return JobCost(usage, None)


def usage_price(job: Job) -> tuple[int | None, bool]:
    """Return the price of all usage of a job in micro-credits, and whether it is unknown because a part of it is in the
    archive, which cannot be read.
    """
    try:
        return job_usage_price(
            tenant=job.tenant_id, cell=job.cell.recorded_name, job_uid=job.uid.hex, since=job.created_at
        ), False
    except Rejected as error:
        if error.code != "archive-away":
            raise
        return None, True


def _price(prices: ListPrices, cell: Cell, spec: JobSpecification, band: str) -> int:
    return prices.of(cell.name, "" if spec.priority == FREE_PRIORITY else band, spec.charged())
