"""Buying quota (§2.5): from the order to its end, and what may be done with it on the way.

    order_place ─► what is left? what does it cost? is there money? ─► held ─► approved by a rule, or by a person
    ─► order_sweep begins, reminds, renews and expires it

All that sells in one cell queues at its market's row, so two orders never get the same core.
"""

from __future__ import annotations

import datetime as dt

from quota import clock
from quota.billing import ledger
from quota.market.order_checks import (
    amounts_wanted,
    changeable,
    deciding,
    fits,
    nothing_waits,
    on_sale,
    own,
    period,
    place_of,
    placed_before,
    selling,
    still_there,
    texts,
    zone_of,
)
from quota.market.order_steps import (
    OrderEvent,
    approve,
    cut_of,
    give_back,
    new_order,
    news,
    replace,
    rule_of,
    share,
    stop,
    successor,
    take_back,
    waits_in_vain,
    wrong_state,
)
from quota.models import OPEN, Order, OrderState, Quote, Tenant
from quota.pricing.market import band_named, cell_require, market_locked
from quota.pricing.price_lists import Amounts, price_now, price_quoted
from quota.records import RecordEntry
from quota.vocabulary import calendar
from quota.vocabulary.errors import Rejected, invalid
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
    """Order quota from `starts_at` (none: now) to `ends_at`. Holds capacity and money; may be active at once.

    `quote`: its price holds, if it is for exactly this. `key`: the same key orders once, and answers with that order.
    Raises `Rejected`: invalid, too-large, not-sold, sold-out (with what is left and the first free date), over-budget,
    quote-mismatch; `Conflict`: not-selling, key-used, quote-expired, quote-used. Locks: the cell's market, the
    tenant's accounts.
    """
    require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=cell)
    cell_require(cell)
    row = band_named(band)
    vector = amounts_wanted(amounts)
    texts(note=note, key=key)
    with selling(principal) as entry:
        market = market_locked(cell)
        begin = clock.now().replace(microsecond=0) if starts_at is None else starts_at
        same = {"cell": cell, "band_id": row.pk, "amounts": list(vector), "ends_at": ends_at}
        if starts_at is not None:
            same["starts_at"] = starts_at
        if (before := placed_before(tenant, key, same)) is not None:
            return before
        period(market, begin, ends_at)
        on_sale(market, row)
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
        fits(order)
        if quote is None:
            price_now(principal, order)
        else:
            price_quoted(order, quote if isinstance(quote, int) else quote.pk)
        submit(entry, order, order.price)
    return order


def order_approve(*, principal: Principal, order: Order, reason: str = "") -> Order:
    """Approve a pending order. Only SREs may decide about their own orders."""
    texts(reason=reason)
    with deciding(principal, order) as (entry, row):
        still_there(row)
        approve(entry, row, by=principal.name, reason=reason)
    return row


def order_reject(*, principal: Principal, order: Order, reason: str) -> Order:
    """Reject a pending order with a reason; what it held is free again."""
    texts(reason=reason)
    if not reason.strip():
        raise invalid("reason", "give a reason for the person who ordered")
    with deciding(principal, order) as (entry, row):
        take_back(entry, row, OrderEvent.REJECT, reason.strip(), kind="order.rejected")
    return row


def order_cancel(*, principal: Principal, order: Order, reason: str = "") -> Order:
    """Cancel an order. Before it begins everything is free again; afterwards its grant ends now, and whole days
    of the tenant's time zone that are left are refunded. Orders that wait to replace it are taken back too."""
    texts(reason=reason)
    with own(principal, order) as (entry, _, row, waiting):
        for other in waiting:
            take_back(entry, other, OrderEvent.CANCEL, f"order {row.pk} was cancelled")
        if row.state != OrderState.ACTIVE.value:
            take_back(entry, row, OrderEvent.CANCEL, reason)
            return row
        now = clock.now()
        rest = calendar.whole_days_left(now, row.ends_at, zone_of(row.tenant))
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
    """Grow, shrink, extend or shorten: an order at the prices of now that replaces this one. Returns the new one.

    What is left of the old one is refunded to the second, so that only the difference is paid. An active order goes on
    until the new one is approved; what asks for nothing more needs no approval. One that has not begun is taken back at
    once, and `starts_at` may change too.
    """
    texts(note=note, key=key)
    vector = amounts_wanted(amounts) if amounts is not None else tuple(order.amounts)
    with own(principal, order) as (entry, market, old, waiting):
        # An order that has not begun may wait to replace one that has. Its change then replaces that one.
        heir_of, kind = place_of(old, starts_at)
        same = {"replaces_id": heir_of.pk, "replaced_as": kind, "amounts": list(vector)}
        if (before := placed_before(old.tenant, key, same)) is not None:
            return before
        nothing_waits(old, waiting)
        changeable(old, "changed")
        begun = old.state == OrderState.ACTIVE.value
        if begun and starts_at is not None:
            raise invalid("starts_at", f"order {old.pk} has begun; give amounts and ends_at only")
        begin = cut_of(old) if begun else starts_at or max(old.starts_at, clock.now().replace(microsecond=0))
        end = ends_at or old.ends_at
        if (vector, end) == (tuple(old.amounts), old.ends_at) and starts_at in (None, old.starts_at):
            raise Rejected(
                "invalid", "the request changes nothing; give amounts or ends_at", fields={"amounts": "as now"}
            )
        period(market, begin, end)
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
            replaces=heir_of,
        )
        if not (less and begun):
            on_sale(market, old.band)
            fits(new, without=heir_of.pk)
        else:  # a grace that is longer than the old one may be sold already
            new.grace_until = min(new.grace_until or end, max(end, old.grace_until or end))
        price_now(principal, new, without=heir_of.pk)
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
    """Transfer the rest of an order to another team, which pays what the first gets back. Returns the new order.

    The principal must be allowed to buy for both.
    """
    texts(note=note, key=key)
    require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=order.cell)
    with own(principal, order) as (entry, market, old, waiting):
        if (before := placed_before(tenant, key, {"replaces_id": old.pk, "replaced_as": "transfer"})) is not None:
            return before
        if tenant.pk == old.tenant_id:
            raise invalid("tenant", f"order {old.pk} belongs to {tenant.name} already")
        nothing_waits(old, waiting)
        changeable(old, "transferred")
        if old.state == OrderState.PENDING.value:
            raise wrong_state(old, "waits for approval; transfer it after the approval")
        ledger.accounts_locked(old.tenant, tenant)
        begun = old.state == OrderState.ACTIVE.value
        begin = cut_of(old) if begun else old.starts_at
        if begin >= old.ends_at:
            raise wrong_state(old, "is about to end; nothing of it can be transferred")
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
            if old.replaces_id is not None:  # it counted beside what it would have replaced, of the same tenant
                fits(new)
        new.save()
        if begun:
            replace(entry, old, at=begin, order=new)
        news(entry, "order.transferred", old, by=principal.name, new=new.pk, to=tenant.name)
        submit(entry, new, new.price, decided=("auto", "transfer"))
    return new


def order_renewal_set(*, principal: Principal, order: Order, renew: bool) -> Order:
    """Switch renewal on or off. Switching off takes back a renewal that has not begun."""
    with own(principal, order) as (entry, _, row, waiting):
        tried_again = row.state == OrderState.EXPIRED.value and row.renew_next_at is not None
        if row.state not in OPEN and (renew or not tried_again):
            raise wrong_state(row, f"is {row.state}; place a new order")
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
    """Store the order, hold the money, and approve by rule or wait for a decision. `price`: what the rules go by.

    An order that a rule leaves to an owner goes to the SREs if no other owner may decide about it.
    """
    order.approver, rule = decided or _rule(order, price)
    order.save()
    ledger.hold(entry, order)
    if order.approver == "auto":
        entry.append("order.placed", tenant=order.tenant.name, order=order.pk, by=order.placed_by)
        approve(entry, order, by=rule)
        return
    who = "an owner of the tenant decides" if order.approver == "owner" else "an SRE decides"
    if order.approver == "owner" and waits_in_vain().filter(pk=order.pk).exists():
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
