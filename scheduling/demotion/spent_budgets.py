"""Demotion of jobs after the budget of their tenant was used up, if the budget's settings ask for it (§2.5).

All jobs whose usage is charged are demoted. This happens `drop_after_hours` hours after the budget was used up.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from django.db.models import Q, QuerySet

from quota.billing.spent_budgets import SpentBudget, drops_due, is_due
from quota.vocabulary.bands import FREE_PRIORITY
from scheduling.demotion.demotion import AT_ONCE, DemotionCause, jobs_demote
from scheduling.models import Cell, Job


def spent_budgets_drop(cell: Cell) -> list[Job]:
    """Demote the jobs of tenants whose budget is used up and whose grace period is over. Return the demoted jobs.

    Takes the same locks as `jobs_demote`.
    """
    return [job for spent in drops_due(cell.name) for job in jobs_demote(cell, spent.tenant, _cause(cell, spent))]


def _cause(cell: Cell, spent: SpentBudget) -> DemotionCause:
    reason = f"the budget of {spent.tenant.name} has been spent since {spent.since:%F %R} UTC"
    text = f"{reason[0].upper()}{reason[1:]}. These charged jobs were demoted to the free priority {FREE_PRIORITY}"
    return DemotionCause("budget.dropped", reason, text, partial(_chosen, cell, spent))


def _chosen(cell: Cell, spent: SpentBudget, live: QuerySet[Job]) -> Iterable[Job]:
    if not is_due(spent.tenant.pk, cell.name):
        return ()
    charged = Q()
    for band in spent.bands:
        charged |= Q(priority__gte=band.low, priority__lte=band.high)
    return live.filter(charged)[:AT_ONCE]
