"""The state changes of orders. The functions of this module run inside the caller's transaction.

    pending ──approve──► approved ──begin──► active ──expire──► expired
       │ reject, time-out    │ cancel           │ cancel, replace
       ▼                     ▼                  ▼
    rejected, cancelled   cancelled          cancelled

A state change locks, in this order: the market of the cell, the order and the order that it replaces, accounts, and the
stream of records.
"""

from __future__ import annotations

import datetime as dt
from enum import StrEnum
from typing import Any

from django.db.models import Q
from django.db.models.functions import Greatest

from quota import clock
from quota.billing import ledger
from quota.market.refunds import MICROSECOND, give_back, share
from quota.models import HOLDING, Market, Order, OrderState, Quota
from quota.notifications.notices import notify
from quota.pricing.capacity_for_sale import grace_end
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, NotFound
from quota.vocabulary.money import format_credits as in_credits
from quota.vocabulary.resources import as_mapping, format_vector

# If an order begins later than this after its start, the tenant pays only from the actual beginning on.
LATE = dt.timedelta(minutes=5)
# The time before the end of an order when it is renewed or members are reminded; at most a quarter of the period.
AHEAD = dt.timedelta(days=7)


class OrderEvent(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"
    TIME_OUT = "time-out"
    BEGIN = "begin"
    CANCEL = "cancel"
    REPLACE = "replace"
    EXPIRE = "expire"


TRANSITIONS: dict[tuple[OrderState, OrderEvent], OrderState] = {
    (OrderState.PENDING, OrderEvent.APPROVE): OrderState.APPROVED,
    (OrderState.PENDING, OrderEvent.REJECT): OrderState.REJECTED,
    (OrderState.PENDING, OrderEvent.TIME_OUT): OrderState.CANCELLED,
    (OrderState.PENDING, OrderEvent.CANCEL): OrderState.CANCELLED,
    (OrderState.PENDING, OrderEvent.REPLACE): OrderState.CANCELLED,
    (OrderState.APPROVED, OrderEvent.BEGIN): OrderState.ACTIVE,
    (OrderState.APPROVED, OrderEvent.CANCEL): OrderState.CANCELLED,
    (OrderState.APPROVED, OrderEvent.REPLACE): OrderState.CANCELLED,
    (OrderState.ACTIVE, OrderEvent.CANCEL): OrderState.CANCELLED,
    (OrderState.ACTIVE, OrderEvent.REPLACE): OrderState.CANCELLED,
    (OrderState.ACTIVE, OrderEvent.EXPIRE): OrderState.EXPIRED,
}


def wrong_state(order: Order, detail: str) -> Conflict:
    """Return the error for a change that the order's state does not allow. `detail`: the message."""
    return Conflict("order-state", detail, figures={"order": order.pk, "state": order.state})


def step(order: Order, event: OrderEvent) -> None:
    """Change the order's state to the one that follows `event` according to `TRANSITIONS`.

    Raises `Conflict` if `TRANSITIONS` does not allow `event` in the present state.
    """
    after = TRANSITIONS.get((OrderState(order.state), event))
    if after is None:
        raise wrong_state(
            order, f"order {order.pk} is {order.state}, so the step {event.value!r} is not possible; reload the order"
        )
    order.state = after.value


def order_locked(pk: int) -> tuple[Order, list[Order]]:
    """Lock three kinds of rows: the order, the order that it replaces, and the orders that wait to replace it.

    Locks rows in order of id. Returns the order and the waiting orders. The caller has locked the market. Raises
    `NotFound` if the order does not exist.
    """
    rows = (
        Order.objects.select_for_update(of=("self",))
        .select_related("tenant", "band", "prices")
        .filter(Q(pk=pk) | Q(pk__in=Order.objects.filter(pk=pk).values("replaces")) | Q(replaces=pk, state__in=HOLDING))
        .order_by("id")
    )
    known = {row.pk: row for row in rows}
    order = known.get(pk)
    if order is None:
        raise NotFound("order", str(pk))
    if order.replaces_id is not None:
        order.replaces = known[order.replaces_id]
    return order, [row for row in known.values() if row.replaces_id == pk]


def new_order(market: Market, *, starts_at: dt.datetime, ends_at: dt.datetime, **fields: Any) -> Order:
    """Return a new pending order that is not saved. `fields`: the other columns."""
    return Order(
        cell=market.cell,
        starts_at=starts_at,
        ends_at=ends_at,
        state=OrderState.PENDING.value,
        created_at=clock.now(),
        **{"grace_until": grace_end(market, starts_at, ends_at), **fields},
    )


def successor(market: Market, old: Order, kind: str, **changes: Any) -> Order:
    """Return an unsaved order that will replace `old`. `kind`: change, renewal or transfer.

    The tenant, band, amounts and automatic renewal are those of `old`, except the fields in `changes`.
    """
    kept = {"tenant": old.tenant, "band": old.band, "amounts": list(old.amounts), "renew": old.renew, "replaces": old}
    return new_order(market, replaced_as=kind, **{**kept, **changes})


def approve(entry: RecordEntry, order: Order, *, by: str, reason: str = "") -> None:
    """Approve a pending order. If its period has begun, the order also becomes active."""
    step(order, OrderEvent.APPROVE)
    order.decided_by, order.decided_at, order.reason = by, clock.now(), reason
    order.save(update_fields=["state", "decided_by", "decided_at", "reason"])
    news(entry, "order.approved", order, by=by, reason=reason)
    if order.starts_at <= clock.now():
        begin(entry, order)


def begin(entry: RecordEntry, order: Order) -> None:
    """Make an approved order active: charge it, create its grant, and end the order that it replaces.

    If the order begins late, the tenant pays only for the time in which it can use the quota.
    """
    now = clock.now()
    if order.ends_at <= now:
        take_back(entry, order, OrderEvent.CANCEL, "its period ended before it could begin", by="system")
        return
    step(order, OrderEvent.BEGIN)
    start = order.starts_at if now - order.starts_at <= LATE else now.replace(microsecond=0)
    old = order.replaces
    if old is not None and old.state == OrderState.ACTIVE.value and order.replaced_as != "renewal":
        start = max(start, cut_of(old))
        replace(entry, old, at=start, order=order)
    elif old is not None:
        Quota.objects.filter(order=old, grace_until__gt=start).update(grace_until=Greatest("ends_at", start))
    ledger.charge(entry, order)
    give_back(entry, order, share(order, order.starts_at, start), text=f"order {order.pk} began late")
    same = {name: getattr(order, name) for name in ("tenant", "cell", "band", "amounts", "ends_at", "grace_until")}
    Quota.objects.create(**same, starts_at=start, order=order, reason=f"order {order.pk}")
    order.renew_next_at = before_end(order)
    order.save(update_fields=["state", "refunded", "renew_next_at"])
    news(entry, "order.active", order, starts_at=start.isoformat())


def before_end(order: Order) -> dt.datetime:
    """Return the moment, shortly before the end of `order`, at which the portal renews the order. If the order is not
    to be renewed, the tenant's members get a reminder at this moment.
    """
    return order.ends_at - min(AHEAD, (order.ends_at - order.starts_at) / 4)


def take_back(
    entry: RecordEntry, order: Order, event: OrderEvent, reason: str, *, kind: str = "order.cancelled", by: str = ""
) -> None:
    """End an order that has not begun, and release its capacity and money.

    `by`: the name of the user who ends the order, by default the principal of `entry`.
    """
    by, decided = by or entry.principal.name, event in (OrderEvent.REJECT, OrderEvent.TIME_OUT)
    step(order, event)
    ledger.unhold(entry, order)
    order.reason, order.ended_at = reason[:500], clock.now()
    if decided:
        order.decided_by, order.decided_at = by, order.ended_at
    order.save(update_fields=["state", "reason", "ended_at", "decided_by", "decided_at"])
    news(entry, kind, order, level="warning" if decided else "info", by=by, reason=reason)


def stop(entry: RecordEntry, order: Order, event: OrderEvent, *, at: dt.datetime, reason: str) -> None:
    """End an active order and its grant at the time `at`, without a grace period."""
    step(order, event)
    for grant in Quota.objects.filter(order=order, ends_at__gt=at):
        end = max(at, grant.starts_at + MICROSECOND)
        grant.ends_at = grant.grace_until = end
        grant.save(update_fields=["ends_at", "grace_until"])
    Quota.objects.filter(order=order, grace_until__gt=at, ends_at__lte=at).update(grace_until=Greatest("ends_at", at))
    order.reason, order.ended_at, order.renew_next_at = reason[:500], at, None
    order.save(update_fields=["state", "reason", "ended_at", "renew_next_at", "refunded"])


def replace(entry: RecordEntry, old: Order, *, at: dt.datetime, order: Order) -> int:
    """End `old` at the time `at`, when `order` replaces it, and refund the price of its remaining time.

    The remaining time is counted in seconds. Returns the refund in micro-credits.
    """
    back = min(share(old, at, old.ends_at), old.price - old.refunded)
    give_back(entry, old, back, text=f"order {old.pk} replaced by order {order.pk}")
    stop(entry, old, OrderEvent.REPLACE, at=at, reason=f"replaced by order {order.pk}")
    return back


def news(
    entry: RecordEntry,
    kind: str,
    order: Order,
    *,
    level: str = "info",
    text: str = "",
    to_sre: bool = False,
    **more: Any,
) -> None:
    """Record an event of an order, and notify the members of its tenant. `to_sre`: also notify the SREs."""
    data = {
        "order": order.pk,
        "band": order.band.name,
        **{name: getattr(order, name) for name in ("cell", "state", "price", "refunded")},
        "starts_at": order.starts_at.isoformat(),
        "ends_at": order.ends_at.isoformat(),
        "amounts": as_mapping(order.amounts),
        **more,
    }
    entry.append(kind, tenant=order.tenant.name, **data)
    what = kind.removeprefix("order.").replace("-", " ")
    subject = f"Order {order.pk} {what}: {format_vector(order.amounts)}, {order.band.name} in {order.cell}"
    zone = order.tenant.time_zone
    period = f"{clock.format_time(order.starts_at, zone)} to {clock.format_time(order.ends_at, zone)}"
    about = f"Tenant {order.tenant.name}, {period}, {in_credits(order.price)} credits."
    text = "\n".join(line for line in (text or str(more.get("reason", "")), about) if line)
    for tenant in (order.tenant, None) if to_sre else (order.tenant,):
        notify(entry, tenant, kind, subject, text, url=f"/orders/{order.pk}/", level=level, **data)


def cut_of(order: Order) -> dt.datetime:
    """Return the earliest time at which another order can replace this active order: now (whole seconds), or one second
    after its grant began, if that is later.
    """
    grant = Quota.objects.filter(order=order).order_by("-starts_at").first()
    began = grant.starts_at if grant is not None else order.starts_at
    return max(clock.now().replace(microsecond=0), began + dt.timedelta(seconds=1))
