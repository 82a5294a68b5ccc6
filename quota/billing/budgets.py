"""Budgets of tenants: monthly limits, alerts, and the actions when a budget is used up.

Admission reads `Budget.exhausted_at`, the time when a budget was used up. This module updates that field when a
tenant gets credits, when its budget changes, and in `budgets_watch`. An order is checked against the limit when its
price is held (`quota.billing.ledger`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connection

from quota import clock, records
from quota.billing.spending import ACTIONS, DROP, STOPS_SUBMITTING, Spending, balances, beyond_month, fitting
from quota.billing.spent_budgets import format_demotions
from quota.models import Budget, Order, Tenant
from quota.notifications import notices
from quota.vocabulary import months
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, require, system

_MOST_ALERTS, _MOST_PERCENT = 10, 200
_URL = "/billing/?tenant="

_SPENT = """
SELECT w.tenant, COALESCE(r.spent, 0), COALESCE(r.usage, 0), COALESCE(o.waiting, 0),
    COALESCE(a.available, 0), COALESCE(a.held, 0), COALESCE(a.owed, 0)
FROM unnest(%s::bigint[], %s::timestamptz[], %s::timestamptz[], %s::boolean[]) AS w(tenant, begins, ends, now)
LEFT JOIN LATERAL (
    SELECT sum(e.amount) AS spent, sum(e.amount) FILTER (WHERE p.kind = 'usage') AS usage
    FROM quota_posting p JOIN quota_ledgerentry e ON e.posting_id = p.id
    JOIN quota_account v ON v.id = e.account_id AND v.kind = 'revenue'
    WHERE p.tenant_id = w.tenant AND p.occurred_at >= w.begins AND p.occurred_at < w.ends
) r ON true
LEFT JOIN LATERAL (
    SELECT sum(price) AS waiting FROM quota_order
    WHERE tenant_id = w.tenant AND state IN ('pending', 'approved') AND id <> %s
    AND starts_at < w.ends AND (w.now OR starts_at >= w.begins)
) o ON true
LEFT JOIN LATERAL (
    SELECT sum(balance) FILTER (WHERE kind = 'available') AS available,
        sum(balance) FILTER (WHERE kind = 'held') AS held, sum(balance) FILTER (WHERE kind = 'owed') AS owed
    FROM quota_account WHERE tenant_id = w.tenant
) a ON true
"""


def budget_set(
    *,
    principal: Principal,
    tenant: Tenant,
    monthly: int | None = None,
    alerts: Sequence[int] = (),
    action: str = "none",
    overdraft: int | None = None,
) -> Budget:
    """Set all rules of a tenant's budget. If `overdraft` is None, the overdraft stays unchanged; only an SRE may change
    it. Raises `Rejected` if an argument is not valid; the error names the field.
    """
    require(principal, Action.BILLING_ADMIN, tenant=tenant.name)
    _valid(monthly, alerts, action, overdraft)
    with records.write(principal) as entry:
        Budget.objects.bulk_create([Budget(tenant=tenant)], ignore_conflicts=True)
        row = Budget.objects.select_for_update().get(tenant=tenant)
        if overdraft is not None and overdraft != row.overdraft:
            require(principal, Action.PLATFORM_ADMIN)
            row.overdraft = overdraft
        again = action == DROP != row.action  # if the budget is spent: notify again, and count the hours from now
        row.monthly, row.alerts, row.action = monthly, sorted(set(alerts)), action
        row.save(update_fields=["monthly", "alerts", "action", "overdraft"])
        entry.append(
            "budget.set", tenant=tenant.name, monthly=monthly, alerts=row.alerts, action=action, overdraft=row.overdraft
        )
        examine(entry, tenant, again=again)
    row.refresh_from_db()
    return row


def examine(entry: records.RecordEntry, tenant: Tenant, *, again: bool = False) -> None:
    """Check a tenant's budget after the tenant's money has changed.

    Notifies the tenant if its spending has reached a further alert level, and forbids or allows the tenant to buy quota
    and submit jobs.

    `again`: repeat the budget's action if the budget was already used up. Locks: the budget's row. Callers that lock
    accounts must lock them before this call.
    """
    row = Budget.objects.select_for_update(of=("self",)).select_related("tenant").filter(tenant=tenant).first()
    if row is not None:
        _apply(entry, row, spendings([row.tenant], budgets=[row])[row.tenant_id], again=again)


def budgets_watch(now: dt.datetime | None = None) -> int:
    """Check all budgets, and apply their actions and alerts. Returns the number of changed budgets. A repeated call
    does no harm. Each changed budget has its own transaction.
    """
    with clock.at(now or clock.now()):
        rows = Budget.objects.exclude(alerts=[], action="none", exhausted_at=None)
        watched = list(rows.select_related("tenant").order_by("id"))
        states = spendings([row.tenant for row in watched], budgets=watched)
        changed = 0
        for row in watched:
            state = states[row.tenant_id]
            if state.alert is not None or state.exhausted != (row.exhausted_at is not None):
                with records.write(system("budgets")) as entry:
                    examine(entry, row.tenant)
                changed += 1
    return changed


def submitting_stopped(tenant_ids: Iterable[int]) -> dict[int, str]:
    """Return, by tenant id, the actions of those budgets that are used up and forbid the tenant to submit jobs. An
    action is `stop-submitting` or `drop`.
    """
    return dict(
        Budget.objects.filter(
            tenant__in=list(tenant_ids), exhausted_at__isnull=False, action__in=STOPS_SUBMITTING
        ).values_list("tenant_id", "action")
    )


def month_rejection(order: Order, budget: Budget) -> Rejected | None:
    """Return the rejection of `order` if its price exceeds the rest of the monthly budget, else None. The month is the
    one in which the order starts.

    The caller has locked the tenant's accounts.
    """
    if budget.monthly is None or budget.action == "none":
        return None
    moment = max(order.starts_at, clock.now())
    state = spendings([order.tenant], budgets=[budget], now=moment, without=order.pk)[order.tenant_id]
    return beyond_month(state, order.price)


def spending_of(tenant: Tenant) -> Spending:
    """Return the spending of a tenant in the current month."""
    return spendings([tenant], budgets=Budget.objects.filter(tenant=tenant))[tenant.pk]


def spendings(
    tenants: Sequence[Tenant], *, budgets: Iterable[Budget], now: dt.datetime | None = None, without: int | None = None
) -> dict[int, Spending]:
    """Return, by tenant id, the spending in the month that contains `now`.

    `without`: id of an order that is not counted. Makes one query.
    """
    today = clock.now()
    moment = now or today
    month = {tenant.pk: months.month_of(moment, tenant.time_zone) for tenant in tenants}
    bounds = {tenant.pk: months.bounds(month[tenant.pk], tenant.time_zone) for tenant in tenants}
    with connection.cursor() as cursor:
        cursor.execute(
            _SPENT,
            [
                list(bounds),
                [begin for begin, _ in bounds.values()],
                [end for _, end in bounds.values()],
                [begin <= today for begin, _ in bounds.values()],
                without or 0,
            ],
        )
        found = {row[0]: [int(value) for value in row[1:]] for row in cursor.fetchall()}
    by_tenant = {budget.tenant_id: budget for budget in budgets}
    return {
        tenant.pk: _spending(
            tenant, month[tenant.pk], found[tenant.pk], by_tenant.get(tenant.pk) or Budget(tenant=tenant)
        )
        for tenant in tenants
    }


def _spending(tenant: Tenant, month: dt.date, found: list[int], budget: Budget) -> Spending:
    spent, usage, waiting, available, held, owed = found
    has = balances(available=available, held=held, owed=owed, overdraft=budget.overdraft)
    watched = (budget.monthly, tuple(budget.alerts), budget.action, budget.told)
    return Spending(tenant.name, month, spent, usage, waiting, has, *watched)


def _apply(entry: records.RecordEntry, row: Budget, state: Spending, *, again: bool) -> None:
    tenant, changed = row.tenant, []
    figures = state.as_json()

    def announce(kind: str, subject: str, text: str, level: str, **more: Any) -> None:
        notices.notify(entry, tenant, kind, subject, text, _URL + tenant.name, level, **more, **figures)

    if (alert := state.alert) is not None:
        row.told = {state.key: alert}
        changed.append("told")
        announce(
            "budget.alert",
            f"{alert} % of the budget of {tenant.name} are spent",
            f"{format_credits(state.committed)} of {format_credits(state.limit)} credits for {state.key} are spent or"
            f" held for orders ({state.percent} %). Available: {format_credits(state.has.available)} credits.",
            "warning",
            alert=alert,
        )
    if state.exhausted and (again or row.exhausted_at is None):
        row.exhausted_at = clock.now()
        changed.append("exhausted_at")
        entry.append("budget.exhausted", tenant=tenant.name, action=row.action, **figures)
        announce(
            "budget.stopped",
            f"The budget of {tenant.name} is spent",
            f"{_consequence(row)} A higher monthly budget or a grant of credits ends this at once. If the monthly"
            " budget is spent, the next month also ends this.",
            "urgent",
            action=row.action,
        )
    elif not state.exhausted and row.exhausted_at is not None:
        row.exhausted_at = None
        changed.append("exhausted_at")
        entry.append("budget.resumed", tenant=tenant.name, **figures)
        text = "Actions that were stopped because the budget was spent are possible again."
        announce("budget.resumed", f"{tenant.name} has a budget again", text, "info")
    if changed:
        row.save(update_fields=changed)


_CONSEQUENCES = {
    "stop-buying": "No quota can be bought.",
    "stop-submitting": "No quota can be bought. Jobs can be submitted only at priority 0, which is free.",
    "drop": "No quota can be bought. Jobs can be submitted only at priority 0, which is free. Running jobs beyond"
    " expired quota and running jobs whose usage is charged are moved to priority 0:",
}


def _consequence(row: Budget) -> str:
    if row.action != DROP:
        return _CONSEQUENCES[row.action]
    return f"{_CONSEQUENCES[DROP]} {format_demotions(row.tenant)}."


def _valid(monthly: int | None, alerts: Sequence[int], action: str, overdraft: int | None) -> None:
    for name, amount in (("monthly", monthly), ("overdraft", overdraft)):
        if amount is not None and fitting(name, amount) < 0:
            raise invalid(name, f"the amount {amount} is negative; give 0 or more")
    if len(alerts) > _MOST_ALERTS or not all(0 < alert <= _MOST_PERCENT for alert in alerts):
        raise invalid(
            "alerts", f"the alerts are not accepted; give at most {_MOST_ALERTS} percentages from 1 to {_MOST_PERCENT}"
        )
    if action not in ACTIONS:
        raise invalid("action", f"the action {action!r} is unknown; give one of {', '.join(ACTIONS)}")
