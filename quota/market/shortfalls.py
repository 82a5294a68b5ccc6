"""Shortfalls: periods in which a cell has less capacity than was sold to prod (§2.5). The SREs get a notification of
each shortfall.

During a shortfall, no order for prod is possible. One row describes one period without a gap. The row is open until the
period ends or the cell has enough capacity again. The capacity includes the headroom, which is not for sale. The
affected orders are listed newest first.
"""

from __future__ import annotations

from collections.abc import Sequence

from quota import clock, records
from quota.models import CellCapacity, Market, PriorityBand, Shortfall
from quota.notifications.notices import notify
from quota.pricing.capacity_for_sale import SOLD, Holding, capacity_of, holdings, market_locked, sold_steps
from quota.records import RecordEntry
from quota.vocabulary import calendar
from quota.vocabulary.calendar import Excess
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import as_mapping, format_vector

ME = system("market")
_NAMED = 20


def shortfalls_examine(cell: str) -> int:
    """Compare a cell's sold quota with its capacity from now on, and update its `Shortfall` rows.

    Returns the number of open shortfalls. Locks the cell's market, but only if there is something to write.
    """
    if not excesses_of(cell) and not _open(cell):
        return 0
    with records.write(ME) as entry:
        market_locked(cell)
        now = clock.now()
        rows = _open(cell)
        found = excesses_of(cell)
        held = holdings(cell, [band.pk for band in _prod()], now) if found else []
        for excess in found:
            orders, tenants = _affected(excess, held)
            row = next((row for row in rows if excess.overlaps(row.begins_at, row.ends_at)), None)
            if row is not None:
                rows.remove(row)
                _change(entry, row, excess, orders, tenants)
            else:
                row = Shortfall.objects.create(
                    cell=cell,
                    begins_at=excess.begins_at,
                    ends_at=excess.ends_at,
                    short=list(excess.short),
                    orders=orders,
                    tenants=tenants,
                    found_at=now,
                )
                _notify(entry, "shortfall.found", row, level="urgent")
        for row in rows:
            row.closed_at = now
            row.save(update_fields=["closed_at"])
            _notify(entry, "shortfall.over", row)
    return len(found)


def shortfalls_examine_lowered() -> int:
    """Update the `Shortfall` rows (periods with more sold quota than capacity) of the cells whose reported capacity has
    decreased since the last call. Returns the number of these cells.
    """
    cells = sorted(CellCapacity.objects.filter(lowered=True).values_list("cell", flat=True))
    # The marks are removed first, so that a cell that loses capacity in the meantime is examined again.
    CellCapacity.objects.filter(cell__in=cells, lowered=True).update(lowered=False)
    for cell in cells:
        shortfalls_examine(cell)
    return len(cells)


def shortfalls_examine_all() -> int:
    """Update the `Shortfall` rows (periods with more sold quota than capacity) of every cell that has a market. Returns
    the number of open shortfalls.
    """
    return sum(shortfalls_examine(cell) for cell in Market.objects.order_by("cell").values_list("cell", flat=True))


def excesses_of(cell: str) -> list[Excess]:
    """Return the periods from now on in which the sold prod quota exceeds the capacity of the cell."""
    now = clock.now()
    return calendar.excesses(capacity_of(cell), sold_steps(cell, _prod(), now), now)


def _prod() -> list[PriorityBand]:
    return list(PriorityBand.objects.filter(prod=True))


def _open(cell: str) -> list[Shortfall]:
    return list(Shortfall.objects.filter(cell=cell, closed_at=None).order_by("begins_at", "id"))


def _affected(excess: Excess, held: Sequence[Holding]) -> tuple[list[int], list[str]]:
    """Return the ids of the orders (newest first) and the names of the tenants that hold quota of the oversold
    resources during the period of `excess`.
    """
    there = [
        one
        for one in held
        if excess.overlaps(one.begins_at, one.ends_at)
        and any(one.amounts[index] > 0 for index in SOLD if excess.short[index])
    ]
    orders = sorted({one.order for one in there if one.order is not None}, reverse=True)
    return orders, sorted({one.tenant for one in there})


def _change(entry: RecordEntry, row: Shortfall, excess: Excess, orders: list[int], tenants: list[str]) -> None:
    """Update an open shortfall, and notify the SREs if the missing amount has changed."""
    before = (row.begins_at, row.ends_at, list(row.short), row.orders, row.tenants)
    short = list(row.short)
    # A shortfall that has begun keeps its beginning.
    if row.begins_at > excess.begins_at or row.begins_at > clock.now():
        row.begins_at = excess.begins_at
    row.ends_at, row.short, row.orders, row.tenants = excess.ends_at, list(excess.short), orders, tenants
    if before == (row.begins_at, row.ends_at, row.short, row.orders, row.tenants):
        return
    row.save(update_fields=["begins_at", "ends_at", "short", "orders", "tenants"])
    if row.short != short:
        _notify(entry, "shortfall.changed", row, level="urgent")


def _notify(entry: RecordEntry, kind: str, row: Shortfall, *, level: str = "info") -> None:
    short = format_vector(row.short)
    period = f"from {row.begins_at:%Y-%m-%d %H:%M} " + (
        f"to {row.ends_at:%Y-%m-%d %H:%M} UTC" if row.ends_at is not None else "UTC on"
    )
    data = {
        "cell": row.cell,
        "shortfall": row.pk,
        "begins_at": row.begins_at.isoformat(),
        "ends_at": row.ends_at.isoformat() if row.ends_at is not None else None,
        "short": {name: value for name, value in as_mapping(row.short).items() if value},
        "orders": row.orders,
        "tenants": row.tenants,
    }
    entry.append(kind, **data)
    if kind == "shortfall.over":
        subject, text = f"Cell {row.cell} has enough capacity again for the quota sold {period}", ""
    else:
        subject = f"Cell {row.cell} has {short} less than the quota sold {period}"
        more = f" and {len(row.orders) - _NAMED} more" if len(row.orders) > _NAMED else ""
        named = ", ".join(map(str, row.orders[:_NAMED])) or "none"
        text = (
            f"More prod quota is sold than the cell has, so no more can be sold in this period. Affected orders, newest"
            f" first: {named}{more}. Affected tenants: {', '.join(row.tenants)}."
        )
    notify(entry, None, kind, subject, text, url="", level=level, **data)
