"""The costs page: a tenant's cost by job, team, band, cell or label over a period; also as a CSV file."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.sigma.frame.page import chosen_tenant, page, tenants_of
from quota import clock
from quota.billing.costs import SPLITS, Cost, costs
from quota.models import Tenant
from quota.tables import csv_answer
from quota.vocabulary import months
from quota.vocabulary.permissions import Action, Principal, may

# Rows on the page. The CSV file contains all rows.
SHOWN = 100
OVER = {
    "month": gettext_lazy("this month"),
    "last-month": gettext_lazy("last month"),
    "7": gettext_lazy("7 days"),
    "30": gettext_lazy("30 days"),
    "90": gettext_lazy("90 days"),
    "365": gettext_lazy("365 days"),
}


@dataclass(frozen=True, slots=True)
class CostsFilter:
    tenant: Tenant
    tenants: list[Tenant]
    teams: bool
    by: str
    label: str
    over: str
    since: dt.datetime
    until: dt.datetime


@dataclass(frozen=True, slots=True)
class CostRow:
    """A cost, and the widths of its parts in per mille of the highest cost's bar."""

    name: str
    cost: Cost
    share: str
    quota: int
    unused: int
    usage: int

    @property
    def usage_x(self) -> int:
        return self.quota

    @property
    def unused_x(self) -> int:
        return self.quota + self.usage


@page
def cost_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = _chosen(request, principal)
    context = {
        "chosen": chosen,
        "tenant": chosen.tenant if chosen else None,
        "tenants": tenants_of(principal, Action.BILLING_VIEW),
        "splits": [(name, _SPLIT_NAMES[name]) for name in SPLITS],
        "overs": OVER.items(),
    }
    if chosen is not None:
        found = _costs(chosen)
        context |= {
            "rows": _rows(found, chosen),  # type: ignore[dict-item]
            "more": max(0, len(found) - SHOWN),  # type: ignore[dict-item]
            "total": _total(found),  # type: ignore[dict-item]
            "by_title": _SPLIT_NAMES[chosen.by],  # type: ignore[dict-item]
            "asked_label": chosen.by == "label" and not chosen.label,  # type: ignore[dict-item]
        }
    return render(request, "sigma/costs.html", context)


@page
def costs_csv(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = _chosen(request, principal)
    found = _costs(chosen) if chosen is not None else []
    name = f"costs-{chosen.tenant.name}-{chosen.by}.csv" if chosen is not None else "costs.csv"
    return csv_answer(name, _table(found, chosen))


def _chosen(request: HttpRequest, principal: Principal) -> CostsFilter | None:
    """Return the filters of the request. An unknown value counts as the default."""
    tenant = chosen_tenant(request, principal, Action.BILLING_VIEW)
    if tenant is None:
        return None
    given = request.GET
    teams = given.get("teams") == "yes"
    tenants = [tenant]
    if teams:
        tenants += [
            row
            for row in Tenant.objects.filter(parent=tenant).order_by("name")
            if may(principal, Action.BILLING_VIEW, tenant=row.name)
        ]
    by, over = given.get("by", ""), given.get("over", "")
    over = over if over in OVER else "month"
    since, until = _period(tenant, over)
    return CostsFilter(
        tenant, tenants, teams, by if by in SPLITS else "job", given.get("label", "").strip()[:200], over, since, until
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


def _rows(found: list[Cost], chosen: CostsFilter) -> list[CostRow]:
    most = max((cost.total for cost in found), default=0) or 1
    total = sum(cost.total for cost in found) or 1
    return [
        CostRow(
            cost.key or _nobody(chosen.by),
            cost,
            f"{100 * cost.total / total:.1f} %",
            *(1000 * part // most for part in (cost.quota, cost.unused, cost.usage)),
        )
        for cost in found[:SHOWN]
    ]


def _nobody(by: str) -> str:
    return {
        "job": _("bought, but not requested by any job"),
        "label": _("without this label"),
        "band": _("free priority"),
    }.get(by, "–")


def _total(found: list[Cost]) -> Cost:
    return Cost("", sum(one.quota for one in found), sum(one.unused for one in found), sum(one.usage for one in found))


def _table(found: list[Cost], chosen: CostsFilter | None) -> Iterator[list[object]]:
    """Yield the rows of the CSV file, exact in micro-credits, so that the columns add up."""
    yield ["tenant", "from", "until", "by", "label", "key", "quota", "unused", "usage", "total"]
    if chosen is not None:
        since, until = (moment.astimezone(dt.UTC).isoformat() for moment in (chosen.since, chosen.until))
        filters = [chosen.tenant.name, since, until, chosen.by, chosen.label]
        for one in found:
            yield [*filters, one.key, one.quota, one.unused, one.usage, one.total]


_SPLIT_NAMES = {
    "job": gettext_lazy("job"),
    "team": gettext_lazy("team"),
    "band": gettext_lazy("band"),
    "cell": gettext_lazy("cell"),
    "label": gettext_lazy("label"),
}
