"""The page of orders that wait for the user's decision, with the figures needed to decide."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Case:
    """An order, the tenant's granted and used quota in the same band and cell, and its budget in micro-credits."""

    order: Order
    granted: Vector
    used: Vector
    available: int
    held: int


@page
def approvals(request: HttpRequest, principal: Principal) -> HttpResponse:
    found = page_of(request, waiting_for(principal), PAGE_SIZE)
    return render(request, "sigma/approvals.html", {"page_obj": found, "cases": cases(list(found.object_list))})


def cases(orders: list[Order]) -> list[Case]:
    """Return the case of each order. Three queries in total."""
    now = clock.now()
    tenants = {order.tenant_id for order in orders}
    granted: dict[tuple[int, str, int], Vector] = {}
    grants = Quota.objects.filter(
        Q(ends_at=None) | Q(grace_until__gt=now) | Q(grace_until=None, ends_at__gt=now),
        tenant__in=tenants,
        starts_at__lte=now,
    )
    for tenant, cell, band, amounts in grants.values_list("tenant_id", "cell", "band_id", "amounts"):
        key = (tenant, cell, band)
        granted[key] = add(granted.get(key, ZERO), amounts[:SIZE])
    uses = QuotaUse.objects.filter(tenant__in=tenants).values_list("tenant_id", "cell", "band_id", "used")
    used = {(tenant, cell, band): tuple(vector[:SIZE]) for tenant, cell, band, vector in uses}
    accounts = Account.objects.filter(tenant__in=tenants).values_list("tenant_id", "kind", "balance")
    money = {(tenant, kind): balance for tenant, kind, balance in accounts}
    return [
        Case(
            order,
            granted.get((order.tenant_id, order.cell, order.band_id), ZERO),
            used.get((order.tenant_id, order.cell, order.band_id), ZERO),
            money.get((order.tenant_id, AccountKind.AVAILABLE.value), 0),
            money.get((order.tenant_id, AccountKind.HELD.value), 0),
        )
        for order in orders
    ]
