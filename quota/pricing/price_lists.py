"""Price lists, and quotes that hold for a while (§2.5). `quota.pricing.arithmetic` does the arithmetic.

A list is never changed: a new version is set, in force from a moment that is not past. A cell without a list sells at
the default one, which is written as its version 0 when it is first needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from fractions import Fraction

from django.db.models import Max

from quota import clock, records
from quota.models import Order, OrderState, PriceList, PriorityBand, Quote, Tenant
from quota.notifications import notices
from quota.pricing.arithmetic import (
    FULL_MILLI,
    LARGEST,
    PricePart,
    base_checked,
    curve_checked,
    priced,
    share_with,
    total,
)
from quota.pricing.market import band_named, cell_require, market_of, room
from quota.vocabulary.calendar import peak
from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import SIZE, QuantityError, Vector, as_mapping, parse_vector

# A core-month for about 15 credits, a GiB-month for about 2; used storage is cheap, accelerators are dear.
DEFAULT_BASE: Mapping[str, int] = {
    "cpu": 20_000,
    "ram": 2_500,
    "disk": 50,
    "disk_bandwidth": 20_000,
    "accelerators": 500_000,
}
# Half sold costs no more than empty; the last core of a cell three times as much.
DEFAULT_CURVE: Sequence[tuple[int, int]] = ((500, 1000), (800, 1300), (950, 2000), (1000, 3000))
_OPEN = (OrderState.PENDING, OrderState.APPROVED, OrderState.ACTIVE)
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
    """The next version of a cell's prices, in force from `valid_from` (default: now). Raises `Rejected`.

    Prices of what was quoted or ordered before stay as they were. Locks the cell's newest list.
    """
    require(principal, Action.PLATFORM_ADMIN, cell=cell)
    prices = base_checked(base)
    used = base_checked(usage or {}, field="usage")
    points = curve_checked(curve)
    if len(note) > 200:
        raise Rejected("invalid", "note: at most 200 characters", fields={"note": "at most 200 characters"})
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
            raise invalid(
                "valid_from", f"{begin.isoformat()} is past, and prices of the past never change; leave it out for now"
            )
        version = (PriceList.objects.filter(cell=cell).aggregate(last=Max("version"))["last"] or 0) + 1
        row = PriceList.objects.create(
            cell=cell,
            version=version,
            base=prices,
            usage=used,
            curve=[list(point) for point in points],
            valid_from=begin,
            note=note,
            created_by=principal.name[:150],
            created_at=now,
        )
        entry.append(
            "prices.set",
            cell=cell,
            version=version,
            base=prices,
            usage=used,
            curve=row.curve,
            valid_from=begin.isoformat(),
            note=note,
        )
        _notify(entry, row)
    return row


def price_list_at(cell: str, moment: dt.datetime) -> PriceList:
    """The list in force at a moment: the last that began; of two that begin together, the later version."""
    row = PriceList.objects.filter(cell=cell, valid_from__lte=moment).order_by("-valid_from", "-version").first()
    if row is not None:
        return row
    PriceList.objects.bulk_create([default_list(cell)], ignore_conflicts=True)
    return PriceList.objects.get(cell=cell, version=0)


def default_list(cell: str) -> PriceList:
    """Return the default price list of a cell, not yet written."""
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
) -> tuple[int, tuple[PricePart, ...], PriceList]:
    """Return the current price: `(price, parts, price list)`. Writes nothing but a new cell's default list.

    Any person who may see the tenant's quota may ask for a price.
    """
    require(principal, Action.QUOTA_VIEW, tenant=tenant.name, cell=cell)
    row = band_named(band)
    vector = amounts_checked(amounts)
    period_checked(starts_at, ends_at)
    cell_require(cell)
    return _price(cell, row, vector, starts_at, ends_at)


def quote_make(
    *,
    principal: Principal,
    tenant: Tenant,
    cell: str,
    band: str,
    amounts: Amounts,
    starts_at: dt.datetime,
    ends_at: dt.datetime,
) -> Quote:
    """A price that holds for the market's `quote_minutes`, for exactly this. It keeps no quota back."""
    require(principal, Action.QUOTA_BUY, tenant=tenant.name, cell=cell)
    with records.write(principal) as entry:
        price, parts, prices = quote_preview(
            principal=principal,
            tenant=tenant,
            cell=cell,
            band=band,
            amounts=amounts,
            starts_at=starts_at,
            ends_at=ends_at,
        )
        vector = amounts_checked(amounts)
        now = clock.now()
        quote = Quote.objects.create(
            tenant=tenant,
            cell=cell,
            band=band_named(band),
            amounts=list(vector),
            starts_at=starts_at,
            ends_at=ends_at,
            price=price,
            parts=[part.as_json() for part in parts],
            prices=prices,
            made_by=principal.name,
            created_at=now,
            valid_until=now + dt.timedelta(minutes=market_of(cell).quote_minutes),
        )
        entry.append(
            "quote.made",
            tenant=tenant.name,
            quote=quote.pk,
            cell=cell,
            band=band,
            amounts=as_mapping(vector),
            price=price,
        )
    return quote


def quote_taken(
    *,
    tenant: Tenant,
    quote: int,
    cell: str,
    band: str,
    amounts: Sequence[int],
    starts_at: dt.datetime,
    ends_at: dt.datetime,
) -> Quote:
    """The quote that an order of exactly this may be placed at. Called inside the order's transaction.

    Locks the quote. Raises `NotFound`, `Rejected("quote-mismatch")`, `Conflict("quote-expired"|"quote-used")`.
    """
    row = Quote.objects.select_for_update(of=("self",)).select_related("band", "prices").filter(pk=quote).first()
    if row is None or row.tenant_id != tenant.pk:
        raise NotFound("quote", str(quote))
    wanted = {
        "cell": (row.cell, cell),
        "band": (row.band.name, band),
        "amounts": (tuple(row.amounts), tuple(amounts)),
        "starts_at": (row.starts_at, starts_at),
        "ends_at": (row.ends_at, ends_at),
    }
    other = [name for name, (quoted, asked) in wanted.items() if quoted != asked]
    if other:
        raise Rejected(
            "quote-mismatch",
            f"quote {quote} is for another {', '.join(other)}; ask for a new quote of exactly what you order",
            fields=dict.fromkeys(other, f"not what quote {quote} is for"),
        )
    if row.valid_until <= clock.now():
        raise Conflict(
            "quote-expired",
            f"quote {quote} held until {row.valid_until.isoformat()}; ask for a new one, or order without a quote"
            " at the price of now",
            fields={"quote": f"held until {row.valid_until.isoformat()}"},
            figures={"valid_until": row.valid_until.isoformat(), "price": row.price},
        )
    used = row.orders.exclude(state=OrderState.REJECTED.value).values_list("pk", flat=True).first()
    if used is not None:
        raise Conflict(
            "quote-used",
            f"order {used} was placed with quote {quote} already; ask for a new quote to order the same again",
            fields={"quote": f"used by order {used}"},
            figures={"order": used},
        )
    return row


def amounts_checked(amounts: Amounts) -> Vector:
    """A vector over the axis that asks for something and fits 64 bits. Raises `Rejected` naming the field."""
    try:
        vector = parse_vector(amounts) if isinstance(amounts, Mapping) else tuple(amounts)
    except QuantityError as error:
        raise Rejected("invalid", str(error), fields={"amounts": str(error)}) from error
    if len(vector) != SIZE or any(value < 0 for value in vector):
        raise invalid("amounts", f"{SIZE} quantities, none below zero")
    if not any(vector):
        raise invalid("amounts", "the request has no quantity; give at least one above zero")
    if max(vector) > LARGEST:
        raise invalid("amounts", f"no quantity may be above {LARGEST}", "too-large")
    return vector


def period_checked(starts_at: dt.datetime, ends_at: dt.datetime) -> None:
    """Forward, and not over. Raises `Rejected` naming the field."""
    for name, moment in (("starts_at", starts_at), ("ends_at", ends_at)):
        _aware(name, moment)
    if ends_at <= starts_at:
        raise Rejected("invalid", "ends_at is not after starts_at", fields={"ends_at": "not after starts_at"})
    if ends_at <= clock.now():
        raise Rejected("invalid", "ends_at lies in the past", fields={"ends_at": "in the past"})


def _aware(name: str, moment: dt.datetime) -> None:
    if moment.tzinfo is None:
        raise Rejected("invalid", f"{name}: give its time zone", fields={name: "without a time zone"})


def _notify(entry: records.RecordEntry, row: PriceList) -> None:
    """Everybody who owns quota of the cell, or waits for some: renewals and changes are at the new prices."""
    open_orders = Order.objects.filter(cell=row.cell, state__in=[state.value for state in _OPEN])
    for tenant in Tenant.objects.filter(pk__in=open_orders.values("tenant")).order_by("id"):
        notices.notify(
            entry,
            tenant,
            "price.changed",
            f"Prices of cell {row.cell} change",
            f"Version {row.version} of its prices is in force from {row.valid_from:%Y-%m-%d %H:%M} UTC on."
            " What you have ordered keeps its price; renewals and changes from then on are at the new ones.",
            cell=row.cell,
            version=row.version,
            valid_from=row.valid_from.isoformat(),
        )


def seconds_between(starts_at: dt.datetime, ends_at: dt.datetime) -> Fraction:
    return Fraction((ends_at - starts_at) // dt.timedelta(microseconds=1), 10**6)


def _price(
    cell: str, band: PriorityBand, vector: Vector, starts_at: dt.datetime, ends_at: dt.datetime
) -> tuple[int, tuple[PricePart, ...], PriceList]:
    prices = price_list_at(cell, clock.now())
    there = room(cell, band, starts_at, ends_at)
    most = peak(there.sold, starts_at, ends_at)
    # Exact, unlike `market.sold_share_milli`, so that an order in pieces costs what it costs whole.
    sold = tuple(
        Fraction(FULL_MILLI * value, limit) if limit > 0 else FULL_MILLI
        for value, limit in zip(most, there.limit, strict=True)
    )
    parts = priced(
        vector,
        seconds_between(starts_at, ends_at),
        prices.base,
        band.price_milli,
        prices.curve,
        sold,
        share_with(sold, vector, there.limit),
    )
    return total(parts), parts, prices
