"""Helpers for tests of the market: a small cell that sells quota, and tenants that buy it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib.auth import get_user_model

from quota.admission import band_changes
from quota.billing import ledger
from quota.market import orders
from quota.models import CellCapacity, Market, Membership, Order, PriceList, Quota, Tenant
from quota.pricing.capacity_for_sale import market_of
from quota.vocabulary.permissions import Principal, Role, system
from quota.vocabulary.resources import Vector

ME = system("test")
SRE = Principal("sam", sre=True)
NOW = dt.datetime(2027, 1, 4, tzinfo=dt.UTC)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
CREDIT = 1_000_000
# The price of a core per hour in these cells: a core-day costs 24 credits.
CORE_HOUR = CREDIT


def cores(count: int) -> Vector:
    return (1000 * count, 0, 0, 0, 0, 0)


def a_selling_cell(name: str = "cc", *, cores: int = 100, **rules: Any) -> Market:
    """Create a cell that sells all of its `cores` cores at a constant price, and return its market.

    `rules`: settings of the market, such as `grace_hours`.
    """
    band_changes.bands_ensure(principal=ME)
    CellCapacity.objects.create(cell=name, capacity=[1000 * cores, 2**40, 2**40, 0, 0, 0], revision=1)
    PriceList.objects.create(
        cell=name,
        version=1,
        base={"cpu": CORE_HOUR},
        curve=[],
        valid_from=NOW - 1000 * DAY,
        created_by="test",
        created_at=NOW,
    )
    market = market_of(name)
    for rule, value in {"headroom_milli": 0, "grace_hours": 0, **rules}.items():
        setattr(market, rule, value)
    market.save()
    return market


def a_rich_tenant(name: str = "ubar", *, credits_: int = 100_000, **fields: Any) -> Tenant:
    tenant = Tenant.objects.create(name=name, **fields)
    an_owner(tenant)
    ledger.budget_grant(principal=ME, tenant=tenant, amount=credits_ * CREDIT, text="test")
    return tenant


def an_owner(tenant: Tenant, name: str = "olga") -> Membership:
    user, _ = get_user_model().objects.get_or_create(username=name)
    return Membership.objects.create(tenant=tenant, user=user, role=Role.OWNER.value)


def buyer(*tenants: str, name: str = "ann", role: Role = Role.BUYER) -> Principal:
    return Principal(name, user_id=1, roles=dict.fromkeys(tenants or ("ubar",), role))


def place(tenant: Tenant, count: int = 1, *, begin: float = 0, days: float = 10, **more: Any) -> Order:
    """Place an order of `count` production cores for `days` days, which begins `begin` days after NOW."""
    given: dict[str, Any] = {
        "principal": buyer(tenant.name),
        "cell": "cc",
        "band": "production",
        "amounts": cores(count),
        "starts_at": NOW + begin * DAY,
        "ends_at": NOW + (begin + days) * DAY,
    }
    return orders.order_place(tenant=tenant, **(given | more))


def grant_of(order: Order) -> Quota:
    return Quota.objects.get(order=order)


def money(tenant: Tenant) -> tuple[int, int]:
    """Return the credits of the tenant that are available, and those that are held for orders."""
    found = ledger.balance_of(tenant)
    return found.available // CREDIT, found.held // CREDIT
