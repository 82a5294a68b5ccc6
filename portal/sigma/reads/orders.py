"""Queries of orders for pages. They return which orders a user may see or decide, the records of these
orders, and what the orders cost.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import Q, QuerySet, Sum

from portal.sigma.reads.market import zone_of
from quota.market.refunds import share
from quota.models import AccountKind, LedgerEntry, Order, OrderState, Posting, Record
from quota.selectors import tenants_visible
from quota.vocabulary import calendar
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may

# The most history rows and postings of an order on its page.
MOST = 100


def orders_visible(principal: Principal) -> QuerySet[Order]:
    """Return the orders that the principal may see, newest first."""
    rows = Order.objects.filter(tenant__in=tenants_visible(principal))
    return rows.select_related("tenant", "band").order_by("-id")


def order_numbered(principal: Principal, number: int) -> Order:
    """Return an order. Raises `NotFound` if it does not exist or the principal may not see it."""
    order = Order.objects.select_related("tenant", "band", "prices", "replaces").filter(pk=number).first()
    if order is None or not may(principal, Action.QUOTA_VIEW, tenant=order.tenant.name, cell=order.cell):
        raise NotFound("order", str(number))
    return order


def waiting_for(principal: Principal) -> QuerySet[Order]:
    """Return the pending orders that this principal should decide, oldest first.

    For an SRE, the result omits orders that an owner should decide, although the SRE may decide them too.
    """
    rows = Order.objects.filter(state=OrderState.PENDING.value).select_related("tenant", "band").order_by("id")
    owned = [name for name in principal.roles if may(principal, Action.QUOTA_APPROVE, tenant=name)]
    asked = Q(approver="owner", tenant__name__in=owned) & ~Q(placed_by=principal.name)
    if may(principal, Action.PLATFORM_ADMIN):
        asked |= ~Q(approver="owner")
    return rows.filter(asked)


def may_decide(principal: Principal, order: Order) -> bool:
    """Return whether the principal may approve or reject the order."""
    if order.state != OrderState.PENDING.value:
        return False
    if principal.name == order.placed_by and not principal.sre:
        return False
    if order.approver == "owner":
        return may(principal, Action.QUOTA_APPROVE, tenant=order.tenant.name, cell=order.cell)
    return may(principal, Action.PLATFORM_ADMIN, cell=order.cell)


def history_of(order: Order) -> list[Record]:
    """Return the audit records of an order, newest first."""
    rows = Record.objects.filter(tenant=order.tenant.name, kind__startswith="order.", data__order=order.pk)
    return list(rows.order_by("-revision")[:MOST])


def money_of(order: Order) -> list[dict[str, Any]]:
    """Return the ledger postings of an order, oldest first. Each posting has the amounts, in micro-credits, by which it
    changes the tenant's accounts. Makes two queries.
    """
    postings = list(Posting.objects.filter(order=order).order_by("id")[:MOST])
    rows = LedgerEntry.objects.filter(posting__in=postings).values_list("posting_id", "account__kind").order_by()
    sums = {(posting_id, kind): int(amount) for posting_id, kind, amount in rows.annotate(total=Sum("amount"))}
    kinds = {"available": AccountKind.AVAILABLE, "held": AccountKind.HELD, "paid": AccountKind.REVENUE}
    return [
        {"posting": posting, **{name: sums.get((posting.pk, kind.value), 0) for name, kind in kinds.items()}}
        for posting in postings
    ]


def refund_of(order: Order, now: dt.datetime) -> int:
    """Return the refund in micro-credits if the order is cancelled now.

    Before the order starts, the refund is the full price. After that, it is the price of the remaining whole days.
    """
    if order.state != OrderState.ACTIVE.value:
        return order.price
    rest = calendar.whole_days_left(now, order.ends_at, zone_of(order.tenant))
    return min(share(order, rest, order.ends_at), order.price - order.refunded)
