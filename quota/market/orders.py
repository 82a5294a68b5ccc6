"""Orders of quota (§2.5): placing them, deciding about them, and changing them.

    order_place ─► checks of capacity, price and money ─► held ─► approved by a rule or by a person
    ─► order_sweep begins the order, sends reminders, renews it, and expires it

All sales in one cell lock the row of its market, so two orders never get the same core.
"""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

from quota import clock
from quota.billing import ledger
from quota.market.approval_rules import rule_of, waiting_without_owner
from quota.market.order_checks import (
    amounts_wanted,
    buying,
    check_available,
    check_capacity,
    check_changeable,
    check_no_successor,
    check_on_sale,
    check_period,
    check_texts,
    deciding,
    placed_before,
    replaced_by_change,
    selling,
)
from quota.market.order_steps import (
    OrderEvent,
    approve,
    cut_of,
    new_order,
    news,
    replace,
    stop,
    successor,
    take_back,
    wrong_state,
)
from quota.market.refunds import give_back, share
from quota.models import OPEN, Order, OrderState, Quote, Tenant
from quota.pricing.capacity_for_sale import band_named, cell_require, market_locked
from quota.pricing.price_lists import Amounts, price_now, price_quoted
from quota.records import RecordEntry
from quota.vocabulary import calendar
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, Principal, require


def order_place(
    *,
    principal: Principal,
    tenant: Tenant,
    cell: str,
    band: str,
    amounts: Amounts,
    starts_at: dt.datetime | None = None,
    ends_at: dt.datetime,
    quote: Quote | int | None = None,
    renew: bool = False,
    note: str = "",
    key: str = "",
) -> Order:
    """Order quota from `starts_at` (by default now) to `ends_at`.

    The returned order reserves capacity and money, or is already active. `quote`: the order gets the price of this
    quote, which must be for exactly this order. `key`: a second order with the same key returns the first order. Raises
    `Rejected` with one of the codes invalid, too-large, not-sold, sold-out, over-budget and quote-mismatch. Raises
    `Conflict` with one of the codes not-selling, key-used, quote-expired and quote-used. Locks: the cell's market, the
    tenant's accounts.
    """
    require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=cell)
    cell_require(cell)
    row = band_named(band)
    vector = amounts_wanted(amounts)
    check_texts(note=note, key=key)
    with selling(principal) as entry:
        market = market_locked(cell)
        begin = clock.now().replace(microsecond=0) if starts_at is None else starts_at
        same = {"cell": cell, "band_id": row.pk, "amounts": list(vector), "ends_at": ends_at}
        if starts_at is not None:
            same["starts_at"] = starts_at
        if (before := placed_before(tenant, key, same)) is not None:
            return before
        check_period(market, begin, ends_at)
        check_on_sale(market, row)
        order = new_order(
            market,
            tenant=tenant,
            band=row,
            amounts=list(vector),
            starts_at=begin,
            ends_at=ends_at,
            placed_by=principal.name,
            renew=renew,
            note=note,
            key=key,
        )
        check_available(order)
        if quote is None:
            price_now(principal, order)
        else:
            price_quoted(order, quote if isinstance(quote, int) else quote.pk)
        submit(entry, order, order.price)
    return order


def order_approve(*, principal: Principal, order: Order, reason: str = "") -> Order:
    """Approve a pending order. SREs may also approve orders that they placed themselves; other users may not."""
    check_texts(reason=reason)
    with deciding(principal, order) as (entry, row):
        check_capacity(row)
        approve(entry, row, by=principal.name, reason=reason)
    return row


def order_reject(*, principal: Principal, order: Order, reason: str) -> Order:
    """Reject a pending order with a reason, and release its capacity and money."""
    check_texts(reason=reason)
    if not reason.strip():
        raise invalid("reason", "the reason is missing; give a reason for the person who ordered")
    with deciding(principal, order) as (entry, row):
        take_back(entry, row, OrderEvent.REJECT, reason.strip(), kind="order.rejected")
    return row


def order_cancel(*, principal: Principal, order: Order, reason: str = "") -> Order:
    """Cancel an order and the orders that wait to replace it.

    If the order has not begun, its capacity and money are released. If it has begun, its grant ends now, and the
    remaining whole days in the tenant's time zone are refunded.
    """
    check_texts(reason=reason)
    with buying(principal, order) as (entry, _, row, waiting):
        for other in waiting:
            take_back(entry, other, OrderEvent.CANCEL, f"order {row.pk} was cancelled")
        if row.state != OrderState.ACTIVE.value:
            take_back(entry, row, OrderEvent.CANCEL, reason)
            return row
        now = clock.now()
        rest = calendar.whole_days_left(now, row.ends_at, ZoneInfo(row.tenant.time_zone))
        before = row.refunded
        give_back(entry, row, share(row, rest, row.ends_at), text=f"order {row.pk} cancelled")
        stop(entry, row, OrderEvent.CANCEL, at=now, reason=reason)
        news(entry, "order.cancelled", row, by=principal.name, reason=reason, back=row.refunded - before)
    return row


def order_change(
    *,
    principal: Principal,
    order: Order,
    amounts: Amounts | None = None,
    ends_at: dt.datetime | None = None,
    starts_at: dt.datetime | None = None,
    note: str = "",
    key: str = "",
) -> Order:
    """Change the amounts or the period of an order. Returns a new order, at current prices, that replaces the old one.

    The price of the old order's remaining time is refunded, counted in seconds. An active order stays active until the
    new order is approved. A change needs no approval if no amount grows and the end is not later. An order that has not
    begun is replaced immediately, and its `starts_at` may change too.
    """
    check_texts(note=note, key=key)
    vector = amounts_wanted(amounts) if amounts is not None else tuple(order.amounts)
    with buying(principal, order) as (entry, market, old, waiting):
        # If the order waits to replace an order that has begun, its change replaces that order.
        replaced, kind = replaced_by_change(old, starts_at)
        same = {"replaces_id": replaced.pk, "replaced_as": kind, "amounts": list(vector)}
        if (before := placed_before(old.tenant, key, same)) is not None:
            return before
        check_no_successor(old, waiting)
        check_changeable(old, "changed")
        begun = old.state == OrderState.ACTIVE.value
        if begun and starts_at is not None:
            raise invalid("starts_at", f"order {old.pk} has begun, so its start is fixed; give amounts or ends_at only")
        begin = cut_of(old) if begun else starts_at or max(old.starts_at, clock.now().replace(microsecond=0))
        end = ends_at or old.ends_at
        if (vector, end) == (tuple(old.amounts), old.ends_at) and starts_at in (None, old.starts_at):
            raise invalid("amounts", "the request changes nothing; give other amounts or another end")
        check_period(market, begin, end)
        if not begun:
            take_back(entry, old, OrderEvent.REPLACE, "changed", kind="order.changed")
        less = all(a <= b for a, b in zip(vector, old.amounts, strict=True)) and end <= old.ends_at
        new = successor(
            market,
            old,
            kind,
            amounts=list(vector),
            starts_at=begin,
            ends_at=end,
            placed_by=principal.name,
            note=note,
            key=key,
            replaces=replaced,
        )
        if not (less and begun):
            check_on_sale(market, old.band)
            check_available(new, without=replaced.pk)
        else:  # the capacity for a longer grace period may be sold already
            new.grace_until = min(new.grace_until or end, max(end, old.grace_until or end))
        price_now(principal, new, without=replaced.pk)
        if not begun:
            submit(entry, new, new.price)
            return new
        extra = max(0, new.price - share(old, begin, old.ends_at))
        approver, rule = ("auto", "nothing more") if less else _rule(new, extra)
        new.save()
        if approver == "auto":
            replace(entry, old, at=begin, order=new)
        submit(entry, new, extra, decided=(approver, rule))
        news(entry, "order.changed", old, by=principal.name, new=new.pk)
    return new


def order_transfer(*, principal: Principal, order: Order, tenant: Tenant, note: str = "", key: str = "") -> Order:
    """Transfer the remaining time of an order to another team, which pays the amount that the first team gets back.

    Returns the new order. The principal must have the right to buy for the first team and for the other team.
    """
    check_texts(note=note, key=key)
    require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=order.cell)
    with buying(principal, order) as (entry, market, old, waiting):
        if (before := placed_before(tenant, key, {"replaces_id": old.pk, "replaced_as": "transfer"})) is not None:
            return before
        if tenant.pk == old.tenant_id:
            raise invalid("tenant", f"order {old.pk} already belongs to {tenant.name}; choose another tenant")
        check_no_successor(old, waiting)
        check_changeable(old, "transferred")
        if old.state == OrderState.PENDING.value:
            raise wrong_state(old, f"order {old.pk} waits for approval; transfer the order after its approval")
        ledger.accounts_locked(old.tenant, tenant)
        begun = old.state == OrderState.ACTIVE.value
        begin = cut_of(old) if begun else old.starts_at
        if begin >= old.ends_at:
            raise wrong_state(old, f"order {old.pk} is about to end, so it cannot be transferred; place a new order")
        new = successor(
            market,
            old,
            "transfer",
            tenant=tenant,
            starts_at=begin,
            ends_at=old.ends_at,
            grace_until=old.grace_until,
            price=min(share(old, begin, old.ends_at), old.price - old.refunded) if begun else old.price,
            prices=old.prices,
            placed_by=principal.name,
            note=note,
            key=key,
        )
        if not begun:
            take_back(entry, old, OrderEvent.REPLACE, f"transferred to {tenant.name}", kind="order.transferred")
            if old.replaces_id is not None:  # until now, only the difference to the replaced order counted
                check_available(new)
        new.save()
        if begun:
            replace(entry, old, at=begin, order=new)
        news(entry, "order.transferred", old, by=principal.name, new=new.pk, to=tenant.name)
        submit(entry, new, new.price, decided=("auto", "transfer"))
    return new


def order_renewal_set(*, principal: Principal, order: Order, renew: bool) -> Order:
    """Switch automatic renewal on or off. Switching renewal off cancels a renewal that has not begun."""
    with buying(principal, order) as (entry, _, row, waiting):
        retried = row.state == OrderState.EXPIRED.value and row.renew_next_at is not None
        if row.state not in OPEN and (renew or not retried):
            raise wrong_state(row, f"order {row.pk} is {row.state}, so its renewal cannot change; place a new order")
        if row.renew == renew:
            return row
        row.renew, row.renew_error = renew, ""
        if renew and row.state == OrderState.ACTIVE.value:
            row.renew_next_at = max(clock.now(), row.renew_next_at or clock.now())
        row.save(update_fields=["renew", "renew_error", "renew_next_at"])
        for other in waiting:
            if not renew and other.replaced_as == "renewal":
                take_back(entry, other, OrderEvent.CANCEL, "renewal was switched off")
        entry.append("order.renewal-set", tenant=row.tenant.name, order=row.pk, renew=renew)
    return row


def submit(entry: RecordEntry, order: Order, price: int, *, decided: tuple[str, str] | None = None) -> None:
    """Save the order and reserve its price.

    An approval rule then approves the order immediately, or decides who must approve it. `price`: the price that the
    approval rules check. `decided`: the approver and the rule's name, if the caller knows them already. If an owner
    must approve the order but no owner may do so, the SREs decide.
    """
    order.approver, rule = decided or _rule(order, price)
    order.save()
    ledger.hold(entry, order)
    if order.approver == "auto":
        entry.append("order.placed", tenant=order.tenant.name, order=order.pk, by=order.placed_by)
        approve(entry, order, by=rule)
        return
    who = "an owner of the tenant decides" if order.approver == "owner" else "an SRE decides"
    if order.approver == "owner" and waiting_without_owner().filter(pk=order.pk).exists():
        order.approver = "sre"
        order.save(update_fields=["approver"])
        who = "an SRE decides, because the tenant has no other owner"
    news(
        entry,
        "order.placed",
        order,
        text=f"{order.placed_by} placed this order; {who}.",
        to_sre=order.approver == "sre",
        by=order.placed_by,
    )


def _rule(order: Order, price: int) -> tuple[str, str]:
    return rule_of(cell=order.cell, band=order.band, tenant=order.tenant, price=price)
