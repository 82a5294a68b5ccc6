"""The console page for capacity planning. The page shows how much capacity is sold, reserved, used and stranded (free,
but no typical task can use it), and when the quota will be sold out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from unfold.widgets import SELECT_CLASSES

from portal import plots
from portal.plot_period import DAYS, ReportPeriod, period_of
from quota import clock
from quota.csv_files import csv_answer
from quota.models import CellCapacity, PriorityBand
from quota.pricing.capacity_for_sale import is_sold, sale_capacity
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.resources import CPU, NAMES, PORTS, describe
from scheduling.access.selectors import cells_visible
from scheduling.cells.capacity_reports import Point, ReportStep, bands_sampled, history, table
from scheduling.models import Cell

RESOURCES = [name for place, name in enumerate(NAMES) if place != PORTS]
# How far the forecasts look ahead: the longest time in advance that users can buy quota.
AHEAD = dt.timedelta(days=366)


@dataclass(frozen=True, slots=True)
class CapacityFilter:
    """The choices of the user on the capacity page. `cells`, `bands`: the possible values. `band`: the chosen band; ""
    means the whole cell. `resource`: the position of the chosen resource in the list of resources.
    """

    cell: Cell | None
    cells: list[str]
    bands: list[str]
    band: str
    resource: int
    period: ReportPeriod


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the capacity page. `site`: the admin site, which provides the template context of all console pages."""
    chosen = _chosen(request)
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Capacity planning"),
        "chosen": chosen,
        "resources": RESOURCES,
        "resource": NAMES[chosen.resource],
        "days": DAYS,
        "field_classes": " ".join(SELECT_CLASSES),
    }
    if chosen.cell is not None:
        points = _points(request, chosen, chosen.band)
        context |= {
            "plots": _plots(points, chosen),
            "newest": _newest(request, chosen),
            "forecasts": _forecasts(chosen.cell.name, chosen.resource),
        }
    return TemplateResponse(request, "console/capacity.html", context)


def download(request: HttpRequest) -> HttpResponse:
    """Return a CSV file with the figures of every band and resource in the chosen period."""
    chosen = _chosen(request)
    if chosen.cell is None:
        return csv_answer("capacity.csv", table([], cell=""))
    points = _points(request, chosen, None)
    return csv_answer(f"capacity-{chosen.cell.name}.csv", table(points, cell=chosen.cell.name))


def _forecasts(cell: str, resource: int) -> list[dict[str, Any]]:
    """For each band that is sold, return how much of a resource is sold, and when the resource will be sold out.

    `limit`: the amount that can be sold. `least`: the lowest amount that is free within a year. `sold_out_at`: the
    first time within a year at which nothing is free, or None. `already`: whether nothing is free now.
    """
    if not CellCapacity.objects.filter(cell=cell).exists():
        return []
    now = clock.now()
    found = []
    for band in filter(is_sold, PriorityBand.objects.order_by("-low")):
        there = sale_capacity(cell, band, now, now + AHEAD)
        steps = [(step.at, step.level[resource]) for step in there.over_time(now)]
        limit = min(there.limit[resource], there.own_limit[resource])
        left = steps[0][1]
        found.append(
            {
                "band": band.name,
                "limit": describe(resource, limit),
                "sold": describe(resource, limit - left),
                "share": f"{(limit - left) / limit:.0%}" if limit else "–",
                "least": describe(resource, max(0, min(level for _at, level in steps))),
                "sold_out_at": next((at for at, level in steps if level <= 0), None) if limit else None,
                "already": left <= 0,
            }
        )
    return found


def chosen_cell(request: HttpRequest) -> tuple[Cell | None, list[str]]:
    """Return the chosen cell, and the names of all cells that the user may see. The chosen cell is the cell that the
    request names, or else the first cell that the user may see.
    """
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
    cells = {cell.name: cell for cell in cells_visible(principal).order_by("name")}
    return cells.get(request.GET.get("cell", "")) or next(iter(cells.values()), None), list(cells)


def _chosen(request: HttpRequest) -> CapacityFilter:
    """Return what the user chose on the capacity page. An unknown value in the request is replaced by a default."""
    cell, cells = chosen_cell(request)
    bands = bands_sampled(cell) if cell is not None else []
    band, resource = request.GET.get("band", ""), request.GET.get("resource", "")
    return CapacityFilter(
        cell,
        cells,
        bands,
        band if band in bands else "",
        NAMES.index(resource) if resource in RESOURCES else CPU,
        period_of(request.GET, clock.now()),
    )


def _points(request: HttpRequest, chosen: CapacityFilter, band: str | None) -> list[Point]:
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
    assert chosen.cell is not None
    step = ReportStep.HOUR if chosen.period.hourly else ReportStep.DAY
    period = chosen.period
    return history(principal, chosen.cell, since=period.since, until=period.until, step=step, band=band)


def _figures() -> dict[str, str]:
    """Return the labels of the figures that the capacity page shows for a band, such as the used amount, by figure
    name.
    """
    return {
        "sold": _("quota sold"),
        "granted": _("quota granted"),
        "asked": _("quota requested"),
        "limit": _("limits of tasks"),
        "reserved": _("reserved for tasks"),
        "used": _("used by tasks"),
        "unused": _("in limits, but not reserved"),
        "idle": _("reserved, but not used"),
    }


def _newest(request: HttpRequest, chosen: CapacityFilter) -> dict[str, Any]:
    """Return a table of the newest capacity figures (sold, reserved, used and so on). It has a row for the whole cell
    and a row for each band.
    """
    place, figures = chosen.resource, _figures()
    last: dict[str, Point] = {point.band: point for point in _points(request, chosen, None)}
    return {
        "headers": [_("band"), *figures.values()],
        "rows": [
            [name or _("whole cell"), *(describe(place, last[name].value(what, place)) for what in figures)]
            for name in sorted(last)  # the name of the whole cell is "", so its row is the first
        ],
    }


def _plots(points: Sequence[Point], chosen: CapacityFilter) -> list[plots.Plot]:
    names = {**_figures(), "capacity": _("capacity of the cell"), "stranded": _("stranded capacity")}

    def drawn(title: str, *figures: str) -> plots.Plot:
        return plots.lines(
            title,
            [point.at for point in points],
            [plots.Series(names[what], [point.value(what, chosen.resource) for point in points]) for what in figures],
            since=chosen.period.since,
            until=chosen.period.until,
            step=chosen.period.step,
            format_value=lambda value: describe(chosen.resource, value),
        )

    whole = chosen.band == ""
    capacity = ["capacity"] if whole else []
    stranded = _("Stranded capacity: free, but not enough on any machine for a typical task")
    return [
        drawn(_("Quota sold, granted and requested"), "sold", "granted", "asked", *capacity),
        drawn(_("Limits, reservations and usage of running tasks"), "limit", "reserved", "used", *capacity),
        drawn(_("Reclaimable capacity"), "unused", "idle"),
        *([drawn(stranded, "stranded")] if whole else []),
    ]
