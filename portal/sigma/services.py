"""The pages of services: the list, one service with its jobs and tracks, and a page that shows the effect of a stop, a
start or a restart before it is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET, require_POST

from naming.table.names import ServiceName, is_service
from portal.parts.empty import Empty
from portal.parts.filters import Filters, choice
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import (
    cell_names,
    given_in,
    page,
    page_of,
    paging_of,
    problem_kept,
    rendered,
    tenants_of,
    whole_number,
)
from portal.sigma.reads.names import service_over
from quota.vocabulary.errors import NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import cell_named
from scheduling.access.tenant_permission import require_tenant
from scheduling.journal import journal
from scheduling.services import restarts, selectors, starts, stops, weights
from scheduling.services.outcomes import ServiceChange
from scheduling.services.weights import traffic_of

PAGE_SIZE = 50
# The list ends after so many services. The filter by tenant finds others.
MOST_LISTED = 1_000
# A preview counts the tasks that a stop ends. The form then confirms this number.
_ANY_NUMBER = 2**31 - 1


@page
@require_GET
def service_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the services of the chosen cell, or of the first one that the user may see, by tenant and name."""
    chosen, cells = given_in(request.GET, "cell", "tenant"), cell_names(principal)
    first = cells[0] if cells else ""
    rows: list[selectors.ServiceRow] = []
    if found := chosen["cell"] or first:
        of_cell = cell_named(principal, found)
        rows = selectors.services_visible(principal, of_cell, tenant=chosen["tenant"], most=MOST_LISTED)
    part = page_of(request, rows, PAGE_SIZE)  # type: ignore[arg-type]  # it only counts and slices
    empty = Empty(
        _("No service was found in this cell."),
        _("A service is all jobs of a tenant with the same label “service”. Give your jobs this label, as in:"),
        command="borgctl apply examples/shop",
    )
    columns = (
        Column(_("Service")),
        Column(_("State")),
        Column(_("Jobs"), number=True),
        Column(_("Stopped jobs"), number=True),
        Column(_("Running"), number=True),
        Column(_("Placed"), number=True),
    )
    shown = [{"service": row, "cell": found} for row in part]
    table = Table(_("Services"), columns, shown, empty, paging=paging_of(part), row_template="sigma/rows/service.html")
    filters = Filters(
        (
            choice("cell", _("Cell"), found, cells, default=first),
            choice("tenant", _("Tenant"), chosen["tenant"], tenants_of(principal), everything=_("all tenants")),
        ),
        _("Filter"),
    )
    return render(
        request,
        "sigma/services.html",
        {"table": table, "filters": filters, "most": MOST_LISTED if len(rows) == MOST_LISTED else 0},
    )


@page
@require_GET
def service(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    """Show a service: its jobs with their states, its stopped jobs, and its names."""
    row = cell_named(principal, cell)
    revision = journal.newest(row.id)  # before the rows, so that the live page receives every later change
    found = selectors.service_named(principal, row, tenant, service)
    # Only live jobs have names. An alloc set has none, and neither has a cell that is deleted or a copy.
    jobs = sorted((job for job in found.jobs if job.kind == "job"), key=lambda job: job.id)
    named = jobs and is_service(service) and row.study_of is None and row.deleted_at is None
    context = {
        "found": found,
        "traffic": traffic_of(found),
        "service": service_over(ServiceName(cell, tenant, service), jobs) if named else None,
        "cell": row,
        "revision": revision,
        "may_write": may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell),
    }
    return render(request, "sigma/service.html", context)


@page
def stop(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    reason = request.POST.get("reason", "").strip()[:300]
    confirmed = whole_number(request.POST.get("confirm", ""))

    def act(*, dry_run: bool, **given: Any) -> ServiceChange:
        confirm = _ANY_NUMBER if dry_run else confirmed
        return stops.service_stop(**given, reason=reason, confirm=confirm, dry_run=dry_run)

    return _confirmed(request, principal, act, "stop", cell, tenant, service)


@page
def start(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    return _confirmed(request, principal, starts.service_start, "start", cell, tenant, service)


@page
def restart(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    return _confirmed(request, principal, restarts.service_restart, "restart", cell, tenant, service)


@page
@require_POST
def forget(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    row = cell_named(principal, cell)
    number = stops.service_forget(principal=principal, cell=row, tenant=tenant, name=service)
    text = ngettext("%d stopped job was forgotten.", "%d stopped jobs were forgotten.", number) % number
    messages.success(request, text)
    return _back(principal, cell, tenant, service)


@page
@require_POST
def weigh(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    given = {
        field.removeprefix("weight-")[:255]: text.strip()
        for field, text in request.POST.items()
        if field.startswith("weight-") and isinstance(text, str)
    }
    found: dict[str, int] = {}
    for track, text in given.items():
        if text:  # a track without a weight gets 0
            weight = whole_number(text)
            if weight is None:
                raise invalid(f"weights.{track}", _("the weight is not a whole number; give one from 0 to 1000"))
            found[track] = weight
    row = cell_named(principal, cell)
    weights.service_weigh(principal=principal, cell=row, tenant=tenant, name=service, weights=found)
    messages.success(request, _("The weights were set.") if found else _("The weights were removed."))
    return _back(principal, cell, tenant, service)


@page
@require_POST
def switch(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    # A text that is not a number is rejected like 0.
    step, every_s = (whole_number(request.POST.get(field, "")) or 0 for field in ("step", "every_s"))
    weights.service_switch(
        principal=principal,
        cell=cell_named(principal, cell),
        tenant=tenant,
        name=service,
        to=request.POST.get("to", "")[:255],
        options=weights.SwitchOptions(step=step, every_s=every_s),
    )
    messages.success(request, _("The switch has begun. This page shows its steps."))
    return _back(principal, cell, tenant, service)


def _confirmed(
    request: HttpRequest,
    principal: Principal,
    act: Callable[..., ServiceChange],
    verb: str,
    cell: str,
    tenant: str,
    service: str,
) -> HttpResponse:
    """Show the effect of a verb (GET), or call it (POST). If some jobs could not be changed, the page lists them.

    The form names the jobs that the page shows and that the next click changes, and how many tasks this click stops.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell)
    row = cell_named(principal, cell)
    place = {"principal": principal, "cell": row, "tenant": tenant, "name": service}
    context: dict[str, Any] = {"verb": verb, "cell": row, "tenant": tenant, "service": service}
    rest: list[str] = []
    if request.method == "POST":
        named = [name[:64] for name in request.POST.get("jobs", "").split(",") if name]
        with problem_kept(context):
            done = act(**place, jobs=named, dry_run=False)
            if not done.problems:
                _say_done(request, verb, done)
                return _back(principal, cell, tenant, service)
            context["done"] = done
            rest = [one.job for one in done.problems]
    # The page shows the outcome of a POST also if no next click is possible.
    with suppress(Rejected) if request.method == "POST" else nullcontext():
        following = act(**place, jobs=rest, dry_run=True)
        context |= _form(following, context.get("problem"))
        if "done" not in context:
            context |= {"done": following, "rehearsed": True}
    return rendered(request, "sigma/service_action.html", context)


def _form(following: ServiceChange, problem: Rejected | None) -> dict[str, Any]:
    """Return the names of the jobs that the next click changes, and the number of tasks that it confirms. `following`:
    the effect of the next click. `problem`: why this one was rejected.
    """
    asked = problem.figures["tasks"] if problem is not None and problem.code == "confirm" else 0
    names = ",".join(one.job for one in (*following.changed, *following.problems))
    return {"names": names, "running": max(following.tasks, asked)}


def _say_done(request: HttpRequest, verb: str, done: ServiceChange) -> None:
    number = len(done.changed)
    if not number:
        messages.info(request, _("Nothing was changed, because no job of the service needs it."))
        return
    texts = {
        "stop": ngettext("%d job was stopped.", "%d jobs were stopped.", number),
        "start": ngettext("%d job was started.", "%d jobs were started.", number),
        "restart": ngettext(
            "The tasks of %d job are being restarted.", "The tasks of %d jobs are being restarted.", number
        ),
    }
    messages.success(request, texts[verb] % number)


def _back(principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    """Return to the page of the service, or to the list if the service has no job any more."""
    try:
        selectors.service_named(principal, cell_named(principal, cell), tenant, service)
    except NotFound:
        return redirect("sigma:services")
    return redirect("sigma:service", cell=cell, tenant=tenant, service=service)
