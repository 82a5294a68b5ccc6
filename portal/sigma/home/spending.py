"""The chart of a tenant's spending in this month, against its budget."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django.utils.translation import gettext as _

from portal import plots
from quota.billing.budgets import spendings
from quota.billing.movements import month_days
from quota.billing.spending import Spending
from quota.models import Budget, Tenant
from quota.vocabulary import months
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, may


@dataclass(frozen=True, slots=True)
class SpendingChart:
    """The spending of a tenant in this month, as figures and as a plot. Its limit is the monthly budget."""

    tenant: str
    spending: Spending
    plot: plots.Plot


def spending_chart(principal: Principal, tenants: Sequence[Tenant], *, now: dt.datetime) -> SpendingChart | None:
    """Return the chart of that tenant of the caller which has spent the largest part of its budget, or None if the
    caller is a member of no tenant whose money the caller may see. Makes three queries.
    """
    paying = [
        one for one in tenants if one.name in principal.roles and may(principal, Action.BILLING_VIEW, tenant=one.name)
    ]
    if not paying:
        return None
    found = spendings(paying, budgets=Budget.objects.filter(tenant__in=paying))
    tenant = max(paying, key=lambda one: (found[one.pk].monthly is not None, found[one.pk].percent))
    spending = found[tenant.pk]
    days = month_days(principal, tenant, spending.month, until=now)
    since, until = months.bounds(spending.month, tenant.time_zone)
    short = partial(format_credits, places=2)
    plot = plots.lines(
        _("Credits spent this month, tenant %s") % tenant.name,
        [day.begins_at for day in days],
        [plots.Series(_("spent"), [day.spent for day in days])],
        since=since,
        until=until,
        step=dt.timedelta(days=1),
        format_value=short,
        limit=spending.monthly,
        headroom=True,
        unknown=short(0),
    )
    return SpendingChart(tenant.name, spending, plot)
