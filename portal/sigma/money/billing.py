"""The billing page of a tenant: balance, spending of this month, budget, ledger and invoices."""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from portal import plots
from portal.sigma.frame.page import chosen_tenant, given_in, page, problem_kept, rendered, tenants_of
from quota import clock
from quota.billing.budgets import budget_set, spending_of
from quota.billing.invoice_pdf import invoice_pdf
from quota.billing.invoice_table import lines_of, table_of
from quota.billing.invoices import invoice_draft
from quota.billing.ledger import budget_hand_down
from quota.billing.movements import MOST_ROWS, RevenueDay, month_days, movements, movements_number, table
from quota.billing.spending import ACTIONS
from quota.billing.statements import invoice_numbered
from quota.csv_files import csv_answer, file_answer
from quota.models import Budget, Invoice, Tenant
from quota.selectors import tenant_named
from quota.vocabulary import months
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.money import AmountError, format_credits, parse
from quota.vocabulary.permissions import Action, Principal, may, require

PAGE_SIZE = 50
INVOICES = 24


@page
def billing(request: HttpRequest, principal: Principal) -> HttpResponse:
    tenant = chosen_tenant(request, principal, Action.BILLING_VIEW)
    if tenant is None:
        return render(request, "sigma/billing.html", {"tenant": None})
    return _shown(request, principal, tenant, {})


@page
@require_POST
def budget(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Set the budget of a tenant. If the budget is rejected, show the form again with the given values."""
    tenant = tenant_named(principal, request.POST.get("tenant", ""))
    require(principal, Action.BILLING_ADMIN, tenant=tenant.name)
    given = given_in(request.POST, "monthly", "alerts", "action")
    context: dict[str, Any] = {"given": given}
    with problem_kept(context):
        budget_set(
            principal=principal,
            tenant=tenant,
            monthly=_amount("monthly", given["monthly"]),
            alerts=_percents(given["alerts"]),
            action=given["action"],
        )
        messages.success(request, _("The budget of %s was saved.") % tenant.name)
        return _back(tenant)
    return _shown(request, principal, tenant, context)


@page
@require_POST
def hand_down(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Transfer credits from an organisation to one of its teams, or from a team to its organisation."""
    tenant = tenant_named(principal, request.POST.get("tenant", ""))
    require(principal, Action.BILLING_ADMIN, tenant=tenant.name)
    given = given_in(request.POST, "to", "amount", "text")
    context: dict[str, Any] = {"handed": given}
    with problem_kept(context):
        amount = _amount("amount", given["amount"]) or 0
        other = next((row for row in _related(tenant) if row.name == given["to"]), None)
        if other is None:
            raise invalid(
                "to", _("credits cannot be transferred to this tenant; choose the organisation or a team from the list")
            )
        budget_hand_down(
            principal=principal, from_tenant=tenant, to_tenant=other, amount=amount, text=given["text"][:200]
        )
        text = _("%(amount)s credits were transferred to %(to)s.")
        messages.success(request, text % {"amount": format_credits(amount), "to": other.name})
        return _back(tenant)
    return _shown(request, principal, tenant, context)


@page
def ledger_csv(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Return the ledger as a CSV file. `?month=2026-11` limits the file to a month in the tenant's time zone."""
    tenant = _required(request, principal)
    month = _month(request.GET.get("month", "").strip())
    since, until = months.bounds(month, tenant.time_zone) if month is not None else (None, None)
    rows = movements(principal, tenant, number=MOST_ROWS, since=since, until=until)
    name = f"ledger-{tenant.name}-{month:%Y-%m}.csv" if month is not None else f"ledger-{tenant.name}.csv"
    return csv_answer(name, table(rows, tenant=tenant.name))


@page
def invoice(request: HttpRequest, principal: Principal, number: str) -> HttpResponse:
    return _invoice_page(request, principal, invoice_numbered(principal, number))


@page
def invoice_file(request: HttpRequest, principal: Principal, number: str, form: str) -> HttpResponse:
    return _file(invoice_numbered(principal, number), form)


@page
def draft(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show a draft of the current month's invoice, with the amounts so far."""
    return _invoice_page(request, principal, invoice_draft(_required(request, principal)))


@page
def draft_file(request: HttpRequest, principal: Principal, form: str) -> HttpResponse:
    return _file(invoice_draft(_required(request, principal)), form)


def _shown(request: HttpRequest, principal: Principal, tenant: Tenant, changes: dict[str, Any]) -> HttpResponse:
    """Show the billing page of a tenant. `changes`: values that replace or extend the template context."""
    spending = spending_of(tenant)
    row = Budget.objects.filter(tenant=tenant).first() or Budget(tenant=tenant)
    days = month_days(principal, tenant, spending.month, until=clock.now())
    paginator = Paginator(range(movements_number(tenant)), PAGE_SIZE)
    page_obj = paginator.get_page(request.GET.get("page", "1"))
    context = {
        "tenant": tenant,
        "tenants": tenants_of(principal, Action.BILLING_VIEW),
        "spending": spending,
        "percent": min(100, spending.percent),
        "budget": row,
        "plots": _plots(tenant, days, spending.month, spending.monthly),
        "page_obj": page_obj,
        "movements": [
            (one, _KINDS.get(one.kind, one.kind))
            for one in movements(principal, tenant, first=PAGE_SIZE * (page_obj.number - 1), number=PAGE_SIZE)
        ],
        "invoices": list(Invoice.objects.filter(tenant=tenant).order_by("-month").defer("lines")[:INVOICES]),
        "may_edit": may(principal, Action.BILLING_ADMIN, tenant=tenant.name),
        "actions": [(name, dict(Budget._meta.get_field("action").flatchoices)[name]) for name in ACTIONS],
        "given": {
            "monthly": format_credits(row.monthly).replace(",", "") if row.monthly is not None else "",
            "alerts": ", ".join(map(str, row.alerts)),
            "action": row.action,
        },
        "related": _related(tenant),
        **changes,
    }
    return rendered(request, "sigma/billing.html", context)


def _plots(tenant: Tenant, days: list[RevenueDay], month: dt.date, limit: int | None) -> list[plots.Plot]:
    since, until = months.bounds(month, tenant.time_zone)
    times = [day.begins_at for day in days]
    short = partial(format_credits, places=2)
    shared: dict[str, Any] = {"since": since, "until": until, "step": dt.timedelta(days=1), "format_value": short}
    spent = [plots.Series(_("credits spent"), [one.spent for one in days])]
    parts = [
        plots.Series(_("orders of quota"), [one.orders for one in days]),
        plots.Series(_("measured usage"), [one.usage for one in days]),
    ]
    title = _("Credits spent since the first day of the month")
    return [
        plots.lines(title, times, spent, limit=limit, headroom=True, unknown=short(0), **shared),
        plots.bars(_("Credits spent per day"), times, parts, label=lambda at: f"{at:%F}", **shared),
    ]


def _invoice_page(request: HttpRequest, principal: Principal, row: Invoice) -> HttpResponse:
    context = {
        "invoice": row,
        "tenant": row.tenant,
        "lines": lines_of(row),
        "is_draft": row.pk is None,
        "last_day": months.last_instant(row.ends_at),
        "query": f"?tenant={row.tenant.name}" if row.pk is None else "",
    }
    return render(request, "sigma/invoice.html", context)


def _file(row: Invoice, form: str) -> HttpResponse:
    name = f"{row.number}-{row.tenant.name}-{row.month:%Y-%m}.{form}"
    if form == "pdf":
        return file_answer(name, invoice_pdf(row), "application/pdf")
    return csv_answer(name, table_of(row, row.tenant.name))


def _required(request: HttpRequest, principal: Principal) -> Tenant:
    tenant = chosen_tenant(request, principal, Action.BILLING_VIEW)
    if tenant is None:
        raise Rejected(
            "not-found",
            _("You may not see the billing of any tenant. Ask an owner of your tenant for the role buyer or owner."),
            status=404,
        )
    return tenant


def _related(tenant: Tenant) -> list[Tenant]:
    """Return the tenants that may receive credits from a tenant: its organisation and its teams."""
    teams = Tenant.objects.filter(parent=tenant).order_by("name")[:200]
    return [*Tenant.objects.filter(pk=tenant.parent_id or 0), *teams]


def _amount(name: str, text: str) -> int | None:
    if not text:
        return None
    try:
        return parse(text)
    except AmountError as error:
        raise invalid(name, str(error)) from error


def _month(text: str) -> dt.date | None:
    if not text:
        return None
    try:
        month = dt.datetime.strptime(text, "%Y-%m").date()
    except ValueError:
        month = dt.date.min
    if not 2000 <= month.year <= 2999:
        raise invalid("month", _("%r is not a month; give a month such as 2026-11") % text[:20])
    return month


def _percents(text: str) -> list[int]:
    parts = [part.strip().removesuffix("%").strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise invalid("alerts", _("%r is not a list of percentages; give a list such as 50, 80, 100") % text[:40])
    return [int(part) for part in parts]


def _back(tenant: Tenant) -> HttpResponse:
    return redirect(reverse("sigma:billing", query={"tenant": tenant.name}))


_KINDS = {
    "budget": gettext_lazy("Credits granted"),
    "hold": gettext_lazy("Credits held"),
    "unhold": gettext_lazy("Held credits returned"),
    "charge": gettext_lazy("Credits charged"),
    "refund": gettext_lazy("Credits refunded"),
    "usage": gettext_lazy("Credits charged for measured usage"),
    "credit": gettext_lazy("Credits for a broken promise"),
    "settle": gettext_lazy("Debt paid"),
    "transfer": gettext_lazy("Credits transferred"),
}
