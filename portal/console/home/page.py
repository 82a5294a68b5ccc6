"""The first page of the console. With the URL parameter `cell` it shows one cell, and otherwise all cells together."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import structlog
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from portal.console.attention import Attention, attention
from portal.console.home import charts
from portal.console.home.figures import RESOURCES, Amounts, FleetFigures, amounts_of_point, read_figures
from portal.console.home.findings import read_findings
from portal.console.home.queues import MOST as MOST_QUEUES
from portal.console.home.queues import QueueRow, queue_rows, read_queues
from quota import clock
from quota.models import PriorityBand
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import CPU, RAM
from scheduling.access.selectors import cells_visible
from scheduling.cells.capacity_reports import Point, cells_over_time
from scheduling.history.statistics.reports import Statistics, evictions_lately
from scheduling.master.queue_health import PendingQueue
from scheduling.models import Cell

log = structlog.get_logger(__name__)
T = TypeVar("T")

# The most cells and messages that the page lists.
MOST_CELLS = 50
MOST_MESSAGES = 30
DAY, WEEK = dt.timedelta(days=1), dt.timedelta(days=7)
# Alarms look at the evictions of the last six hours, as the alert rule does.
LATELY = dt.timedelta(hours=6)


class Sections:
    """Reads the sections of the page. If PostgreSQL rejects or stops a query, only its section is missing. `unread`:
    the titles of the sections that are missing.
    """

    def __init__(self) -> None:
        self.unread: list[str] = []

    def read(self, title: str, reads: Callable[[], T], otherwise: T) -> T:
        """Return the result of `reads()`, or `otherwise` if the database has no answer."""
        try:
            return reads()
        except DatabaseError as error:
            log.warning(
                "the overview of the console lacks a section, because the database did not answer",
                section=title,
                error=str(error),
            )
            self.unread.append(title)
            return otherwise


def home(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the first page. If the cell in the URL does not exist, its status is 404 and it shows all cells. `site`:
    the admin site, which provides the template context of all console pages.
    """
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
    now, name = clock.now(), request.GET.get("cell", "")
    every = list(cells_visible(principal).filter(study_of__isnull=True).order_by("name"))
    chosen = next((cell for cell in every if cell.name == name), None)
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Overview"),
        "cells": every[:MOST_CELLS],
        "more_cells": len(every[MOST_CELLS:]),
        "chosen": chosen,
        "unknown": name[:63] if name and chosen is None else "",
        "now": now,
        **_figures(principal, every if chosen is None else [chosen], now),
    }
    return TemplateResponse(request, "console/home.html", context, status=404 if context["unknown"] else 200)


def _figures(principal: Principal, cells: Sequence[Cell], now: dt.datetime) -> dict[str, Any]:
    """Return what the template shows of these cells together."""
    ids, sections = [cell.id for cell in cells], Sections()
    none: dict[int, list[Statistics]] = {}
    no_queues: list[PendingQueue] = []
    no_messages: list[Attention] = []
    no_rows: list[QueueRow] = []
    no_points: list[Point] = []
    fleet = read_figures(principal, cells, now=now)
    starts = [now - LATELY, now - DAY, now - WEEK]
    periods = sections.read(_("evictions"), lambda: evictions_lately(principal, ids, starts), none)
    queues = sections.read(_("queue"), lambda: read_queues(ids), no_queues)
    lately = {cell_id: found[0] for cell_id, found in periods.items()}
    messages = sections.read(
        _("alarms"), lambda: attention(read_findings(cells, fleet, queues, lately, now=now)), no_messages
    )
    day, week = (_total([found[place] for found in periods.values()], now) for place in (1, 2))
    points = sections.read(
        _("reclamation"), lambda: cells_over_time(principal, ids, since=now - WEEK, until=now), no_points
    )
    whole = fleet.of_all()
    return {
        "messages_shown": messages[:MOST_MESSAGES],
        "messages_more": len(messages[MOST_MESSAGES:]),
        "whole": whole,
        "meters": charts.meters(whole.amounts),
        "rows": [_cell_row(fleet, cell) for cell in cells[:MOST_CELLS]] if len(cells) > 1 else [],
        "bands": _bands(fleet),
        "queues": sections.read(_("queue"), lambda: queue_rows(queues), no_rows),
        "queues_more": len(queues[MOST_QUEUES:]),
        "schedulers": fleet.schedulers[:MOST_CELLS],
        "evictions": charts.eviction_meters([(_("last day"), day), (_("last 7 days"), week)]),
        "eviction_keys": list(enumerate(charts.causes().values(), start=1)),
        "eviction_table": charts.eviction_table(week),
        "reclamation": charts.reclamation(points, since=now - WEEK, until=now),
        "redis_away": fleet.redis_away,
        "unread": sorted(set(sections.unread)),
    }


def _cell_row(fleet: FleetFigures, cell: Cell) -> dict[str, Any]:
    figures = fleet.of(cell)
    return {"cell": cell, "counts": figures.counts, "meters": charts.meters(figures.amounts, places=(CPU, RAM))}


def _bands(fleet: FleetFigures) -> list[dict[str, Any]]:
    """Return the bands with meters of their use, the highest priority first. The amounts are those of the last hour
    with a sample. Makes one query.
    """
    whole = next((point for point in fleet.bands if not point.band), None)
    if whole is None:
        return []
    order = dict(PriorityBand.objects.values_list("name", "low"))
    capacity = {place: Amounts(whole.capacity[place]) for place in RESOURCES}
    found = sorted((point for point in fleet.bands if point.band), key=lambda point: -order.get(point.band, 0))
    return [
        {"name": point.band, "meters": charts.meters(amounts_of_point(point, capacity), places=(CPU, RAM))}
        for point in found
        if any(point.limit)
    ]


def _total(parts: Sequence[Statistics], now: dt.datetime) -> Statistics:
    found = Statistics(now)
    for one in parts:
        found.include_all(one)
    return found
