"""The page that shows how much quota a tenant owned, requested, reserved and used over time, and its CSV file."""

from __future__ import annotations

import datetime as dt
import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from portal import plots
from portal.plot_period import DAYS, ReportPeriod, period_of
from portal.sigma.frame.page import chosen_tenant, page, tenants_of
from quota import clock
from quota.billing.planning import Planned, hours_of
from quota.csv_files import csv_answer
from quota.models import PriorityBand, Tenant
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import AXIS, CPU, NAMES, PORTS, describe

RESOURCES = [name for place, name in enumerate(NAMES) if place != PORTS]
FREE = "free"
# The fewest finished hours from which the page estimates unneeded quota.
LEAST_HOURS = 6


@dataclass(frozen=True, slots=True)
class PlanningFilter:
    """The filters that the user chose. `places`: the possible pairs of a cell and a band. `resource`: the index of the
    chosen resource in the list of resources.
    """

    tenant: Tenant | None
    places: list[tuple[str, str]]
    cell: str
    band: str
    resource: int
    period: ReportPeriod

    @property
    def place(self) -> str:
        return f"{self.cell}/{self.band or FREE}" if self.cell else ""


@page
def planning(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen, points = _read(request, principal)
    context = {
        "chosen": chosen,
        "tenants": tenants_of(principal),
        "place_names": [f"{cell}/{band or FREE}" for cell, band in chosen.places],
        "resources": RESOURCES,
        "resource": NAMES[chosen.resource],
        "days": DAYS,
    }
    if chosen.cell:
        hours = sum(point.seconds for point in points) // 3600
        context |= {
            "plots": _plots(points, chosen, spare=hours >= LEAST_HOURS),
            "figures": _figures(points, chosen.resource),
            "hours": hours,
            "least_hours": LEAST_HOURS,
        }
    return render(request, "sigma/planning.html", context)


@page
def planning_csv(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen, points = _read(request, principal)
    name = f"planning-{chosen.tenant or 'none'}-{chosen.cell}-{chosen.band or FREE}.csv"
    return csv_answer(name, _table(points, chosen))


def _read(request: HttpRequest, principal: Principal) -> tuple[PlanningFilter, list[Planned]]:
    """Return the filters that the user chose, and the points of the chosen place, oldest first."""
    tenant = chosen_tenant(request, principal)
    period = period_of(request.GET, clock.now())
    if tenant is None:
        return _chosen(request, None, [], period), []
    with hours_of(principal, tenant, since=period.since, until=period.until) as hours:
        chosen = _chosen(request, tenant, hours.places(), period)
        if not chosen.cell:
            return chosen, []
        band = PriorityBand.objects.filter(name=chosen.band).first()
        return chosen, hours.planned(chosen.cell, band, step=period.step)


def _chosen(
    request: HttpRequest, tenant: Tenant | None, places: list[tuple[str, str]], period: ReportPeriod
) -> PlanningFilter:
    cell, _slash, band = request.GET.get("place", "").partition("/")
    if (cell, "" if band == FREE else band) not in places:
        cell, band = places[0] if places else ("", "")
    resource = request.GET.get("resource", "")
    return PlanningFilter(
        tenant,
        places,
        cell,
        "" if band == FREE else band,
        NAMES.index(resource) if resource in RESOURCES else CPU,
        period,
    )


def _plots(points: list[Planned], chosen: PlanningFilter, *, spare: bool) -> list[plots.Plot]:
    """Return the plots of owned, requested, reserved and used quota. `spare`: whether another plot shows the quota that
    is owned but not requested, requested but not reserved, or reserved but not used.
    """
    period = chosen.period

    def drawn(title: str, series: dict[str, list[int]]) -> plots.Plot:
        return plots.lines(
            title,
            [point.at for point in points],
            [plots.Series(name, values) for name, values in series.items()],
            since=period.since,
            until=period.until,
            step=period.step,
            format_value=lambda value: describe(chosen.resource, value),
        )

    series = _series(points, chosen.resource)
    charts = [drawn(_("Quota owned, requested, reserved and used"), series)]
    if spare:
        names = (_("owned, but not requested"), _("requested, but not reserved"), _("reserved, but not used"))
        gaps = {
            name: [max(0, upper - lower) for upper, lower in zip(*two, strict=True)]
            for name, two in zip(names, itertools.pairwise(series.values()), strict=True)
        }
        charts.append(drawn(_("Quota that could be given back"), gaps))
    return charts


def _series(points: list[Planned], place: int) -> dict[str, list[int]]:
    """Return the values over time of each line in the plot. `place`: the index of the plotted resource."""
    return {
        _("quota owned"): [point.owned[place] for point in points],
        _("requested by jobs"): [point.asked[place] for point in points],
        _("reserved for tasks"): [point.reserved[place] for point in points],
        _("used by tasks"): [point.used[place] for point in points],
    }


def _figures(points: list[Planned], place: int) -> list[tuple[str, str, str]]:
    """Return the name, mean and maximum (texts) of each line in the plot. `place`: index of the plotted resource."""
    seconds = [point.seconds for point in points]
    found = []
    for name, values in _series(points, place).items():
        mean = sum(map(operator.mul, values, seconds)) // (sum(seconds) or 1)
        found.append((name, describe(place, mean), describe(place, max(values, default=0))))
    return found


def _table(points: list[Planned], chosen: PlanningFilter) -> Iterator[list[object]]:
    yield ["time", "tenant", "cell", "band", "resource", "unit", "owned", "asked", "reserved", "used"]
    for point in points:
        at = point.at.astimezone(dt.UTC).isoformat()
        for place, resource in enumerate(AXIS):
            if place != PORTS:
                amounts = (vector[place] for vector in (point.owned, point.asked, point.reserved, point.used))
                yield [at, str(chosen.tenant), chosen.cell, chosen.band, resource.name, resource.unit, *amounts]
