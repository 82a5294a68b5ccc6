"""Checks before an order is placed or changed: the rights of the caller, the input, and the available quota.

Some of these functions also lock the rows that the change needs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import IntegrityError

from quota import clock, records
from quota.market.order_steps import order_locked, wrong_state
from quota.models import OPEN, Market, Order, OrderState, PriorityBand, Quota, ServiceAccount, Tenant
from quota.pricing.capacity_for_sale import SOLD, availability, earliest_start, is_sold, market_locked
from quota.pricing.price_lists import Amounts, amounts_checked
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, may, require
from quota.vocabulary.resources import NAMES, Vector, describe

# The latest start of an order from now on.
HORIZON = dt.timedelta(days=3660)
KEY_CHARACTERS = 64
TEXT_CHARACTERS = 500


def amounts_wanted(amounts: Amounts) -> Vector:
    """Return the ordered amounts as a vector. Raises `Rejected` if they include no resource that is sold."""
    vector = amounts_checked(amounts)
    if not any(vector[index] for index in SOLD):
        sold = ", ".join(NAMES[index] for index in SOLD)
        raise invalid("amounts", f"the order has no resource that is sold; give an amount of at least one of {sold}")
    return vector


def check_texts(*, key: str = "", **given: str) -> None:
    """Check the texts `key` and `given`. The names in `given` are the names of the request's fields.

    Raises `Rejected` if a text is too long or contains a NUL character.
    """
    for name, value, most in (("key", key, KEY_CHARACTERS), *((n, v, TEXT_CHARACTERS) for n, v in given.items())):
        if len(value) > most or "\x00" in value:
            raise invalid(name, f"the {name} is too long or contains a NUL character; give at most {most} characters")


def check_period(market: Market, starts_at: dt.datetime, ends_at: dt.datetime) -> None:
    """Check the period of an order. Raises `Rejected` if it is not valid; the error names the field.

    Times are in whole seconds. The start may be in the past, but by no more than the time for which a quote is valid.
    The period must not be longer than the cell's rules allow.
    """
    now = clock.now()
    for name, moment in (("starts_at", starts_at), ("ends_at", ends_at)):
        if moment.tzinfo is None:
            raise invalid(name, f"{moment.isoformat()} has no time zone; give a time such as 2027-01-31T00:00:00Z")
        if moment.microsecond:
            raise invalid(name, f"{moment.isoformat()} has fractions of a second; give whole seconds")
    if ends_at <= starts_at:
        raise invalid("ends_at", "the end is not after starts_at; give a later end")
    if ends_at <= now:
        raise invalid("ends_at", f"the end is in the past (it is {now.isoformat()} now); give a later end")
    if starts_at < now - dt.timedelta(minutes=market.quote_minutes):
        raise invalid(
            "starts_at", f"the start is in the past (it is {now.isoformat()} now); omit starts_at to start now"
        )
    if starts_at > now + HORIZON:
        raise invalid("starts_at", f"the start is too far ahead; give a time within {HORIZON.days} days")
    # One hour more, because a period of whole days may contain a day of 25 hours.
    if ends_at - starts_at > dt.timedelta(days=market.longest_days, hours=1):
        most = market.longest_days
        detail = (
            f"the period is too long; cell {market.cell} sells at most {most} days per order, so give an earlier end"
        )
        raise invalid("ends_at", detail)


def check_on_sale(market: Market, band: PriorityBand) -> None:
    """Check that the cell sells quota at this band. Raises `Rejected` if the cell does not sell such quota."""
    if not market.selling:
        detail = f"cell {market.cell} sells no quota now; choose another cell, or ask an SRE"
        raise Conflict("not-selling", detail, fields={"cell": detail})
    if not is_sold(band):
        raise invalid("band", f"quota at band {band.name} is not sold; choose another band", "not-sold")


def check_available(row: Order | Quota, *, without: int = 0) -> None:
    """Check that the cell can sell the amounts of an order or a grant at every moment until its grace period ends.

    `without`: the id of an order whose grant is not counted. Raises `Rejected("sold-out")`, with the amounts that are
    left and the first time at which the requested amounts are available.
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
    when = f"available from {first.isoformat()} on" if first is not None else "never available"
    parts = "; ".join(
        f"{name}: {describe(NAMES.index(name), f['asked'])} requested, {describe(NAMES.index(name), f['left'])} left"
        for name, f in short.items()
    )
    raise Rejected(
        "sold-out",
        f"Cell {cell} has too little {band.name} quota left from {starts_at.isoformat()}"
        f" {f'to {until.isoformat()}' if until else 'on'}, including the grace period ({parts}). The requested amounts"
        f" are {when}. Choose smaller amounts, or another time, band or cell.",
        fields={
            f"amounts.{name}": f"the cell can sell only {describe(NAMES.index(name), f['left'])}; give a smaller amount"
            for name, f in short.items()
        },
        figures={
            "cell": cell,
            "band": band.name,
            "short": short,
            "first_free": first.isoformat() if first is not None else None,
        },
    )


def check_capacity(order: Order) -> None:
    """Check that the cell still has enough capacity for a pending order. Raises `Rejected("sold-out")` if the capacity
    is too small.
    """
    begin = max(order.starts_at, clock.now())
    until = order.grace_until or order.ends_at
    if begin >= until:
        return
    left = availability(order.cell, order.band, begin, until)
    short = {NAMES[i]: {"asked": order.amounts[i], "left": left[i]} for i in SOLD if order.amounts[i] > 0 > left[i]}
    if short:
        raise Rejected(
            "sold-out",
            f"Cell {order.cell} has lost capacity since order {order.pk} was placed, and has now sold more than its"
            f" capacity of {', '.join(short)}. Reject the order, or wait until the cell has capacity again.",
            figures={"cell": order.cell, "band": order.band.name, "short": short},
        )


def check_no_successor(order: Order, waiting: Sequence[Order]) -> None:
    """Check that no other order is waiting to replace `order`. Raises `Conflict` if there is such an order."""
    for other in waiting:
        raise Conflict(
            "order-waits",
            f"order {order.pk} has a pending {other.replaced_as} (order {other.pk}); cancel order {other.pk} first",
            figures={"order": order.pk, "waiting": other.pk},
        )


def check_changeable(order: Order, what: str) -> None:
    """Check that the order can still change.

    Raises `Conflict` if the order or its period has ended. `what`: a participle for the message, such as "changed".
    """
    ended = order.state == OrderState.ACTIVE.value and order.ends_at <= clock.now()
    if ended or order.state not in OPEN:
        state = "expired" if ended else order.state
        raise wrong_state(order, f"order {order.pk} is {state} and cannot be {what}; place a new order")


def replaced_by_change(order: Order, starts_at: dt.datetime | None) -> tuple[Order, str]:
    """Return the order that is replaced if `order` is changed, and the kind of replacement.

    Usually this is `order` itself. If `order` has no grant yet and is itself the replacement of an older order, the
    older order is replaced. Exception: `order` is a renewal, and `starts_at` is before the end of the renewed order.
    Then the two orders overlap and both count as sold, so the change replaces only `order`.
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
    """Return the tenant's order that was placed with the idempotency key `key`, or None. The caller has locked the
    market.

    Raises `Conflict("key-used")` if a field of that order differs from `same`, the fields of the new request.
    """
    order = Order.objects.filter(tenant=tenant, key=key).first() if key else None
    if order is None:
        return None
    if any(getattr(order, name) != value for name, value in same.items()):
        raise Conflict(
            "key-used",
            f"key {key!r} was already used for order {order.pk} of tenant {tenant.name}, which differs from this order;"
            " use a new key",
            fields={"key": f"the key was already used for order {order.pk}; use a new key"},
            figures={"order": order.pk},
        )
    return order


@contextmanager
def selling(principal: Principal) -> Iterator[RecordEntry]:
    """Run the `with` block in one transaction, which changes orders. The transaction also writes records of the change.

    Raises `Conflict` if a simultaneous order in another cell uses the same key.
    """
    try:
        with records.write(principal) as entry:
            yield entry
    except IntegrityError as error:
        if "one_order_per_tenant_and_key" not in str(error):
            raise
        detail = "the key was already used for another order; use a new key"
        raise Conflict("key-used", f"key: {detail}", fields={"key": detail}) from error


@contextmanager
def buying(principal: Principal, order: Order) -> Iterator[tuple[RecordEntry, Market, Order, list[Order]]]:
    """Check that the principal may buy for the order's tenant, and run the `with` block as one change of the order.

    Yields the record entry and three locked objects: the market, the order, and the orders that wait to replace it.
    """
    require(principal, Action.QUOTA_BUY, tenant=order.tenant.name, cell=order.cell)
    with selling(principal) as entry:
        market = market_locked(order.cell)
        row, waiting = order_locked(order.pk)
        yield entry, market, row, waiting


@contextmanager
def deciding(principal: Principal, order: Order) -> Iterator[tuple[RecordEntry, Order]]:
    """Lock an order, check that the principal may approve or reject it, and run the `with` block as one change of the
    order. Yields the record entry and the order.

    SREs may also decide about orders that they placed themselves; other users may not.
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
                f"{row.placed_by} placed order {row.pk}, so {principal.name} cannot approve or reject it; ask another"
                " owner or an SRE",
            )
        yield entry, row


def _is_own(principal: Principal, placed_by: str) -> bool:
    """Return whether `placed_by` is the principal or a service account that the principal created."""
    if placed_by == principal.name:
        return True
    return ServiceAccount.objects.filter(user__username=placed_by, created_by=principal.name).exists()
