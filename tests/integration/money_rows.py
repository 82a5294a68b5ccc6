"""Helpers that create rows of money: tenants with a budget, and orders in any state.

`market_rows` places real orders. This module creates only the rows, so that a test can call the ledger by itself.
"""

from __future__ import annotations

import datetime as dt

from quota import clock, records
from quota.billing import ledger
from quota.billing.invoices import invoice_close
from quota.models import (
    AccountKind,
    Credit,
    Invoice,
    LedgerEntry,
    MeteredHour,
    Order,
    OrderState,
    PriceList,
    PriorityBand,
    Tenant,
    metered_months,
)
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import Vector
from tests.integration import rows

ME = system("test")
CORE: Vector = (1000, 2**30, 0, 0, 0, 0)
BEGIN = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


def a_price_list(cell: str = "cc", **prices: object) -> PriceList:
    given = {"valid_from": dt.datetime(2020, 1, 1, tzinfo=dt.UTC), "created_by": "test", **prices}
    return PriceList.objects.get_or_create(cell=cell, version=1, defaults={**given, "created_at": given["valid_from"]})[
        0
    ]


def an_order(
    tenant: Tenant,
    price: int,
    *,
    cell: str = "cc",
    band: str = "production",
    amounts: Vector = CORE,
    begin: dt.datetime = BEGIN,
    days: int = 30,
    state: OrderState = OrderState.PENDING,
) -> Order:
    """Create only the row of an order that costs `price` micro-credits. The ledger holds no money for it."""
    return Order.objects.create(
        tenant=tenant,
        cell=cell,
        band=PriorityBand.objects.get(name=band),
        amounts=list(amounts),
        starts_at=begin,
        ends_at=begin + dt.timedelta(days=days),
        state=state.value,
        price=price,
        prices=a_price_list(cell),
        placed_by="test",
        created_at=begin,
    )


def held(tenant: Tenant, price: int, **order: object) -> Order:
    row = an_order(tenant, price, **order)
    with records.write(ME) as entry:
        ledger.hold(entry, row)
    return row


def charged(tenant: Tenant, price: int, **order: object) -> Order:
    row = held(tenant, price, **order)
    with records.write(ME) as entry:
        ledger.charge(entry, row)
    moved(row, OrderState.ACTIVE)
    return row


def refunded(order: Order, amount: int) -> None:
    with records.write(ME) as entry:
        ledger.refund(entry, order, amount, f"order {order.pk} cut short")
    Order.objects.filter(pk=order.pk).update(refunded=order.refunded + amount)
    order.refresh_from_db()


def moved(order: Order, state: OrderState) -> None:
    Order.objects.filter(pk=order.pk).update(state=state.value)
    order.refresh_from_db()


def funded(name: str = "ubar", amount: int = 1_000_000_000) -> Tenant:
    tenant = rows.a_tenant(name)
    ledger.budget_grant(principal=ME, tenant=tenant, amount=amount)
    return tenant


def an_invoice(tenant: Tenant, *, begin: dt.datetime = BEGIN) -> Invoice:
    """Charge the tenant for an order of 3 credits in the month of `begin`, close this month, and return the invoice."""
    with clock.at(begin):
        ledger.budget_grant(principal=ME, tenant=tenant, amount=3_000_000)
        charged(tenant, 3_000_000, begin=begin)
    with clock.at(begin + dt.timedelta(days=40)):
        return invoice_close(principal=ME, tenant=tenant, month=begin.date().replace(day=1))


def a_credit(tenant: Tenant, amount: int = 100, *, cell: str = "cc", job: str = "web") -> Credit:
    """Credit a tenant, which was charged more before, for a broken promise. The line has no evidence."""
    with records.write(ME) as entry:
        posting = ledger.credit(entry, tenant, amount, text="credit")
    return Credit.objects.create(
        tenant=tenant,
        cell=cell,
        month=posting.occurred_at.date().replace(day=1),
        job_uid="1" * 32,
        job=job,
        kind="pending",
        amount=amount,
        posting=posting,
        actor=ME.name,
        since=posting.occurred_at,
        until=posting.occurred_at,
        created_at=posting.occurred_at,
    )


def invoice_check(invoice: Invoice) -> list[str]:
    """Return the differences between an invoice or a draft and the revenue account of the ledger."""
    amounts = list(
        LedgerEntry.objects.filter(
            account__kind=AccountKind.REVENUE.value,
            posting__tenant=invoice.tenant,
            posting__occurred_at__gte=invoice.begins_at,
            posting__occurred_at__lt=invoice.ends_at,
        ).values_list("amount", flat=True)
    )
    lines = [line["amount"] for line in invoice.lines]
    compared = {
        "charged": (invoice.charged, sum(a for a in amounts if a > 0), sum(a for a in lines if a > 0)),
        "refunded": (invoice.refunded, -sum(a for a in amounts if a < 0), -sum(a for a in lines if a < 0)),
        "total": (invoice.total, sum(amounts), sum(lines)),
    }
    return [
        f"invoice {invoice.number}: {name} {stated}, the ledger has {posted}, its lines {lined}"
        for name, (stated, posted, lined) in compared.items()
        if not stated == posted == lined
    ]


def a_metered_hour(*, hour: dt.datetime, **values: object) -> MeteredHour:
    """Create a row of a metered hour, and the partition of its month."""
    metered_months.ensure(hour)
    return MeteredHour.objects.create(hour=hour, **values)
