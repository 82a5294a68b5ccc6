"""Previews that show what orders and usage would cost at new prices."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from django.db import connection
from django.db.models import Q

from quota import clock
from quota.models import OPEN, Order, OrderState, PriceList, PriorityBand
from quota.pricing.capacity_for_sale import cell_require
from quota.pricing.price_formula import (
    FULL_MILLI,
    UNIT,
    Curve,
    base_checked,
    curve_checked,
    part_of,
    priced,
    repriced,
    total,
)
from quota.pricing.price_lists import price_list_at
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import CPU, NAMES, RAM, SIZE

WINDOW = dt.timedelta(days=30)
MOST_ORDERS = 20_000  # the newest orders; they take a few seconds to compute
EXAMPLES = ((CPU, 1000), (RAM, 2**30))  # a core, a GiB
SHARES_MILLI = (0, FULL_MILLI // 2, FULL_MILLI)
_LEFT_OUT = (OrderState.DRAFT.value, OrderState.REJECTED.value, OrderState.CANCELLED.value)


@dataclass(slots=True)
class Sum:
    """The total cost of orders or usage before and after a change of prices, in micro-credits.

    `count`: the number of orders or of metered hours.
    """

    name: str
    count: int = 0
    before: int = 0
    after: int = 0

    def add(self, before: int, after: int, count: int = 1) -> None:
        self.count, self.before, self.after = self.count + count, self.before + before, self.after + after


def what_if(
    *,
    principal: Principal,
    cell: str,
    base: Mapping[str, int],
    usage: Mapping[str, int] | None = None,
    curve: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """Return, as a mapping for JSON, what the open orders, and the orders and the usage of the last 30 days, would
    cost at new prices.

    Only the prices change: amounts, hours, band factors and the sold share of the capacity stay as they were.
    Rejected and cancelled orders are omitted. `examples`: the current and the new price of a core and a GiB for 30
    days at each band, for a cell that is empty, half sold and full. Raises `Rejected` if a price is not valid; the
    error names the field. Changes nothing.
    """
    require(principal, Action.PLATFORM_ADMIN, cell=cell)
    prices = base_checked(base)
    used = base_checked(usage or {}, field="usage")
    points = curve_checked(curve)
    cell_require(cell)
    since = clock.now() - WINDOW
    orders, cut = _orders(cell, since, prices, points)
    metered = _usage(cell, since, used)
    return {
        "cell": cell,
        "since": since.isoformat(),
        "compared_with": price_list_at(cell, clock.now()).version,
        "orders": asdict(orders.everything),
        "orders_cut": cut,
        "by_band": _sorted(orders.bands),
        "by_tenant": _sorted(orders.tenants),
        "usage": asdict(metered.everything),
        "usage_by_band": _sorted(metered.bands),
        "usage_by_tenant": _sorted(metered.tenants),
        "examples": examples(price_list_at(cell, clock.now()), prices, points),
    }


def examples(now: PriceList, base: Mapping[str, int], curve: Curve) -> list[dict[str, Any]]:
    """Return the prices of one core and one GiB for 30 days, at the current and at new prices, for JSON."""
    found = []
    for band in PriorityBand.objects.all():
        for index, quantity in EXAMPLES:
            amounts = tuple(quantity if position == index else 0 for position in range(SIZE))
            for share in SHARES_MILLI:
                given = (WINDOW // dt.timedelta(seconds=1), band.price_milli, (share,) * SIZE)
                found.append(
                    {
                        "band": band.name,
                        "resource": NAMES[index],
                        "quantity": quantity,
                        "sold_milli": share,
                        "before": _price(amounts, *given, now.base, now.curve),
                        "after": _price(amounts, *given, base, curve),
                    }
                )
    return found


def _price(
    amounts: Sequence[int], seconds: int, band_milli: int, shares: Sequence[int], base: Mapping[str, int], curve: Curve
) -> int:
    return total(priced(amounts, seconds, base, band_milli, curve, shares))


def _orders(cell: str, since: dt.datetime, base: Mapping[str, int], curve: Curve) -> tuple[_Sums, bool]:
    sums = _Sums()
    rows = (
        Order.objects.filter(Q(created_at__gte=since) | Q(state__in=OPEN), cell=cell)
        .exclude(state__in=_LEFT_OUT)
        .order_by("-id")
        .values_list("band__name", "tenant__name", "price", "parts", "replaces__parts")[: MOST_ORDERS + 1]
    )
    for band, tenant, before, kept, replaced in rows[:MOST_ORDERS]:
        # A transferred order has no parts. Its price is a share of the order that it replaces.
        parts = [part_of(part) for part in kept or replaced or ()]
        whole = total(parts)
        after = before * total(repriced(parts, base, curve)) // whole if whole else before
        sums.add(band, tenant, before, after)
    return sums, len(rows) > MOST_ORDERS


def _usage(cell: str, since: dt.datetime, usage: Mapping[str, int]) -> _Sums:
    """Return the cost of the metered usage since `since`, at the current and at the new prices.

    The calculation uses the current factors of the bands. The free priority costs nothing.
    """
    sums = _Sums()
    columns = ", ".join(f"sum(m.used[{index + 1}])" for index in range(SIZE))
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT b.name, b.price_milli, t.name, count(*), sum(m.price), {columns}"
            " FROM quota_meteredhour m JOIN quota_priorityband b ON b.id = m.band_id"
            " JOIN quota_tenant t ON t.id = m.tenant_id"
            " WHERE m.cell = %s AND m.hour >= %s GROUP BY b.name, b.price_milli, t.name",
            [cell, since],
        )
        found = cursor.fetchall()
    for band, band_milli, tenant, count, before, *used in found:
        exact = sum(
            (
                Fraction(int(value) * usage.get(name, 0) * band_milli, UNIT.get(name, 1) * 3600 * FULL_MILLI)
                for name, value in zip(NAMES, used, strict=True)
                if value
            ),
            start=Fraction(0),
        )
        after = -(-exact.numerator // exact.denominator)
        sums.add(band, tenant, int(before), after, count)
    return sums


class _Sums:
    """The total cost of all orders and usage, and the totals by band and by tenant, before and after a change of
    prices.
    """

    def __init__(self) -> None:
        self.everything = Sum("")
        self.bands: dict[str, Sum] = {}
        self.tenants: dict[str, Sum] = {}

    def add(self, band: str, tenant: str, before: int, after: int, count: int = 1) -> None:
        named = (self.bands.setdefault(band, Sum(band)), self.tenants.setdefault(tenant, Sum(tenant)))
        for row in (self.everything, *named):
            row.add(before, after, count)


def _sorted(sums: Mapping[str, Sum]) -> list[dict[str, Any]]:
    """Return the sums for JSON. The sum that changes most comes first."""
    return [asdict(row) for row in sorted(sums.values(), key=lambda row: (-abs(row.after - row.before), row.name))]
