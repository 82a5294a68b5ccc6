"""The console page with the statistics that the journal contains: evictions per task-week (Figure 3), times from
submission to running, delays of the scheduler, and pending hours by reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from unfold.widgets import SELECT_CLASSES

from portal import plots
from portal.console.capacity import chosen_cell
from portal.plot_period import DAYS, ReportPeriod, period_of
from quota import clock
from quota.tenancy.authentication import principal_of_user
from scheduling.history.statistics.reports import Percentiles, Statistics, statistics, statistics_over_time
from scheduling.history.statistics.tallies import HOUR_S, Figure

_NONE = "–"
# The largest reasons that get a colour of their own in the chart.
_REASONS = 6


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page of statistics. `site`: the admin site, which provides the template context of all pages."""
    cell, cells = chosen_cell(request)
    period = period_of(request.GET, clock.now())
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Statistics"),
        "cell": cell,
        "cells": cells,
        "days": DAYS,
        "period": period,
        "field_classes": " ".join(SELECT_CLASSES),
    }
    if cell is not None:
        principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
        whole = statistics(principal, cell, since=period.since, until=period.until)
        points = statistics_over_time(principal, cell, since=period.since, until=period.until, daily=not period.hourly)
        context |= {
            "plots": _plots(points, whole, period),
            "evictions": _evictions(whole),
            "times": _times([*whole.starts(), *whole.delays()], _names()),
            "packages": _times(whole.packages(), {}) if whole.packages() else None,
        }
    return TemplateResponse(request, "console/statistics.html", context)


def _names() -> dict[str, str]:
    return {
        "queue": _("waiting for a machine"),
        "install": _("installing packages"),
        "start": _("starting the task"),
        "total": _("from submission to running"),
        "first": _("scheduler delay before the first placement"),
        "again": _("scheduler delay before later placements"),
    }


def _priority(prod: bool) -> str:
    return _("prod") if prod else _("non-prod")


def _evictions(whole: Statistics) -> dict[str, Any]:
    rows = [[_priority(one.prod), one.cause, str(one.evictions), _rate(one.per_task_week)] for one in whole.evictions()]
    return {"headers": [_("priority"), _("cause"), _("evictions"), _("evictions per task-week")], "rows": rows}


def _times(found: Iterable[Percentiles], names: dict[str, str]) -> dict[str, Any]:
    rows = [
        [
            _priority(one.prod),
            names.get(one.what, one.what),
            str(one.number),
            *(_seconds(value) for value in (one.mean, one.p50, one.p90, one.p99)),
        ]
        for one in found
    ]
    headers = [
        _("priority"),
        _("measured time"),
        _("tasks"),
        _("mean"),
        _("median"),
        _("90th percentile"),
        _("99th percentile"),
    ]
    return {"headers": headers, "rows": rows}


def _plots(points: Sequence[Statistics], whole: Statistics, period: ReportPeriod) -> list[plots.Plot]:
    times = [point.begin for point in points]
    shared: dict[str, Any] = {"since": period.since, "until": period.until, "step": period.step}

    def timed(title: str, figure: Figure, labels: dict[str, str], *, prod: bool) -> plots.Plot:
        series = [
            plots.Series(name, [_milli(point.percentile(figure, label, 0.9, prod=prod)) for point in points])
            for label, name in labels.items()
        ]
        return plots.lines(title, times, series, format_value=lambda ms: _seconds(ms / 1000), **shared)

    rates = [
        plots.Series(_priority(prod), [_milli(point.eviction_rate(prod=prod)) for point in points])
        for prod in (True, False)
    ]
    names = _names()
    parts = {part: names[part] for part in ("queue", "install", "start", "total")}
    delays = {label: names[label] for label in ("first", "again")}
    return [
        plots.lines(
            _("Evictions per task-week"), times, rates, format_value=lambda milli: _rate(milli / 1000), **shared
        ),
        timed(_("Time from submission to running of prod tasks, 90th percentile"), Figure.START, parts, prod=True),
        timed(_("Time from submission to running of non-prod tasks, 90th percentile"), Figure.START, parts, prod=False),
        timed(_("Scheduler delay of prod tasks, 90th percentile"), Figure.DELAY, delays, prod=True),
        timed(_("Scheduler delay of non-prod tasks, 90th percentile"), Figure.DELAY, delays, prod=False),
        plots.bars(
            _("Pending hours by reason, summed over tasks"),
            times,
            _pending(points, whole),
            format_value=lambda seconds: f"{seconds / HOUR_S:.3g} h",
            label=lambda at: at.strftime("%F %H:%M" if period.hourly else "%F"),
            **shared,
        ),
    ]


def _pending(points: Sequence[Statistics], whole: Statistics) -> list[plots.Series]:
    """Return plot data: for each of the most frequent reasons why tasks were pending, one series of values over time. A
    value is the pending time during one step of the plot, in seconds, summed over all tasks.
    """
    hours: dict[str, float] = {}
    for one in whole.pending():
        hours[one.reason] = hours.get(one.reason, 0.0) + one.hours
    largest = sorted(hours, key=lambda reason: -hours[reason])[:_REASONS]
    of = [[(one.reason, one.hours) for one in point.pending()] for point in points]

    def sums(reason: str) -> list[int | None]:
        return [round(HOUR_S * sum(hours for name, hours in there if name == reason)) for there in of]

    return [plots.Series(reason, sums(reason)) for reason in largest]


def _milli(value: float | None) -> int | None:
    return None if value is None else round(1000 * value)


def _rate(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3g}"


def _seconds(value: float | None) -> str:
    if value is None:
        return _NONE
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.3g} min" if value < 7200 else f"{value / HOUR_S:.3g} h"
