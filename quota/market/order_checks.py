"""Checks before a change of an order: the caller, the input, available quota; and the locks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from zoneinfo import ZoneInfo

from django.db import IntegrityError

from quota import clock, records
from quota.market.order_steps import order_locked, wrong_state
from quota.models import OPEN, Market, Order, OrderState, PriorityBand, Quota, ServiceAccount, Tenant
from quota.pricing.market import SOLD, availability, earliest_start, is_sold, market_locked
from quota.pricing.price_lists import Amounts, amounts_checked
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, may, require
from quota.vocabulary.resources import NAMES, Vector, describe

# Nobody orders for later than this.
HORIZON = dt.timedelta(days=3660)
KEY_CHARACTERS = 64
TEXT_CHARACTERS = 500


def zone_of(tenant: Tenant) -> ZoneInfo:
    """Return the time zone of a tenant."""
    return ZoneInfo(tenant.time_zone)


def amounts_wanted(amounts: Amounts) -> Vector:
    """A vector that asks for something that is sold. Raises `Rejected` naming the field."""
    vector = amounts_checked(amounts)
    if not any(vector[index] for index in SOLD):
        raise invalid(
            "amounts", f"give at least one of {', '.join(NAMES[index] for index in SOLD)}; nothing else is sold"
        )
    return vector


def texts(*, key: str = "", **given: str) -> None:
    """Check texts. Raises `Rejected`, which names a text that is too long or cannot be stored."""
    for name, value, most in (("key", key, KEY_CHARACTERS), *((n, v, TEXT_CHARACTERS) for n, v in given.items())):
        if len(value) > most or "\x00" in value:
            raise invalid(name, f"at most {most} characters, none of them NUL")


def period(market: Market, starts_at: dt.datetime, ends_at: dt.datetime) -> None:
    """Raises `Rejected` unless a period runs forward, in whole seconds, is not over, begins no longer ago than a quote
    holds, and is no longer than the cell sells.
    """
    now = clock.now()
    for name, moment in (("starts_at", starts_at), ("ends_at", ends_at)):
        if moment.tzinfo is None:
            raise invalid(name, "give its time zone, such as 2027-01-31T00:00:00Z")
        if moment.microsecond:
            raise invalid(name, "give whole seconds")
    if ends_at <= starts_at:
        raise invalid("ends_at", "not after starts_at")
    if ends_at <= now:
        raise invalid("ends_at", f"lies in the past; it is {now.isoformat()}")
    if starts_at < now - dt.timedelta(minutes=market.quote_minutes):
        raise invalid("starts_at", f"lies in the past; it is {now.isoformat()}. Leave it out to begin now")
    if starts_at > now + HORIZON:
        raise invalid("starts_at", f"more than {HORIZON.days} days ahead")
    # A day of 25 hours more, for periods of whole days of a time zone.
    if ends_at - starts_at > dt.timedelta(days=market.longest_days, hours=1):
        raise invalid("ends_at", f"cell {market.cell} sells quota for at most {market.longest_days} days per order")


def on_sale(market: Market, band: PriorityBand) -> None:
    """Check that the cell sells quota, and at this band. Raises `Rejected`."""
    if not market.selling:
        raise Conflict(
            "not-selling",
            f"cell {market.cell} sells nothing at the moment; choose another cell, or ask an SRE",
            fields={"cell": "sells nothing at the moment"},
        )
    if not is_sold(band):
        raise Rejected("not-sold", f"quota at band {band.name} is not sold", fields={"band": "not sold"})


def fits(row: Order | Quota, *, without: int = 0) -> None:
    """Raises `Rejected("sold-out")`, with what is left and the first free date, unless an order or a grant fits at
    every instant until its grace ends. `without`: the id of an order whose grant is not counted.
    """
    cell, band, amounts, starts_at = row.cell, row.band, row.amounts, row.starts_at
    until = row.grace_until or row.ends_at
    left = availability(cell, band, starts_at, until, without=without)
    short = {
        NAMES[i]: {"asked": int(amounts[i]), "left": max(0, left[i]), "short": int(amounts[i]) - left[i]}
        for i in SOLD
        if amounts[i] > 0 and amounts[i] > left[i]
    }
    if not short:
        return
    length = None if until is None else until - starts_at
    first = earliest_start(cell, band, amounts, length, starts_at, without=without)
    when = f"it is free from {first.isoformat()} on" if first is not None else "there is no time when it is free"
    parts = "; ".join(
        f"{name}: asked {describe(NAMES.index(name), f['asked'])}, {describe(NAMES.index(name), f['left'])} left"
        for name, f in short.items()
    )
    raise Rejected(
        "sold-out",
        f"cell {cell} has too little {band.name} quota left from {starts_at.isoformat()}"
        f" {f'to {until.isoformat()}' if until else 'on'}, including the grace period: {parts}; {when}."
        " Ask for less, another time, band or cell.",
        fields={f"amounts.{name}": f"{describe(NAMES.index(name), f['left'])} left" for name, f in short.items()},
        figures={
            "cell": cell,
            "band": band.name,
            "short": short,
            "first_free": first.isoformat() if first is not None else None,
        },
    )


def still_there(order: Order) -> None:
    """Check that the cell still has the capacity of a pending order. Raises `Rejected("sold-out")`."""
    begin = max(order.starts_at, clock.now())
    until = order.grace_until or order.ends_at
    if begin >= until:
        return
    left = availability(order.cell, order.band, begin, until)
    short = {NAMES[i]: {"asked": order.amounts[i], "left": left[i]} for i in SOLD if order.amounts[i] > 0 > left[i]}
    if short:
        raise Rejected(
            "sold-out",
            f"cell {order.cell} has lost capacity since order {order.pk} was placed, and more is sold than it has:"
            f" {', '.join(short)}. Reject it, or wait until the cell has capacity again.",
            figures={"cell": order.cell, "band": order.band.name, "short": short},
        )


def nothing_waits(order: Order, waiting: Sequence[Order]) -> None:
    """Check that no other order is waiting to replace this one. Raises `Rejected`."""
    for other in waiting:
        raise Conflict(
            "order-waits",
            f"order {order.pk} has a pending {other.replaced_as}, order {other.pk}; cancel order {other.pk} first",
            figures={"order": order.pk, "waiting": other.pk},
        )


def changeable(order: Order, what: str) -> None:
    """Check that the order can still change. Raises `Rejected` for orders whose period is over."""
    over = order.state == OrderState.ACTIVE.value and order.ends_at <= clock.now()
    if over or order.state not in OPEN:
        raise wrong_state(order, f"is {'over' if over else order.state} and can't be {what}; place a new order")


def place_of(order: Order, starts_at: dt.datetime | None) -> tuple[Order, str]:
    """Return the order that a change of this order replaces: itself, or the one that it was to replace, which still
    has its grant.

    `starts_at`: another beginning than before. A renewal that begins before what it renews ends, comes beside it.
    """
    above = order.replaces
    if (
        above is None
        or order.replaced_as not in ("change", "renewal")
        or above.state not in (OrderState.ACTIVE.value, OrderState.EXPIRED.value)
        or (order.replaced_as == "renewal" and starts_at is not None and starts_at < above.ends_at)
        or Quota.objects.filter(order=order).exists()
    ):
        return order, "change"
    return above, order.replaced_as


def placed_before(tenant: Tenant, key: str, same: Mapping[str, Any]) -> Order | None:
    """The order that this key placed. Raises `Conflict("key-used")` when that was another one. The market is locked."""
    order = Order.objects.filter(tenant=tenant, key=key).first() if key else None
    if order is None:
        return None
    if any(getattr(order, name) != value for name, value in same.items()):
        raise Conflict(
            "key-used",
            f"key {key!r} was already used for order {order.pk} of tenant {tenant.name}, which is different; use a"
            " new key",
            fields={"key": f"used by order {order.pk}"},
            figures={"order": order.pk},
        )
    return order


@contextmanager
def selling(principal: Principal) -> Iterator[RecordEntry]:
    """Open one change of orders. A constraint detects a key that is used at the same time in another cell."""
    try:
        with records.write(principal) as entry:
            yield entry
    except IntegrityError as error:
        if "one_order_per_tenant_and_key" not in str(error):
            raise
        raise Conflict("key-used", "key: used for another order", fields={"key": "used"}) from error


@contextmanager
def own(principal: Principal, order: Order) -> Iterator[tuple[RecordEntry, Market, Order, list[Order]]]:
    """Open a change by a person who may buy for the order's tenant. Yields entry, market, order, and the orders that
    wait to replace it.
    """
    require(principal, Action.QUOTA_BUY, tenant=order.tenant.name, cell=order.cell)
    with selling(principal) as entry:
        market = market_locked(order.cell)
        row, waiting = order_locked(order.pk)
        yield entry, market, row, waiting


@contextmanager
def deciding(principal: Principal, order: Order) -> Iterator[tuple[RecordEntry, Order]]:
    """Lock an order and check that this person may decide about it.

    Nobody may decide about an order that they placed, except SREs.
    """
    if not may(principal, Action.QUOTA_VIEW, tenant=order.tenant.name, cell=order.cell):
        raise NotFound("order", str(order.pk))
    with records.write(principal) as entry:
        market_locked(order.cell)
        row, _ = order_locked(order.pk)
        if row.approver == "owner":
            require(principal, Action.QUOTA_APPROVE, tenant=row.tenant.name, cell=row.cell)
        else:
            require(principal, Action.PLATFORM_ADMIN, cell=row.cell)
        if not principal.sre and _is_own(principal, row.placed_by):
            raise Forbidden(
                Action.QUOTA_APPROVE,
                f"{row.placed_by} placed order {row.pk}, so {principal.name} can't decide about it; ask another owner,"
                " or an SRE",
            )
        yield entry, row


def _is_own(principal: Principal, placed_by: str) -> bool:
    """Return whether the principal, or a service account that it created, placed the order."""
    if placed_by == principal.name:
        return True
    return ServiceAccount.objects.filter(user__username=placed_by, created_by=principal.name).exists()
