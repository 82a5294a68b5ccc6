"""The quota page: granted, ordered and used quota of the user's tenants, and each cell's free quota per day."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page, page_of
from portal.sigma.reads.market import cells_sold, zone_of
from portal.sigma.reads.order_words import grant_standing
from portal.sigma.reads.orders import orders_visible
from portal.sigma.shop.sizes import LABELS
from quota import clock
from quota.models import HOLDING, PriorityBand
from quota.pricing.arithmetic import UNIT
from quota.pricing.market import calendar_days, is_sold
from quota.selectors import QuotaStanding, grants_visible, standings, tenants_visible
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, SIZE, ZERO, Vector, add

PAGE_SIZE = 50
# Days of the calendar.
DAYS = 28


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A tenant's quota in a band of a cell. `asked`: in open orders; `ends_at`: the next end of a grant."""

    standing: QuotaStanding
    asked: Vector
    ends_at: dt.datetime | None


@dataclass(frozen=True, slots=True)
class BandDay:
    """One day of a band. `percent`: free share of the sellable amount; `level`: its colour, 0 (nothing) to 5."""

    day: dt.date
    left: int
    percent: int
    level: int


@page
def quota(request: HttpRequest, principal: Principal) -> HttpResponse:
    now = clock.now()
    grants = page_of(request, grants_visible(principal).order_by("-id"), PAGE_SIZE)
    cells = cells_sold(principal)
    cell = request.GET.get("cell", "")
    cell = cell if cell in cells else next(iter(cells), "")
    resource = request.GET.get("resource", "")
    resource = resource if resource in UNIT else "cpu"
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


def _rows(principal: Principal, now: dt.datetime) -> list[QuotaRow]:
    """Return all rows, in four queries."""
    asked: dict[tuple[str, str, str], Vector] = {}
    waiting = orders_visible(principal).filter(state__in=HOLDING).order_by()
    for *key, amounts in waiting.values_list("tenant__name", "cell", "band__name", "amounts"):
        asked[tuple(key)] = add(asked.get(tuple(key), ZERO), amounts[:SIZE])  # type: ignore[arg-type, index]
    ends: dict[tuple[str, str, str], dt.datetime] = {}
    ending = grants_visible(principal).filter(starts_at__lte=now, ends_at__gt=now).order_by("-ends_at")
    for *key, ends_at in ending.values_list("tenant__name", "cell", "band__name", "ends_at"):
        ends[tuple(key)] = ends_at  # type: ignore[assignment, index]
    known = {(row.tenant, row.cell, row.band): row for row in standings(principal)}
    for key in asked:  # type: ignore[assignment]
        known.setdefault(key, QuotaStanding(*key, granted=ZERO, used=ZERO))  # type: ignore[arg-type, misc]
    return [QuotaRow(known[key], asked.get(key, ZERO), ends.get(key)) for key in sorted(known)]


def _calendar(
    cell: str, bands: list[PriorityBand], resource: str, now: dt.datetime, zone: ZoneInfo
) -> list[tuple[PriorityBand, list[BandDay]]]:
    """Return the free amount of a resource in each sold band, for `DAYS` days from today."""
    index, first = NAMES.index(resource), now.astimezone(zone).date()

    def days_of(band: PriorityBand) -> list[BandDay]:
        days = calendar_days(cell, band, first, DAYS, zone)
        return [_cell(day.date, day.left[index], day.limit[index]) for day in days]

    return [(band, days_of(band)) for band in bands if is_sold(band)]


def _cell(day: dt.date, left: int, limit: int) -> BandDay:
    percent = max(0, 100 * left // limit) if limit > 0 else 0
    return BandDay(day, max(0, left), percent, min(5, (percent + 19) // 20))
