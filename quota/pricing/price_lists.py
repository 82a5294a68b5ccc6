"""Price lists, and quotes, which are valid for a limited time (§2.5). `quota.pricing.price_formula` computes prices.

A price list never changes. New prices create a new version, which is in force from now or from a later time. A cell
without a price list uses the default list, which is stored as version 0 when it is first needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from django.db.models import Max

from quota import clock, records
from quota.models import OPEN, Order, OrderState, PriceList, Quote, Tenant
from quota.notifications import notices
from quota.pricing.capacity_for_sale import band_named, cell_require, market_of, sale_capacity
from quota.pricing.price_formula import FULL_MILLI, base_checked, curve_checked, priced, share_with, total
from quota.request_cache import once
from quota.vocabulary.calendar import peak
from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.money import MOST as LARGEST
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import SIZE, QuantityError, Vector, as_mapping, parse_vector

# A core costs about 15 credits per month, and a GiB of RAM about 2. Storage is cheap, and accelerators are expensive.
DEFAULT_BASE: Mapping[str, int] = {
    "cpu": 20_000,
    "ram": 2_500,
    "disk": 50,
    "disk_bandwidth": 20_000,
    "accelerators": 500_000,
}
# Up to half of a cell is sold at the base price. The last core costs three times as much.
DEFAULT_CURVE: Sequence[tuple[int, int]] = ((500, 1000), (800, 1300), (950, 2000), (1000, 3000))
_ALWAYS = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)

Amounts = Vector | Mapping[str, int | float | str]


def price_list_set(
    *,
    principal: Principal,
    cell: str,
    base: Mapping[str, int],
    usage: Mapping[str, int] | None = None,
    curve: Sequence[Sequence[int]] = (),
    note: str = "",
    valid_from: dt.datetime | None = None,
) -> PriceList:
    """Create the next version of a cell's prices, in force from `valid_from` (by default now). Raises `Rejected` if a
    value is not valid.

    Existing quotes and orders keep their prices. Locks the cell's newest list.
    """
    require(principal, Action.PLATFORM_ADMIN, cell=cell)
    prices = base_checked(base)
    used = base_checked(usage or {}, field="usage")
    points = curve_checked(curve)
    if len(note) > 200:
        raise invalid("note", "the note is too long; give at most 200 characters")
    if valid_from is not None:
        _aware("valid_from", valid_from)
    cell_require(cell)
    with records.write(principal) as entry:
        price_list_at(cell, clock.now())
        newest = PriceList.objects.select_for_update().filter(cell=cell).order_by("-version").first()
        assert newest is not None
        now = clock.now()
        begin = valid_from or now
        if begin < now:
            raise invalid("valid_from", f"the start {begin.isoformat()} is in the past; omit valid_from to start now")
        version = (PriceList.objects.filter(cell=cell).aggregate(last=Max("version"))["last"] or 0) + 1
        shown = [list(point) for point in points]
        kept: dict[str, Any] = {
            "cell": cell,
            "version": version,
            "base": prices,
            "usage": used,
            "curve": shown,
            "note": note,
        }
        row = PriceList.objects.create(**kept, valid_from=begin, created_by=principal.name[:150], created_at=now)
        entry.append("prices.set", **kept, valid_from=begin.isoformat())
        _notify(entry, row)
    return row


def price_list_at(cell: str, moment: dt.datetime) -> PriceList:
    """Return the price list of a cell that is in force at a moment.

    If two lists begin at the same time, the later version counts.
    """
    row = PriceList.objects.filter(cell=cell, valid_from__lte=moment).order_by("-valid_from", "-version").first()
    if row is not None:
        return row
    PriceList.objects.bulk_create([default_list(cell)], ignore_conflicts=True)
    return PriceList.objects.get(cell=cell, version=0)


@once
def _price_list_now(cell: str) -> PriceList:
    return price_list_at(cell, clock.now())


def default_list(cell: str) -> PriceList:
    """Return the default price list of a cell, which is not saved."""
    return PriceList(
        cell=cell,
        version=0,
        base=dict(DEFAULT_BASE),
        usage={},
        curve=[list(point) for point in DEFAULT_CURVE],
        valid_from=_ALWAYS,
        note="default",
        created_by="system",
        created_at=clock.now(),
    )


def quote_preview(
    *,
    principal: Principal,
    tenant: Tenant,
    cell: str,
    band: str,
    amounts: Amounts,
    starts_at: dt.datetime,
    ends_at: dt.datetime,
) -> Quote:
    """Return an unsaved quote at the current price.

    The function writes nothing, except the default price list if the cell has none. Any principal that may see the
    tenant's quota may request a quote.
    """
    require(principal, Action.QUOTA_VIEW, tenant=tenant.name, cell=cell)
    row = band_named(band)
    vector = amounts_checked(amounts)
    period_checked(starts_at, ends_at)
    cell_require(cell)
    quote = Quote(
        tenant=tenant,
        cell=cell,
        band=row,
        amounts=list(vector),
        starts_at=starts_at,
        ends_at=ends_at,
        made_by=principal.name,
        created_at=clock.now(),
    )
    price_now(principal, quote)
    return quote


def price_now(principal: Principal, row: Order | Quote, *, without: int = 0) -> None:
    """Set three fields of a new order or quote: the current price, its parts, and the price list.

    `without`: the id of an order whose grant is not counted as sold.
    """
    require(principal, Action.QUOTA_VIEW, tenant=row.tenant.name, cell=row.cell)
    row.prices = _price_list_now(row.cell)
    there = sale_capacity(row.cell, row.band, row.starts_at, row.ends_at, without=without)
    most = peak(there.sold, row.starts_at, row.ends_at)
    # The fractions are exact, so that several small orders cost the same as one large order.
    sold = tuple(
        Fraction(FULL_MILLI * value, limit) if limit > 0 else FULL_MILLI
        for value, limit in zip(most, there.limit, strict=True)
    )
    seconds = Fraction((row.ends_at - row.starts_at) // dt.timedelta(microseconds=1), 10**6)
    then = share_with(sold, row.amounts, there.limit)
    parts = priced(row.amounts, seconds, row.prices.base, row.band.price_milli, row.prices.curve, sold, then)
    row.price, row.parts = total(parts), [part.as_json() for part in parts]


def quote_make(*, principal: Principal, tenant: Tenant, cell: str, **wanted: Any) -> Quote:
    """Create a quote: a price that is valid for the market's `quote_minutes`, for exactly this request.

    A quote reserves no quota. `wanted`: the arguments of `quote_preview`.
    """
    require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=cell)
    with records.write(principal) as entry:
        quote = quote_preview(principal=principal, tenant=tenant, cell=cell, **wanted)
        quote.valid_until = quote.created_at + dt.timedelta(minutes=market_of(cell).quote_minutes)
        quote.save()
        entry.append(
            "quote.made",
            tenant=tenant.name,
            quote=quote.pk,
            cell=cell,
            band=quote.band.name,
            amounts=as_mapping(quote.amounts),
            price=quote.price,
        )
    return quote


def price_quoted(order: Order, quote: int) -> None:
    """Copy the price, its parts and the price list to an order from a quote for exactly this order.

    Locks the quote until the order's transaction ends. Raises `NotFound` if the tenant has no such quote,
    `Rejected("quote-mismatch")` if the quote is for another order, `Conflict("quote-expired")` if the quote has
    expired, and `Conflict("quote-used")` if another order has used it.
    """
    row = Quote.objects.select_for_update(of=("self",)).select_related("band", "prices").filter(pk=quote).first()
    if row is None or row.tenant_id != order.tenant_id:
        raise NotFound("quote", str(quote))
    asked = ("cell", "band", "amounts", "starts_at", "ends_at")
    other = [name for name in asked if getattr(row, name) != getattr(order, name)]
    if other:
        raise Rejected(
            "quote-mismatch",
            f"quote {quote} has other values for {', '.join(other)}; request a new quote for exactly this order",
            fields=dict.fromkeys(other, f"this value differs from quote {quote}; request a new quote for this order"),
        )
    if row.valid_until <= clock.now():
        raise Conflict(
            "quote-expired",
            f"quote {quote} was valid until {row.valid_until.isoformat()}; request a new quote, or order at the"
            " current price without a quote",
            fields={"quote": f"the quote was valid until {row.valid_until.isoformat()}; request a new quote"},
            figures={"valid_until": row.valid_until.isoformat(), "price": row.price},
        )
    used = row.orders.exclude(state=OrderState.REJECTED.value).values_list("pk", flat=True).first()
    if used is not None:
        raise Conflict(
            "quote-used",
            f"quote {quote} was already used for order {used}; request a new quote to order the same again",
            fields={"quote": f"the quote was already used for order {used}; request a new quote"},
            figures={"order": used},
        )
    order.quote, order.price, order.parts, order.prices = row, row.price, row.parts, row.prices


def amounts_read(amounts: Amounts) -> Vector:
    """Read amounts from a request and return them as a vector of 64-bit quantities.

    Raises `Rejected` if an amount is not valid; the error names the field.
    """
    try:
        vector = parse_vector(amounts) if isinstance(amounts, Mapping) else tuple(amounts)
    except QuantityError as error:
        raise Rejected("invalid", str(error), fields={"amounts": str(error)}) from error
    if vector and max(vector) > LARGEST:
        raise invalid("amounts", f"an amount is too large; give at most {LARGEST}", "too-large")
    return vector


def amounts_checked(amounts: Amounts) -> Vector:
    """Read amounts from a request and return them as a vector.

    Raises `Rejected` if all amounts are zero or one does not fit 64 bits; the error names the field.
    """
    vector = amounts_read(amounts)
    if len(vector) != SIZE or any(value < 0 for value in vector):
        raise invalid("amounts", f"the amounts are not {SIZE} quantities of 0 or more; give one quantity per resource")
    if not any(vector):
        raise invalid("amounts", "all amounts are zero; give at least one amount above zero")
    return vector


def period_checked(starts_at: dt.datetime, ends_at: dt.datetime) -> None:
    """Check that a period ends after its start and after now. Otherwise raises `Rejected`; the error names the
    field.
    """
    for name, moment in (("starts_at", starts_at), ("ends_at", ends_at)):
        _aware(name, moment)
    if ends_at <= starts_at:
        raise invalid("ends_at", "the end is not after starts_at; give a later end")
    if ends_at <= clock.now():
        raise invalid("ends_at", "the end is in the past; give a later end")


def _aware(name: str, moment: dt.datetime) -> None:
    if moment.tzinfo is None:
        raise invalid(name, f"{moment.isoformat()} has no time zone; give a time such as 2027-01-31T00:00:00Z")


def _notify(entry: records.RecordEntry, row: PriceList) -> None:
    """Notify all tenants with open orders in the cell, because their renewals and changes get the new prices."""
    open_orders = Order.objects.filter(cell=row.cell, state__in=OPEN)
    for tenant in Tenant.objects.filter(pk__in=open_orders.values("tenant")).order_by("id"):
        notices.notify(
            entry,
            tenant,
            "price.changed",
            f"Prices of cell {row.cell} change",
            f"Version {row.version} of the prices is in force from {row.valid_from:%Y-%m-%d %H:%M} UTC on."
            " Existing orders keep their prices. Later renewals and changes get the new prices.",
            cell=row.cell,
            version=row.version,
            valid_from=row.valid_from.isoformat(),
        )
