"""What the quota of a planned job costs."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from quota import clock
from quota.admission import admission
from quota.models import Tenant
from quota.pricing.price_lists import quote_preview
from quota.request_cache import reads_once
from quota.vocabulary.bands import FREE_PRIORITY, band_of
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import SIZE
from scheduling.models import Cell
from scheduling.spec.job_spec import JobSpecification

DAYS = 30


@dataclass(frozen=True, slots=True)
class QuotaPrice:
    """The price of new quota for all tasks of a job, in micro-credits, for `DAYS` days. `band`: its band; "" if the
    job needs no quota, and then the price is 0. `problem`: why there is no price, or "".
    """

    band: str
    price: int = 0
    problem: str = ""


def quota_price(principal: Principal, cell: Cell, wanted: JobSpecification) -> QuotaPrice | None:
    """Return the price of the quota that a job needs, at the present prices. Return None if its tenant or its band does
    not exist, or the cell sells no quota. The number of queries is fixed.
    """
    amounts = tuple(value if index in admission.COUNTED else 0 for index, value in enumerate(wanted.charged()[:SIZE]))
    if wanted.priority == FREE_PRIORITY or not any(amounts):
        return QuotaPrice("")
    tenant = Tenant.objects.filter(name=wanted.tenant).first()
    try:
        band = band_of(wanted.priority, admission.bands()).name
    except LookupError:
        return None
    if tenant is None:
        return None
    now = clock.now()
    try:
        with reads_once():
            quote = quote_preview(
                principal=principal,
                tenant=tenant,
                cell=cell.name,
                band=band,
                amounts=amounts,
                starts_at=now,
                ends_at=now + dt.timedelta(days=DAYS),
            )
    except NotFound:
        return None
    except Rejected as problem:
        return QuotaPrice(band, problem=problem.detail)
    return QuotaPrice(band, quote.price)
