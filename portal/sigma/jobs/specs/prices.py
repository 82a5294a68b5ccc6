"""What a job costs, and what its quota costs before and after a change of its spec."""

from __future__ import annotations

from dataclasses import dataclass

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
    principal: Principal, cell: Cell, old: JobSpecification | None, new: JobSpecification
) -> PriceChange | None:
    """Return what the quota of a job costs with its current spec `old` and with the spec `new`. Return None if the
    caller may not see the quota of the tenant, or if there is no such price. Makes at most four queries.
    """
    if not may(principal, Action.QUOTA_VIEW, tenant=new.tenant, cell=cell.name):
        return None
    try:
        prices = ListPrices([cell.name])
        before = _price(prices, cell, old) if old is not None else None
        return PriceChange(before, _price(prices, cell, new))
    except Rejected:  # no band has the priority, or the price is too large for a number
        return None


@dataclass(frozen=True, slots=True)
class JobCost:
    """What a job costs. `usage`: the price of all its metered usage in micro-credits; None if a part of it is in the
    archive, which cannot be read now. `quota`: the list price of its quota for `days` days; None if it is not known.
    """

    usage: int | None
    quota: int | None
    days: int = DAYS


def cost_of(principal: Principal, job: Job) -> JobCost | None:
    """Return what a job costs, or None if the caller may not see the costs of its tenant. Makes at most six queries."""
    if not may(principal, Action.BILLING_VIEW, tenant=job.tenant.name, cell=job.cell.name):
        return None
    usage, _away = usage_price(job)
    if job.state == JobState.DEAD or not may(principal, Action.QUOTA_VIEW, tenant=job.tenant.name, cell=job.cell.name):
        return JobCost(usage, None)
    band = "" if job.priority == FREE_PRIORITY else job.band
    try:
        return JobCost(usage, ListPrices([job.cell.name]).of(job.cell.name, band, spec_of(job).charged()))
    except Rejected:  # the price is too large for a number
        return JobCost(usage, None)


def usage_price(job: Job) -> tuple[int | None, bool]:
    """Return the price of all usage of a job in micro-credits, and whether it is unknown because a part of it is in the
    archive, which cannot be read.
    """
    given = {"tenant": job.tenant_id, "cell": job.cell.name, "job_uid": job.uid.hex, "since": job.created_at}
    try:
        return job_usage_price(**given), False
    except Rejected as error:
        if error.code != "archive-away":
            raise
        return None, True


def _price(prices: ListPrices, cell: Cell, spec: JobSpecification) -> int:
    band = "" if spec.priority == FREE_PRIORITY else band_of(spec.priority, bands()).name
    return prices.of(cell.name, band, spec.charged())
