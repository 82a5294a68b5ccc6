"""What the quota of a job costs before and after a change of its spec."""

from __future__ import annotations

from dataclasses import dataclass

from quota.admission.admission import bands
from quota.pricing.list_prices import DAYS, ListPrices
from quota.vocabulary.bands import FREE_PRIORITY, band_of
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.models import Cell
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


def _price(prices: ListPrices, cell: Cell, spec: JobSpecification) -> int:
    band = "" if spec.priority == FREE_PRIORITY else band_of(spec.priority, bands()).name
    return prices.of(cell.name, band, spec.charged())
