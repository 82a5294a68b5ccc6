"""The quota of a cell that an SRE deletes: what tenants still hold, and what ends with the cell.

Orders, invoices, postings, metered hours and price lists stay, because money is kept for ever. The rules of the market
stay too: a new cell of the same name sells by them until an SRE changes them.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db.models import Q
from django.db.models.functions import Coalesce

from quota import clock
from quota.models import HOLDING, Capability, CapabilityRequest, CellCapacity, Order, Quota
from quota.pricing.capacity_for_sale import market_locked
from quota.records import RecordEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldQuota:
    """The quota of a cell that tenants hold now or later. `grants`: grants whose grace period has not ended. `orders`:
    orders without a grant that hold capacity and money. `until`: when the last of them ends; None if one has no end, or
    if there are none. `tenants`: the names of the tenants, sorted.
    """

    grants: int
    orders: int
    until: dt.datetime | None
    tenants: tuple[str, ...]


def quota_held(cell: str) -> HeldQuota:
    """Return the quota that tenants hold in a cell from now on, also grants beyond capacity. Makes two queries."""
    until = Coalesce("grace_until", "ends_at")
    counted = Quota.objects.filter(cell=cell).annotate(until=until).filter(Q(until=None) | Q(until__gt=clock.now()))
    holding = Order.objects.filter(cell=cell, state__in=HOLDING).annotate(until=until)
    grants, orders = (list(rows.order_by().values_list("tenant__name", "until")) for rows in (counted, holding))
    ends = [end for _, end in (*grants, *orders)]
    return HeldQuota(
        grants=len(grants),
        orders=len(orders),
        until=None if None in ends else max(ends, default=None),
        tenants=tuple(sorted({tenant for tenant, _ in (*grants, *orders)})),
    )


def cell_lock_sales(cell: str) -> None:
    """Let all sales of quota of a cell wait until the caller's transaction ends. Call it before the cell is locked."""
    market_locked(cell)


def cell_end(entry: RecordEntry, cell: str) -> None:
    """Let quota forget that a cell exists: nobody can buy its quota, and capabilities for this cell end. Append a
    record of the deletion. The caller has locked the sales of the cell.
    """
    CellCapacity.objects.filter(cell=cell).delete()
    capabilities = Capability.objects.filter(cell=cell)
    ended = [f"{kind} of {user}" for kind, user in capabilities.values_list("kind", "user__username")]
    capabilities.delete()
    CapabilityRequest.objects.filter(cell=cell, state="open").update(
        state="refused", answer="the cell was deleted", answered_by=entry.principal.name, answered_at=clock.now()
    )
    entry.append("cell.deleted", cell=cell, capabilities=ended)
