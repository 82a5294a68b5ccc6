"""The map of a cell: all its machines on one canvas. The script `static/portal/map.js` draws it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from portal.sigma.frame.page import cell_names, page
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cell_named, cells_visible
from scheduling.cell_map.columns import encoded_map, encoded_measurements
from scheduling.cell_map.scopes import scope_of, shown_job

GROUPINGS = {"rack": _("rack"), "power_domain": _("power domain"), "site": _("site"), "platform": _("platform")}
COLOURS = {
    "allocation": _("allocation (limits)"),
    "free": _("free capacity"),
    "reservation": _("reservation"),
    "usage": _("usage"),
    "state": _("state"),
    "band": _("highest priority band"),
}


@page
@require_GET
def chosen(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Redirect to the map of the cell in the URL parameter `cell`, or of the first cell that the user may see. Without
    any cell, redirect to the list of cells, which says how to create one.
    """
    if name := request.GET.get("cell", ""):
        return redirect("sigma:cell-map", cell_named(principal, name).name)
    first = cells_visible(principal).filter(study_of__isnull=True).order_by("name").first()
    return redirect("sigma:cell-map", first.name) if first is not None else redirect("sigma:cells")


@page
@require_GET
def cell_map(request: HttpRequest, principal: Principal, cell: str) -> HttpResponse:
    """Show the map of a cell. URL parameters: `job` (as tenant/name), `machine` (shown first), `group`, `colour`."""
    row = cell_named(principal, cell)
    given, problem, job = request.GET.get("job", "").strip(), None, None
    try:
        job = shown_job(principal, row, given)
    except Rejected as rejected:
        problem = rejected
    group, colour = request.GET.get("group", ""), request.GET.get("colour", "")
    colours = COLOURS | ({"job": _("the job")} if job is not None else {})
    own = scope_of(principal, row).tenants is not None
    columns = [_("Machines"), _("Up"), _("Draining"), _("Down"), _("Tasks"), _("CPU limits"), _("RAM limits")]
    if job is not None:
        columns.append(_("Tasks of the job"))
    context = {
        "cell": row,
        "cells": cell_names(principal),
        "own": own,
        "job": job,
        "given_job": given,
        "groups": GROUPINGS,
        "colours": colours,
        "columns": columns,
        "texts": {"columns": [str(title) for title in columns]} | map_texts(),
        "problem": problem,
        "machine": request.GET.get("machine", "")[:63],
        "group": group if group in GROUPINGS else "rack",
        "resource": request.GET.get("resource", ""),
        "colour": colour if colour in colours else ("job" if job is not None else "allocation"),
    }
    return render(request, "sigma/map.html", context, status=problem.status if problem else 200)


@page
@require_GET
def data(request: HttpRequest, principal: Principal, cell: str) -> HttpResponse:
    """Return the machines of a cell as JSON, as the REST endpoint `map/` does. URL parameters: `job`, and
    `part=measured` for only the usage and the reservations.
    """
    row = cell_named(principal, cell)
    scope = scope_of(principal, row)
    if request.GET.get("part") == "measured":
        content = encoded_measurements(row, scope)
    else:
        content = encoded_map(row, scope, shown_job(principal, row, request.GET.get("job", "")))
    answer = HttpResponse(content, content_type="application/json")
    answer["Cache-Control"] = "private, no-store"
    return answer


def map_texts() -> dict[str, Any]:
    """Return the texts that the script of the map shows. Words in braces are replaced there."""
    return {
        "cores": gettext("{n} cores"),
        "unknown": gettext("not known"),
        "unknownOwn": gettext("no usage of your tasks is known"),
        "otherBand": gettext("no band"),
        "upTo": gettext("up to {high}"),
        "below": gettext("less than {high}"),
        "between": gettext("{low} to {high}"),
        "above": gettext("more than {low}"),
        "atLeast": gettext("{low} or more"),
        "of": gettext("{part} of {whole}"),
        "states": {"up": gettext("up"), "draining": gettext("draining"), "down": gettext("down")},
        "noTasks": gettext("no task"),
        "noOwnTasks": gettext("none of your tasks"),
        "runsJob": gettext("runs tasks of {job}"),
        "otherMachines": gettext("other machines"),
        "noGroup": gettext("not set"),
        "state": gettext("State"),
        "rack": gettext("Rack"),
        "powerDomain": gettext("Power domain"),
        "platform": gettext("Platform"),
        "tasks": gettext("Tasks"),
        "ownTasks": gettext("{n} (yours: {own})"),
        "limits": {"cpu": gettext("CPU limits"), "ram": gettext("RAM limits")},
        "reservations": {"cpu": gettext("CPU reserved"), "ram": gettext("RAM reserved")},
        "ownReservations": {"cpu": gettext("CPU reserved by your tasks"), "ram": gettext("RAM reserved by your tasks")},
        "usages": {"cpu": gettext("CPU used"), "ram": gettext("RAM used")},
        "ownUsages": {"cpu": gettext("CPU used by your tasks"), "ram": gettext("RAM used by your tasks")},
        "band": gettext("Highest band"),
        "ownBand": gettext("Highest band of your tasks"),
        "jobTasks": gettext("Tasks of {job}"),
        "noMatch": gettext("No machine has {text} in its name."),
        "match": gettext("Match {n} of {all}: {name}. Press Enter on the map to open its page."),
        "ended": gettext("The map can no longer be read. Reload the page."),
        "failed": gettext("The map could not be read. The page tries again."),
    }
