"""Prices of cures, and the orders of quota that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quota.admission.quota_left import is_enough, quota_left
from quota.market.approval_rules import rule_of
from quota.market.suggested_orders import SuggestedOrder, remedies
from quota.pricing.capacity_for_sale import bands_by_name, is_sold
from quota.pricing.list_prices import ListPrices
from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import ZERO, Vector
from scheduling.cures.cure_list import Cure, CureKind
from scheduling.models import Job

# For this many cures, the order of the missing quota is computed. Each needs about ten queries.
MOST_ORDERS = 3


@dataclass(frozen=True, slots=True)
class Tried:
    """A cure that a master has tried. `band`: the band whose quota the job then uses, or "" for none. `charged`: the
    quota that it then uses. `change`: by how much the use of quota in this band and cell grows.
    """

    cure: Cure
    band: str
    charged: Vector
    change: Vector


def with_prices(job: Job, present: Tried, tried: Sequence[Tried], *, notes: list[str]) -> list[Cure]:
    """Return the cures with their prices, and with an order if they need more quota. Cures for which the quota is not
    for sale are left out. `present`: the job as it is. `notes`: sentences about cures that are left out are added.

    Makes five queries, and about ten more for each of the first `MOST_ORDERS` cures that need an order.
    """
    if not tried:
        return []
    cells = sorted({one.cure.cell for one in (present, *tried)})
    prices = ListPrices(cells)
    left = quota_left(job.tenant_id, cells)
    now = prices.of(present.cure.cell, present.band, present.charged)
    enough: list[Cure] = []
    short: list[tuple[int, Tried]] = []
    for one in tried:
        cell = one.cure.cell
        try:
            difference = prices.of(cell, one.band, one.charged) - now
        except Rejected:  # the price is too large for a number
            continue
        cure = replace(one.cure, price_difference=difference)
        if not one.band or is_enough(left.get((cell, one.band), ZERO), one.change):
            enough.append(cure)
        else:
            short.append((difference, replace(one, cure=cure)))
    short.sort(key=lambda pair: (pair[0], pair[1].cure.key))
    return enough + _with_orders(job, [one for _, one in short], notes)


def without_prices(principal: Principal, job: Job, cure: Cure) -> Cure:
    """Return the cure without its price, and without its order, if the caller may not see the tenant's quota there."""
    if may(principal, Action.QUOTA_VIEW, tenant=job.tenant.name, cell=cure.cell):
        return cure
    bare = replace(cure, price_difference=None)
    if cure.order is None:
        return bare
    return replace(
        bare,
        order=None,
        order_path="",
        commands=cure.commands[1:],
        starts_at=None,
        start="After more quota was bought.",
    )


def _with_orders(job: Job, short: Sequence[Tried], notes: list[str]) -> list[Cure]:
    """Return the cheapest cures that need an order, if the quota is for sale."""
    bands = bands_by_name()
    sold = [one for one in short if one.band in bands and is_sold(bands[one.band])]
    if len(sold) > MOST_ORDERS:
        notes.append(
            f"{len(sold)} changes need more quota. Only the {MOST_ORDERS} with the lowest list prices are shown."
        )
    result = []
    for cell in sorted({one.cure.cell for one in sold[:MOST_ORDERS]}):
        own = [one for one in sold[:MOST_ORDERS] if one.cure.cell == cell]
        orders = remedies(cell, {(job.tenant_id, one.band): one.change for one in own})
        for one in own:
            order = orders.get((job.tenant_id, one.band))
            if order is None:  # quota was granted meanwhile
                result.append(one.cure)
            elif order.available:
                result.append(_bought(job, one.cure, order))
            else:
                notes.append(f"Cell {cell} cannot sell the {one.band} quota for: {one.cure.change}")
    return result


def _bought(job: Job, cure: Cure, order: SuggestedOrder) -> Cure:
    """Return a cure that begins with an order of quota."""
    cure = replace(cure, commands=(order.command, *cure.commands), order_path=order.path)
    if cure.kind is CureKind.BAND and job.priority == FREE_PRIORITY:
        cure = replace(cure, kind=CureKind.QUOTA)
    band = bands_by_name()[order.band]
    approver, _ = rule_of(cell=cure.cell, band=band, tenant=job.tenant, price=order.price or 0)
    if approver == "auto":
        return replace(cure, order=order.as_json())
    return replace(
        cure,
        order=order.as_json(),
        approver=approver,
        starts_at=None,
        start="After the order was approved. This time is not known.",
    )
