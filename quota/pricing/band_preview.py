"""Previews that show what a change of a band would mean for sold quota."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from quota import clock
from quota.admission.band_changes import factors_of
from quota.models import CellCapacity, PriorityBand, QuotaUse
from quota.pricing.capacity_for_sale import SOLD, Holding, SaleCapacity, holdings, sale_capacity, sold_steps
from quota.vocabulary import calendar
from quota.vocabulary.bands import Band
from quota.vocabulary.calendar import Excess
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import ZERO, Vector, as_mapping


def band_preview(
    *, principal: Principal, band: Band, price_milli: int | None = None, oversell_milli: int | None = None
) -> dict[str, Any]:
    """Return the effect that a change of a band would have, for JSON.

    This function takes the same arguments as `band_set`, and changes nothing. `changes`: the values before and after,
    by field. `cells`: for each cell the maximum of sold quota from now on, and the limits before and after the change.
    `over` lists periods in which more is sold than the new limit, with the affected orders, grants and tenants.
    `leaving`: if the band's range becomes smaller, the quota that live jobs use in the band, by cell and tenant.
    """
    require(principal, Action.PLATFORM_ADMIN)
    row = PriorityBand.objects.filter(name=band.name).first()
    factors = factors_of(row, band.name, price_milli, oversell_milli)
    now = clock.now()
    changed = PriorityBand(id=row.id if row else 0, **band._asdict(), **factors._asdict())
    before = {**row.as_band()._asdict(), **factors_of(row, band.name)._asdict()} if row else {}
    after = {**band._asdict(), **factors._asdict()}
    narrower = row is not None and (band.low > row.low or band.high < row.high)
    return {
        "band": band.name,
        "changes": {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value},
        "cells": [
            _cell(cell, row, changed, now)
            for cell in CellCapacity.objects.order_by("cell").values_list("cell", flat=True)
        ],
        "leaving": _leaving(row) if row is not None and narrower else [],
    }


def _cell(cell: str, row: PriorityBand | None, changed: PriorityBand, now: dt.datetime) -> dict[str, Any]:
    was = sale_capacity(cell, row, now) if row else None
    there = sale_capacity(cell, changed, now)
    together = [(excess, False) for excess in calendar.excesses(there.limit, there.sold, now)]
    own_sold = sold_steps(cell, [changed], now)
    binds = there.own_limit != there.limit  # otherwise the shared limit is reached first
    alone = [(excess, True) for excess in calendar.excesses(there.own_limit, own_sold, now)] if binds else []
    over = sorted([*together, *alone], key=lambda found: found[0].begins_at)
    bands = {changed.id, *(PriorityBand.objects.filter(prod=True).values_list("id", flat=True) if changed.prod else ())}
    held = holdings(cell, bands, now) if over else []
    return {
        "cell": cell,
        "sold": as_mapping(calendar.peak(own_sold, now, None)),
        "sold_with_others": as_mapping(calendar.peak(there.sold, now, None)),
        "sellable_before": as_mapping(_most(was) if was else ZERO),
        "sellable_after": as_mapping(_most(there)),
        "over": [
            _affected(excess, [one for one in held if one.band_id == changed.id or not only_own])
            for excess, only_own in over
        ],
    }


def _most(there: SaleCapacity) -> Vector:
    """Return the limit of the quota that a band may sell, without ports."""
    most = map(min, there.limit, there.own_limit)
    return tuple(value if index in SOLD else 0 for index, value in enumerate(most))


def _affected(excess: Excess, held: Sequence[Holding]) -> dict[str, Any]:
    """Return the period `excess` for JSON. Include the orders and grants of `held` that are in force at any time of the
    period.
    """
    affected = [one for one in held if excess.overlaps(one.begins_at, one.ends_at)]
    return {
        "begins_at": excess.begins_at.isoformat(),
        "ends_at": excess.ends_at.isoformat() if excess.ends_at else None,
        "short": as_mapping(excess.short),
        "orders": sorted({one.order for one in affected if one.order}),
        "grants": sorted({one.grant for one in affected if one.grant and not one.order}),
        "tenants": sorted({one.tenant for one in affected}),
    }


def _leaving(row: PriorityBand) -> list[dict[str, Any]]:
    uses = QuotaUse.objects.filter(band=row).order_by("cell", "tenant__name")
    return [
        {"cell": cell, "tenant": tenant, "in_use": as_mapping(used)}
        for cell, tenant, used in uses.values_list("cell", "tenant__name", "used")
        if any(used)
    ]
