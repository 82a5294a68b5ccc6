"""A market for tests of pages: two cells that sell quota, users in every role, money, and quota already sold."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from quota import clock
from quota.admission.band_changes import bands_ensure
from quota.admission.published_capacity import publish
from quota.billing.ledger import budget_grant
from quota.market.orders import order_place
from quota.models import Membership, Order, PriorityBand, Quota, Quote, Tenant
from quota.pricing.price_lists import quote_make
from quota.vocabulary.permissions import Principal, Role, system
from tests.integration import portal_world

ME = system("test")
CREDIT = 1_000_000
CAPACITY = (200_000, 800 * 2**30, 8 * 2**40, 4 * 2**30, 8_000, 0)


@dataclass
class Market:
    world: portal_world.World
    tenant: Tenant
    other: Tenant
    numbers: dict[str, int] = field(default_factory=dict)


def make(*, budget: int = 2_000 * CREDIT, zone: str = "Europe/Berlin") -> Market:
    """Create cells cc and dd, tenant ubar with `budget` micro-credits and a user for each role, and an SRE."""
    bands_ensure(principal=ME)
    world = portal_world.make()
    Quota.objects.all().delete()
    tenant = world.tenant
    tenant.time_zone = zone
    tenant.save()
    Membership.objects.create(tenant=tenant, user=portal_world.person("buyer"), role="buyer")
    with transaction.atomic():
        for name in ("cc", "dd"):
            publish(cell=name, capacity=CAPACITY, revision=1_000)
    if budget:
        budget_grant(principal=ME, tenant=tenant, amount=budget, text="for the year")
    return Market(world, tenant, Tenant.objects.get(name="other"))


def sold(
    tenant: Tenant,
    amounts: tuple[int, ...],
    begins: dt.datetime,
    ends: dt.datetime | None,
    *,
    cell: str = "cc",
    band: str = "production",
) -> Quota:
    """Grant quota to the tenant without an order and without a grace period."""
    return Quota.objects.create(
        tenant=tenant,
        cell=cell,
        band=PriorityBand.objects.get(name=band),
        amounts=list(amounts),
        starts_at=begins,
        ends_at=ends,
        grace_until=ends,
    )


def cores(number: int) -> tuple[int, ...]:
    return (1000 * number, number * 2**32, 0, 0, 0, 0)


def ordered(tenant: Tenant, amounts: tuple[int, ...], *, days: int, by: str = "buyer", **more: Any) -> Order:
    """Order production quota in cell cc for `days` days from now on, as the tenant's user `by`."""
    return order_place(
        principal=buying(tenant, by),
        tenant=tenant,
        cell="cc",
        band="production",
        amounts=amounts,
        ends_at=clock.now().replace(microsecond=0) + dt.timedelta(days=days),
        **more,
    )


def quoted(tenant: Tenant, amounts: tuple[int, ...], *, days: int) -> Quote:
    now = clock.now().replace(microsecond=0)
    return quote_make(
        principal=buying(tenant),
        tenant=tenant,
        cell="cc",
        band="production",
        amounts=amounts,
        starts_at=now,
        ends_at=now + dt.timedelta(days=days),
    )


def buying(tenant: Tenant, name: str = "buyer") -> Principal:
    return Principal(name=name, roles={tenant.name: Role.BUYER})
