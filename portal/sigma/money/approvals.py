"""The page of the orders that wait for the user's decision, with the quota and the budget of each tenant."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page, page_of
from portal.sigma.reads.orders import waiting_for
from quota import clock
from quota.models import Account, AccountKind, Order, Quota, QuotaUse
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import SIZE, ZERO, Vector, add

PAGE_SIZE = 20


@page
def approvals(request: HttpRequest, principal: Principal) -> HttpResponse:
    found = page_of(request, waiting_for(principal), PAGE_SIZE)
    return render(request, "sigma/approvals.html", {"page_obj": found, "cases": _cases(list(found.object_list))})


def _cases(orders: list[Order]) -> list[dict[str, Any]]:
    """Return one dictionary per order: the order, the tenant's budget, and the tenant's quota in the order's band and
    cell.

    Makes three queries in total. Amounts of money are in micro-credits.
    """
    now = clock.now()
    tenants = {order.tenant_id for order in orders}
    grants = Quota.objects.filter(
        Q(ends_at=None) | Q(grace_until__gt=now) | Q(grace_until=None, ends_at__gt=now),
        tenant__in=tenants,
        starts_at__lte=now,
    )
    granted: dict[tuple[Any, ...], Vector] = defaultdict(lambda: ZERO)
    for *place, amounts in grants.values_list("tenant_id", "cell", "band_id", "amounts"):
        granted[tuple(place)] = add(granted[tuple(place)], amounts[:SIZE])
    uses = QuotaUse.objects.filter(tenant__in=tenants).values_list("tenant_id", "cell", "band_id", "used")
    used = {tuple(place): vector[:SIZE] for *place, vector in uses}
    accounts = Account.objects.filter(tenant__in=tenants).values_list("tenant_id", "kind", "balance")
    money = {(tenant, kind): balance for tenant, kind, balance in accounts}
    return [
        {
            "order": order,
            "granted": granted[order.tenant_id, order.cell, order.band_id],
            "used": used.get((order.tenant_id, order.cell, order.band_id), ZERO),
            "available": money.get((order.tenant_id, AccountKind.AVAILABLE.value), 0),
            "held": money.get((order.tenant_id, AccountKind.HELD.value), 0),
        }
        for order in orders
    ]
