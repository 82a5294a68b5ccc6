"""The chart of a tenant's spending in this month, against its budget."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from functools import partial

from django.utils.translation import gettext as _

from portal import plots
from quota.billing.budgets import spending_of
from quota.billing.movements import month_days
from quota.billing.spending import Spending
from quota.models import Tenant
from quota.vocabulary import months
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Principal


@dataclass(frozen=True, slots=True)
class SpendingChart:
    """The spending of a tenant in this month, as figures and as a plot. Its limit is the monthly budget."""

    tenant: str
    spending: Spending
    plot: plots.Plot


def spending_chart(principal: Principal, tenant: Tenant, *, now: dt.datetime) -> SpendingChart:
    """Return the chart of a tenant. Makes three queries. Raises `Forbidden` if the caller may not see its money."""
    spending = spending_of(tenant)
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
