"""The first page of the console. With the URL parameter `cell` it shows one cell, and otherwise all cells together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from portal.console.attention import attention
from portal.console.home import charts
from portal.console.home.figures import FleetFigures, amounts_of_point, read_figures
from portal.console.home.findings import read_findings
from portal.console.home.queues import queue_rows, read_queues
from quota import clock
from quota.models import PriorityBand
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.resources import CPU, RAM
from scheduling.access.selectors import cells_visible
from scheduling.cells.capacity_reports import cells_over_time
from scheduling.history.statistics.reports import Statistics, evictions_lately
from scheduling.models import Cell

# The most cells and messages that the page lists.
MOST_CELLS = 50
MOST_MESSAGES = 30
DAY, WEEK = dt.timedelta(days=1), dt.timedelta(days=7)
# Alarms look at the evictions of the last six hours, as the alert rule does.
LATELY = dt.timedelta(hours=6)


def home(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the first page. `site`: the admin site, which provides the template context of all console pages."""
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
    now = clock.now()
    every = list(cells_visible(principal).filter(study_of__isnull=True).order_by("name"))
    chosen = next((cell for cell in every if cell.name == request.GET.get("cell")), None)
    cells = every if chosen is None else [chosen]
    ids = [cell.id for cell in cells]
    fleet = read_figures(principal, cells, now=now)
    periods = evictions_lately(principal, ids, [now - LATELY, now - DAY, now - WEEK]) if ids else {}
    queues = read_queues(set(ids))
    lately = {cell_id: found[0] for cell_id, found in periods.items()}
    messages = attention(read_findings(cells, fleet, queues, lately, now=now))
    day, week = (_total([found[place] for found in periods.values()], now) for place in (1, 2))
    whole = fleet.of_all()
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Overview"),
        "cells": every[:MOST_CELLS],
        "chosen": chosen,
        "messages_shown": messages[:MOST_MESSAGES],
        "messages_more": len(messages[MOST_MESSAGES:]),
        "whole": whole,
        "meters": charts.meters(whole.amounts),
        "rows": [_cell_row(fleet, cell) for cell in cells[:MOST_CELLS]] if chosen is None and len(cells) > 1 else [],
        "bands": _bands(fleet),
        "queues": queue_rows(queues),
        "queues_more": len(queues[12:]),
        "schedulers": fleet.schedulers[:MOST_CELLS],
        "evictions": charts.eviction_meters([(_("last day"), day), (_("last 7 days"), week)]),
        "eviction_keys": list(enumerate(charts.causes().values(), start=1)),
        "eviction_table": charts.eviction_table(week),
        "reclamation": charts.reclamation(
            cells_over_time(principal, ids, since=now - WEEK, until=now), since=now - WEEK, until=now
        ),
        "redis_away": fleet.redis_away,
    }
    return TemplateResponse(request, "console/home.html", context)


def _cell_row(fleet: FleetFigures, cell: Cell) -> dict[str, Any]:
    figures = fleet.of(cell)
    return {"cell": cell, "counts": figures.counts, "meters": charts.meters(figures.amounts, places=(CPU, RAM))}


def _bands(fleet: FleetFigures) -> list[dict[str, Any]]:
    """Return the bands with meters of their use, the highest priority first. The amounts are those of the last hour
    with a sample. Makes one query.
    """
    if not fleet.bands:
        return []
    order = dict(PriorityBand.objects.values_list("name", "low"))
    whole = next((point for point in fleet.bands if not point.band), None)
    if whole is None:
        return []
    capacity = amounts_of_point(whole, {place: charts.Amounts(whole.capacity[place]) for place in charts.RESOURCES})
    found = sorted((point for point in fleet.bands if point.band), key=lambda point: -order.get(point.band, 0))
    return [
        {
            "name": point.band,
            "at": point.at,
            "meters": charts.meters(amounts_of_point(point, capacity), places=(CPU, RAM)),
        }
        for point in found
        if any(point.limit)
    ]


def _total(parts: Sequence[Statistics], now: dt.datetime) -> Statistics:
    found = Statistics(now)
    for one in parts:
        found.include_all(one)
    return found
