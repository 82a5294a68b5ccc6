"""Does the steps of orders that happen at a certain time: an order begins, is renewed, expires, or is cancelled because
nobody has decided about it in time. Members of the tenant get a reminder before the end.

A *sweep* is one call of `orders_advance`. A sweep checks every step again after it has locked the rows. So each step is
done once and in the right order, even if two sweeps run at the same time, the clock jumps, or no sweep runs for days.
"""

from __future__ import annotations

import datetime as dt
from contextlib import nullcontext
from zoneinfo import ZoneInfo

import structlog
from django.db import connection, transaction

from quota import clock, records
from quota.market.approval_rules import waiting_without_owner
from quota.market.order_checks import check_available, check_on_sale
from quota.market.order_steps import OrderEvent, begin, news, order_locked, step, successor, take_back
from quota.market.orders import submit
from quota.models import Market, Order, OrderState
from quota.pricing.capacity_for_sale import market_locked
from quota.pricing.price_lists import price_now
from quota.records import RecordEntry
from quota.vocabulary import calendar
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system

log = structlog.get_logger(__name__)

ME = system("market")
# The maximum number of orders in one sweep. The next sweep continues with the rest.
BATCH = 500
# A failed renewal is tried again after this time, until the grace period ends.
AGAIN = dt.timedelta(hours=1)

_DUE = """
SELECT o.id, o.cell FROM quota_order AS o LEFT JOIN quota_market AS m ON m.cell = o.cell
WHERE (o.state IN ('pending', 'approved', 'active') OR o.renew_next_at IS NOT NULL) AND (
      (o.state = 'pending' AND (o.ends_at <= %(now)s
       OR o.created_at + make_interval(hours => coalesce(m.approval_hours, 168)) <= %(now)s))
   OR (o.state = 'approved' AND o.starts_at <= %(now)s)
   OR (o.state = 'active' AND o.ends_at <= %(now)s)
   OR (o.renew_next_at <= %(now)s AND o.state IN ('active', 'expired')))
ORDER BY least(o.starts_at, o.renew_next_at), o.id LIMIT %(limit)s
"""


def orders_advance(now: dt.datetime | None = None, *, limit: int = BATCH) -> int:
    """Do the steps whose time has come, for at most `limit` orders, and return the number of changed orders. Each order
    has its own transaction.

    If a step of one order fails, the other orders are still processed, and the first error is raised at the end.
    """
    with clock.at(now) if now is not None else nullcontext():
        with connection.cursor() as cursor:
            cursor.execute(_DUE, {"now": clock.now(), "limit": limit})
            due = cursor.fetchall()
        due += waiting_without_owner().order_by("id").values_list("id", "cell")[:limit]
        failures: list[Exception] = []
        for pk, cell in due:
            try:
                _advance(pk, cell)
            except Exception as error:
                log.exception(
                    "cannot process an order that is due to start, renew, end or time out", order=pk, cell=cell
                )
                failures.append(error)
        if failures:
            raise failures[0]
    return len(due)


def _advance(pk: int, cell: str) -> None:
    with records.write(ME) as entry:
        market = market_locked(cell)
        order, waiting = order_locked(pk)
        now = clock.now()
        if order.state == OrderState.PENDING.value:
            deadline = order.created_at + dt.timedelta(hours=market.approval_hours)
            if min(deadline, order.ends_at) <= now:
                by = clock.format_time(min(deadline, order.ends_at), order.tenant.time_zone)
                take_back(entry, order, OrderEvent.TIME_OUT, f"no decision was made by {by}", kind="order.timed-out")
        if order.state == OrderState.PENDING.value and waiting_without_owner().filter(pk=order.pk).exists():
            order.approver = "sre"
            order.save(update_fields=["approver"])
            news(
                entry,
                "order.passed-on",
                order,
                to_sre=True,
                text="An SRE decides now, because the tenant no longer has another owner.",
            )
        if order.state == OrderState.APPROVED.value and order.starts_at <= now:
            begin(entry, order)
        ended = (OrderState.ACTIVE.value, OrderState.EXPIRED.value)
        if order.state in ended and order.renew_next_at is not None and order.renew_next_at <= now:
            _before_end(entry, market, order, waiting)
        if order.state == OrderState.ACTIVE.value and order.ends_at <= now:
            step(order, OrderEvent.EXPIRE)
            order.ended_at = order.ends_at
            order.save(update_fields=["state", "ended_at"])
            news(entry, "order.expired", order, level="warning")


def _before_end(entry: RecordEntry, market: Market, order: Order, waiting: list[Order]) -> None:
    """Renew the order, or remind the tenant's members that the order ends soon."""
    now = clock.now()
    if not order.renew:
        if order.reminded_at is None and order.ends_at > now:
            order.reminded_at = now
            news(
                entry,
                "order.reminder",
                order,
                text=f"The order ends on {clock.format_time(order.ends_at, order.tenant.time_zone)}."
                " Renew or extend the order to keep the quota.",
            )
        order.renew_next_at = None
    else:
        _renew(entry, market, order, waiting)
    order.save(update_fields=["reminded_at", "renew_next_at", "renew_error"])


def _renew(entry: RecordEntry, market: Market, order: Order, waiting: list[Order]) -> None:
    """Renew the order. If the new order is rejected, notify the tenant's members once per reason, and try again
    later.
    """
    try:
        for other in waiting:
            raise Rejected(
                "order-waits",
                f"the {other.replaced_as} of this order (order {other.pk}) waits for approval; approve or cancel order"
                f" {other.pk} first",
            )
        with transaction.atomic():
            new = _renewal(entry, market, order)
    except Rejected as rejection:
        again = clock.now() + AGAIN
        order.renew_next_at = again if again < (order.grace_until or order.ends_at) else None
        if not order.renew_error.startswith(f"{rejection.code}:"):
            news(
                entry,
                "order.renewal-failed",
                order,
                level="urgent",
                text=f"The order could not be renewed: {rejection.detail}",
                code=rejection.code,
                reason=rejection.detail,
            )
        order.renew_error = f"{rejection.code}: {rejection.detail}"[:300]
        return
    order.renew_next_at, order.renew_error = None, ""
    news(entry, "order.renewed", order, new=new.pk)


def _renewal(entry: RecordEntry, market: Market, order: Order) -> Order:
    """Place and return the order for the next period, with the same number of days in the tenant's time zone.

    Raises `Rejected` if this order is not possible.
    """
    begin_at = order.ends_at
    end = calendar.following(order.starts_at, order.ends_at, ZoneInfo(order.tenant.time_zone))
    if end <= clock.now():
        raise Rejected("too-late", "the period of the renewal has already ended; place a new order")
    check_on_sale(market, order.band)
    new = successor(
        market,
        order,
        "renewal",
        starts_at=begin_at,
        ends_at=end,
        placed_by=order.placed_by,
        renew=True,
        note=order.note,
    )
    check_available(new, without=order.pk)
    price_now(ME, new, without=order.pk)
    submit(entry, new, new.price)
    return new
