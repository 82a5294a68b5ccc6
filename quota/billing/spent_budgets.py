"""Budgets that are used up and have the action `drop`, which demotes jobs of the tenant to the free priority.

    used up ─► larger requests are rejected, tenant is notified ─► `drop_after_hours` (a rule of the cell) ─► demotion
                   └── the tenant gets money or a higher monthly budget or chooses another action,
                       or the next month begins: no demotion

Only jobs at bands whose usage is charged in their cell are demoted, because only these jobs continue to cost money. The
package `scheduling` calls `drops_due` to get the tenants, and demotes their jobs.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db.models import QuerySet

from quota import clock
from quota.billing.spending import DROP
from quota.models import Budget, Market, PriorityBand, QuotaUse, Tenant
from quota.pricing.price_lists import price_list_at
from quota.vocabulary.bands import Band


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A budget that is used up.

    `since`: the time when the budget was used up. `bands`: the bands of the cell in which usage is charged.
    """

    tenant: Tenant
    since: dt.datetime
    bands: tuple[Band, ...]


def drops_due(cell: str) -> list[SpentBudget]:
    """Return the used-up budgets of tenants whose jobs in a cell must be demoted now, oldest first.

    Makes only one query if no tenant has such a budget.
    """
    rows = list(_spent().select_related("tenant").order_by("exhausted_at", "id"))
    if not rows:
        return []
    last = clock.now() - _delay(cell)
    due = [(row.tenant, row.exhausted_at) for row in rows if row.exhausted_at and row.exhausted_at <= last]
    bands = _charged(cell) if due else ()
    return [SpentBudget(tenant, since, bands) for tenant, since in due] if bands else []


def is_due(tenant_id: int, cell: str) -> bool:
    """Return whether jobs of one tenant in a cell must be demoted now because the tenant's budget is used up."""
    return _spent().filter(tenant=tenant_id, exhausted_at__lte=clock.now() - _delay(cell)).exists()


def format_demotions(tenant: Tenant) -> str:
    """Return a text for a tenant whose budget is used up: in which cells the tenant's jobs will be demoted, and after
    how many hours.
    """
    cells = QuotaUse.objects.filter(tenant=tenant).order_by("cell").values_list("cell", flat=True).distinct()
    at = [f"in cell {cell} after {_hours(cell)} hours" for cell in cells if _charged(cell)]
    return "; ".join(at) or "none, because no usage is charged now"


def _spent() -> QuerySet[Budget]:
    return Budget.objects.filter(action=DROP, exhausted_at__isnull=False)


def _hours(cell: str) -> int:
    return (Market.objects.filter(cell=cell).first() or Market(cell=cell)).drop_after_hours


def _delay(cell: str) -> dt.timedelta:
    return dt.timedelta(hours=_hours(cell))


def _charged(cell: str) -> tuple[Band, ...]:
    """Return the bands whose usage is charged in a cell now."""
    if not any(price_list_at(cell, clock.now()).usage.values()):
        return ()
    return tuple(row.as_band() for row in PriorityBand.objects.filter(price_milli__gt=0))
