"""The quota page: the granted, ordered and used quota of the user's tenants, and the quota that a cell has left."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Min
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import given_in, page, page_of
from portal.sigma.reads.market import cells_sold, zone_of
from portal.sigma.reads.order_state_texts import grant_standing
from portal.sigma.reads.orders import orders_visible
from portal.sigma.shop.resource_labels import LABELS
from quota import clock
from quota.models import HOLDING, PriorityBand
from quota.pricing.capacity_for_sale import CalendarDay, calendar_days, is_sold
from quota.pricing.price_formula import UNIT
from quota.request_cache import reads_once
from quota.selectors import QuotaStanding, grants_visible, standings, tenants_visible
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, SIZE, ZERO, Vector, add

PAGE_SIZE = 50
# The number of days that the calendar shows.
DAYS = 28


@page
def quota(request: HttpRequest, principal: Principal) -> HttpResponse:
    now = clock.now()
    grants = page_of(request, grants_visible(principal).order_by("-id"), PAGE_SIZE)
    cells = cells_sold(principal)
    chosen = given_in(request.GET, "cell", "resource")
    cell = chosen["cell"] if chosen["cell"] in cells else next(iter(cells), "")
    resource = chosen["resource"] if chosen["resource"] in UNIT else "cpu"
    tenant = tenants_visible(principal).order_by("name").first()
    zone = zone_of(tenant) if tenant is not None else ZoneInfo("UTC")
    bands = list(PriorityBand.objects.all())
    context = {
        "rows": _rows(principal, now)[:200],
        "page_obj": grants,
        "grants": [(grant, grant_standing(grant, now)) for grant in grants],
        "bands": bands,
        "now": now,
        "cells": cells,
        "cell": cell,
        "labels": LABELS,
        "resource": resource,
        "zone": zone.key,
        "calendar": _calendar(cell, bands, resource, now, zone) if cell else [],
    }
    return render(request, "sigma/quota.html", context)


def _rows(principal: Principal, now: dt.datetime) -> list[dict[str, Any]]:
    """Return one row for each tenant, cell and band where the caller may see quota. Makes four queries.

    `standing`: the granted and the used quota. `asked`: the sum of the amounts of pending and approved orders.
    `ends_at`: the time when the first of the current grants ends, or None if no current grant ends.
    """
    place = ("tenant__name", "cell", "band__name")
    asked: dict[Any, Vector] = defaultdict(lambda: ZERO)
    waiting = orders_visible(principal).filter(state__in=HOLDING).order_by()
    for *key, amounts in waiting.values_list(*place, "amounts"):
        asked[tuple(key)] = add(asked[tuple(key)], amounts[:SIZE])
    grants = grants_visible(principal).filter(starts_at__lte=now, ends_at__gt=now).order_by(*place)
    ends = {tuple(key): end for *key, end in grants.values_list(*place).annotate(Min("ends_at"))}
    known: dict[Any, QuotaStanding] = {
        (tenant, cell, band): QuotaStanding(tenant, cell, band, ZERO, ZERO) for tenant, cell, band in asked
    }
    known |= {(row.tenant, row.cell, row.band): row for row in standings(principal)}
    return [{"standing": known[key], "asked": asked[key], "ends_at": ends.get(key)} for key in sorted(known)]


@reads_once()
def _calendar(
    cell: str, bands: list[PriorityBand], resource: str, now: dt.datetime, zone: ZoneInfo
) -> list[tuple[PriorityBand, list[dict[str, Any]]]]:
    """Return for each sold band the free amount of a resource on each of the next `DAYS` days. Each day is a dict.

    `left`: the free amount. `percent`: the free amount in percent of the amount that can be sold. `level`: the colour
    of the day, from 0 (nothing is free) to 5.
    """
    index, first = NAMES.index(resource), now.astimezone(zone).date()

    def shown(day: CalendarDay) -> dict[str, Any]:
        left, limit = max(0, day.left[index]), day.limit[index]
        percent = 100 * left // limit if limit > 0 else 0
        return {"day": day.date, "left": left, "percent": percent, "level": min(5, (percent + 19) // 20)}

    sold = [band for band in bands if is_sold(band)]
    return [(band, list(map(shown, calendar_days(cell, band, first, DAYS, zone)))) for band in sold]
