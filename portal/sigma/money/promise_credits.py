"""The pages of credits: what a tenant gets back because a cell broke its promise, with the evidence."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from portal.parts.empty import Empty
from portal.parts.tables import Cell, Column, Table
from portal.sigma.frame.page import chosen_tenant, given_in, page, page_of, problem_kept, rendered, tenants_of
from quota import clock
from quota.billing.credits import selectors
from quota.billing.credits.corrections import amount_now, credit_correct
from quota.csv_files import csv_answer
from quota.models import Credit, Tenant
from quota.vocabulary.errors import invalid
from quota.vocabulary.money import AmountError, format_credits, parse
from quota.vocabulary.permissions import Action, Principal, may, require
from scheduling.access.selectors import cells_visible

PAGE_SIZE = 50
_KINDS = {
    "pending": gettext_lazy("tasks pending beyond the promise"),
    "evictions": gettext_lazy("tasks evicted beyond the promise"),
    "correction": gettext_lazy("correction"),
}


@page
def credit_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the credits of a tenant, what the next invoice would credit, and the sums per cell and month for SREs."""
    tenant = chosen_tenant(request, principal, Action.BILLING_VIEW)
    if tenant is None:
        return render(request, "sigma/credits.html", {"tenant": None})
    month = _month(request.GET.get("month", "").strip())
    rows = page_of(
        request, selectors.credits_visible(principal, tenant=tenant.name, month=month).defer("evidence"), PAGE_SIZE
    )
    context = {
        "tenant": tenant,
        "tenants": tenants_of(principal, Action.BILLING_VIEW),
        "month": f"{month:%Y-%m}" if month else "",
        "table": _lines(list(rows)),
        "page_obj": rows,
        "expected": _expected(tenant),
        "totals": _totals(principal) if may(principal, Action.PLATFORM_ADMIN) else None,
    }
    return render(request, "sigma/credits.html", context)


@page
def credits_csv(request: HttpRequest, principal: Principal) -> HttpResponse:
    tenant = chosen_tenant(request, principal, Action.BILLING_VIEW)
    name = tenant.name if tenant is not None else ""
    month = _month(request.GET.get("month", "").strip())
    rows = selectors.credits_visible(principal, tenant=name, month=month)
    return csv_answer(f"credits-{name}.csv", selectors.table(rows))


@page
def credit(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    return _shown(request, principal, selectors.credit_numbered(principal, number), {})


@page
@require_POST
def correct(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """Correct a credit. If the correction is rejected, show the form again with the given values."""
    require(principal, Action.PLATFORM_ADMIN)
    row = selectors.credit_numbered(principal, number)
    given = given_in(request.POST, "to", "reason")
    context: dict[str, Any] = {"given": given}
    with problem_kept(context):
        try:
            to = parse(given["to"])
        except AmountError as error:
            raise invalid("to", str(error)) from error
        credit_correct(principal=principal, credit=row, to=to, reason=given["reason"])
        messages.success(request, _("The credit was corrected, and the tenant was notified."))
        return redirect(reverse("sigma:credit", args=[row.pk]))
    return _shown(request, principal, row, context)


def _shown(request: HttpRequest, principal: Principal, row: Credit, changes: dict[str, Any]) -> HttpResponse:
    present = amount_now(row)
    context = {
        "credit": row,
        "tenant": row.tenant,
        "kind": _KINDS[row.kind],
        "now": present,
        "table": _evidence(principal, row),
        "corrections": list(row.corrections.order_by("id")),
        "may_correct": may(principal, Action.PLATFORM_ADMIN) and row.corrects_id is None,
        "given": {"to": format_credits(present).replace(",", ""), "reason": ""},
        **changes,
    }
    return rendered(request, "sigma/credit.html", context)


def _lines(rows: list[Credit]) -> Table:
    columns = (
        Column(_("Credit")),
        Column(_("Month")),
        Column(_("Cell")),
        Column(_("Job")),
        Column(_("Reason")),
        Column(_("Credits"), number=True),
    )
    shown = [
        [
            Cell(row.pk, link=reverse("sigma:credit", args=[row.pk])),
            f"{row.month:%Y-%m}",
            row.cell,
            row.job,
            Cell(_KINDS[row.kind], note=row.reason),
            format_credits(row.amount),
        ]
        for row in rows
    ]
    why = _("Credits are given with the invoice of a month, if a cell broke its published promise.")
    return Table(_("Credits"), columns, shown, Empty(_("No credits were given."), why))


def _expected(tenant: Tenant) -> Table | None:
    """Return what the next invoice would credit now, by job, or None if there is nothing."""
    found = selectors.expected(tenant, until=clock.now())
    if not found.jobs:
        return None
    columns = (Column(_("Job")), Column(_("Cell")), Column(_("Reason")), Column(_("Credits until now"), number=True))
    shown = [[one.job, one.cell, _KINDS[one.kind], format_credits(one.amount)] for one in found.jobs]
    total = [_("Total"), "", "", format_credits(found.amount)]
    if found.number > len(found.jobs):
        total[1] = _("%(number)d jobs are not shown") % {"number": found.number - len(found.jobs)}
    if not found.complete:
        total[2] = _("Later hours are not included.")
    return Table(_("Expected credits"), columns, shown, Empty(""), total=total)


def _totals(principal: Principal) -> Table:
    columns = (
        Column(_("Cell")),
        Column(_("Month")),
        Column(_("Tenants"), number=True),
        Column(_("Jobs"), number=True),
        Column(_("Given"), number=True),
        Column(_("Corrected"), number=True),
        Column(_("Total"), number=True),
    )
    shown = [
        [
            one.cell,
            f"{one.month:%Y-%m}",
            one.tenants,
            one.jobs,
            *map(format_credits, (one.given, one.corrected, one.total)),
        ]
        for one in selectors.totals(principal)
    ]
    return Table(_("Credits of all tenants"), columns, shown, Empty(_("Nothing was credited in any cell.")))


def _evidence(principal: Principal, row: Credit) -> Table:
    columns = (
        Column(_("Hour")),
        Column(_("Cause")),
        Column(_("Task")),
        Column(_("From")),
        Column(_("Until")),
        Column(_("Event")),
        Column(_("Credits"), number=True),
    )
    # After its deletion, another cell may have the name.
    same = cells_visible(principal).filter(name=row.cell, created_at__lt=row.until).exists()
    shown: list[list[object]] = []
    for hour in row.evidence:
        what = _("%(tasks)s tasks") % {"tasks": hour["tasks"]}
        at = dt.datetime.fromisoformat(hour["hour"])
        shown.append([_moment(at), hour["cause"], what, "", "", "", format_credits(hour["amount"])])
        shown += [["", "", *_task(row.cell if same else "", item), ""] for item in hour["items"]]
    return Table(_("Evidence"), columns, shown, Empty(_("There are no details of this line.")))


def _task(cell: str, item: dict[str, Any]) -> list[object]:
    times = [dt.datetime.fromisoformat(item[name]) for name in ("from", "at", "until") if item.get(name)]
    place = item.get("event", "")
    event = Cell(place, link=reverse("sigma:event", args=[cell, place]) if cell else "") if place else ""
    shown: list[object] = [_moment(time) for time in times]
    return [item["task"], *shown, *[""] * (2 - len(shown)), event]


def _moment(time: dt.datetime) -> str:
    return f"{time.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _month(text: str) -> dt.date | None:
    if not text:
        return None
    try:
        return dt.datetime.strptime(text, "%Y-%m").date()
    except ValueError as error:
        raise invalid("month", _("%r is not a month; give a month such as 2026-11") % text[:20]) from error
