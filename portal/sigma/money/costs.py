"""The page that shows the costs of a tenant in a period, by job, team, band, cell or label, and its CSV file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.parts.empty import Empty
from portal.parts.tables import Column, Table, ordered, sorting_of
from portal.sigma.frame.page import chosen_tenant, given_in, page, tenants_of
from quota import clock
from quota.billing.costs import SPLITS, Cost, costs
from quota.csv_files import csv_answer
from quota.models import Tenant
from quota.vocabulary import months
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, may

# The most rows on the page. The CSV file contains all rows.
SHOWN = 100
PERIODS = {
    "month": gettext_lazy("this month"),
    "last-month": gettext_lazy("last month"),
    "7": gettext_lazy("the last 7 days"),
    "30": gettext_lazy("the last 30 days"),
    "90": gettext_lazy("the last 90 days"),
    "365": gettext_lazy("the last 365 days"),
}
SPLIT_NAMES = {
    "job": gettext_lazy("job"),
    "team": gettext_lazy("team"),
    "band": gettext_lazy("band"),
    "cell": gettext_lazy("cell"),
    "label": gettext_lazy("label"),
}


@dataclass(frozen=True, slots=True)
class CostsFilter:
    """The filters that the user chose on the page of costs. `tenants`: the tenant and, if chosen, its teams. `over`:
    the name of the chosen period, such as `month`.
    """

    tenant: Tenant
    tenants: list[Tenant]
    teams: bool
    by: str
    label: str
    over: str
    since: dt.datetime
    until: dt.datetime


@page
def cost_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = _chosen(request, principal)
    context: dict[str, Any] = {"chosen": chosen}
    if chosen is not None:
        found = _costs(chosen)
        context |= {
            "tenant": chosen.tenant,
            "tenants": tenants_of(principal, Action.BILLING_VIEW),
            "splits": [(name, SPLIT_NAMES[name]) for name in SPLITS],
            "overs": PERIODS.items(),
            "table": _page_table(request, found, chosen),
            "more": max(0, len(found) - SHOWN),
            "asked_label": chosen.by == "label" and not chosen.label,
        }
    return render(request, "sigma/costs.html", context)


@page
def costs_csv(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = _chosen(request, principal)
    found = _costs(chosen) if chosen is not None else []
    name = f"costs-{chosen.tenant.name}-{chosen.by}.csv" if chosen is not None else "costs.csv"
    return csv_answer(name, _table(found, chosen))


def _chosen(request: HttpRequest, principal: Principal) -> CostsFilter | None:
    """Return the filters in the URL, or None if the user may see the costs of no tenant. Ignore unknown values."""
    tenant = chosen_tenant(request, principal, Action.BILLING_VIEW)
    if tenant is None:
        return None
    given = given_in(request.GET, "teams", "by", "over", "label")
    teams = list(Tenant.objects.filter(parent=tenant).order_by("name")) if given["teams"] == "yes" else []
    over = given["over"] if given["over"] in PERIODS else "month"
    since, until = _period(tenant, over)
    return CostsFilter(
        tenant=tenant,
        tenants=[tenant, *(team for team in teams if may(principal, Action.BILLING_VIEW, tenant=team.name))],
        teams=given["teams"] == "yes",
        by=given["by"] if given["by"] in SPLITS else "job",
        label=given["label"][:200],
        over=over,
        since=since,
        until=until,
    )


def _period(tenant: Tenant, over: str) -> tuple[dt.datetime, dt.datetime]:
    now = clock.now()
    month = months.month_of(now, tenant.time_zone)
    begin = months.begin_of(month, tenant.time_zone)
    if over == "month":
        return begin, max(now, begin + dt.timedelta(hours=1))
    if over == "last-month":
        before = (month - dt.timedelta(days=1)).replace(day=1)
        return months.bounds(before, tenant.time_zone)
    return now - dt.timedelta(days=int(over)), now


def _costs(chosen: CostsFilter) -> list[Cost]:
    if chosen.by == "label" and not chosen.label:
        return []
    return costs(chosen.tenants, since=chosen.since, until=chosen.until, by=chosen.by, label=chosen.label)


def _page_table(request: HttpRequest, found: list[Cost], chosen: CostsFilter) -> Table:
    columns = (
        Column(str(SPLIT_NAMES[chosen.by]).capitalize(), order="name"),
        Column(_("Cost")),
        Column(_("Quota"), number=True, order="quota", descending=True),
        Column(_("Usage"), number=True, order="usage", descending=True),
        Column(_("Quota that no job requested"), number=True, order="unused", descending=True),
        Column(_("Total"), number=True, order="total", descending=True),
        Column(_("Share of the total"), number=True),
    )
    sorting = sorting_of(request.GET.dict(), columns, default="-total")
    keys: dict[str, Callable[[Cost], Any]] = {
        "name": attrgetter("key"),
        **{name: attrgetter(name) for name in ("quota", "usage", "unused", "total")},
    }
    rows = _rows(ordered(found, sorting, keys), chosen.by)
    empty = Empty(_("The tenant had no costs in this period."))
    return Table(
        _("Costs"),
        columns,
        rows,
        empty,
        sorting=sorting,
        total=_total_cells(found),
        row_template="sigma/rows/cost.html",
    )


def _rows(found: list[Cost], by: str) -> list[dict[str, Any]]:
    """Return the rows of the table of costs. `bar`: the colour, the start and the width of each part of a bar; the
    longest bar has the width 1000.
    """
    names = {"job": _("quota that no job requested"), "label": _("jobs without this label"), "band": _("free priority")}
    most = max((cost.total for cost in found), default=0) or 1
    total = sum(cost.total for cost in found) or 1
    rows = []
    for cost in found[:SHOWN]:
        quota, usage, unused = (1000 * part // most for part in (cost.quota, cost.usage, cost.unused))
        share = f"{100 * cost.total / total:.1f} %"
        bar = [(1, 0, quota), (2, quota, usage), (7, quota + usage, unused)]  # colour, x and width of each part
        rows.append({"name": cost.key or names.get(by, "–"), "cost": cost, "share": share, "bar": bar})
    return rows


def _total_cells(found: list[Cost]) -> tuple[str, ...]:
    """Return the cells of the row with the sums, which are not rounded."""
    sums = (sum(getattr(one, name) for one in found) for name in ("quota", "usage", "unused", "total"))
    return (_("Total"), "", *(format_credits(amount) for amount in sums), "")


def _table(found: list[Cost], chosen: CostsFilter | None) -> Iterator[list[object]]:
    """Yield the rows of the CSV file. Amounts are in micro-credits, so that their sums are exact."""
    yield ["tenant", "from", "until", "by", "label", "key", "quota", "unused", "usage", "total"]
    if chosen is not None:
        since, until = (moment.astimezone(dt.UTC).isoformat() for moment in (chosen.since, chosen.until))
        filters = [chosen.tenant.name, since, until, chosen.by, chosen.label]
        for one in found:
            yield [*filters, one.key, one.quota, one.unused, one.usage, one.total]
