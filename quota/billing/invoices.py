"""Invoices, each of which lists the postings of a tenant's calendar month and never changes.

The total of an invoice equals the revenue from the tenant in that month.

    postings of a month ──► draft, at any time ──► invoice_close, from 06:00 of the 1st ──► Invoice, which never changes
                                                      └─ first credits broken promises (`quota.billing.credits`)

A month follows the tenant's time zone, and begins where the invoice of the previous month ends. Once a month is
closed, a trigger rejects further postings in that month. Months without a charge, a refund, a credit or usage have no
invoice.
Invoice numbers have no gaps.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import structlog
from django.db import connection
from django.db.models import Max, Min

from quota import clock, records
from quota.billing import ledger, metering
from quota.billing.credits.giving import credits_give, tenants_due
from quota.models import Account, AccountKind, Invoice, Posting, Tenant
from quota.notifications import notices
from quota.vocabulary import months
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, require, system

log = structlog.get_logger(__name__)

# The usage of a month's last day is charged within this time after the month's end.
CLOSES_AFTER = dt.timedelta(hours=6)
DRAFT = "draft"

_LINE = ("kind", "order", "cell", "band", "text", "at", "starts_at", "ends_at", "amount", "credit")
_KINDS = ("charge", "refund", "usage", "credit")
_ORDERS = """
SELECT p.kind, p.order_id, COALESCE(o.cell, ''), COALESCE(b.name, ''), p.text, p.occurred_at, o.starts_at, o.ends_at,
    e.amount, NULL
FROM quota_posting p JOIN quota_ledgerentry e ON e.posting_id = p.id
JOIN quota_account a ON a.id = e.account_id AND a.kind = 'revenue'
LEFT JOIN quota_order o ON o.id = p.order_id LEFT JOIN quota_priorityband b ON b.id = o.band_id
WHERE p.tenant_id = %s AND p.occurred_at >= %s AND p.occurred_at < %s AND p.kind NOT IN ('usage', 'credit')
ORDER BY p.order_id, p.occurred_at, p.id
"""
_USAGE = """
SELECT 'usage', NULL, m.cell, COALESCE(b.name, ''), 'usage', NULL, min(m.hour), max(m.hour) + interval '1 hour',
    sum(m.price), NULL
FROM quota_posting p JOIN quota_meteredhour m ON m.posting_id = p.id LEFT JOIN quota_priorityband b ON b.id = m.band_id
WHERE p.tenant_id = %s AND p.occurred_at >= %s AND p.occurred_at < %s AND p.kind = 'usage'
GROUP BY m.cell, b.name ORDER BY m.cell, b.name
"""
_CREDITS = """
SELECT 'credit', NULL, c.cell, '', CASE c.kind
        WHEN 'pending' THEN 'job ' || c.job || ': tasks were pending beyond the promise'
        WHEN 'evictions' THEN 'job ' || c.job || ': tasks were evicted beyond the promise'
        ELSE 'job ' || c.job || ': correction of credit ' || c.corrects_id || ': ' || c.reason END,
    p.occurred_at, c.since, c.until, -c.amount, c.id
FROM quota_posting p JOIN quota_credit c ON c.posting_id = p.id
WHERE p.tenant_id = %s AND p.occurred_at >= %s AND p.occurred_at < %s AND p.kind = 'credit'
ORDER BY c.cell, c.job, c.id
"""


class InvoiceMonth(NamedTuple):
    """The month of an invoice, with its start and end."""

    month: dt.date
    begins_at: dt.datetime
    ends_at: dt.datetime


def period_of(tenant: Tenant, month: dt.date) -> InvoiceMonth:
    """Return the period of a month that is not closed. The period begins where the previous invoice ends, even if the
    tenant has changed its time zone since then.
    """
    begin, end = months.bounds(month, tenant.time_zone)
    last = Invoice.objects.filter(tenant=tenant).aggregate(month=Max("month"), end=Max("ends_at"))
    if last["month"] is not None and (months.after(last["month"]) == month or begin < last["end"]):
        begin = last["end"]
    return InvoiceMonth(month, begin, end)


def running_month(tenant: Tenant) -> dt.date:
    """Return the first day of the current invoice month of a tenant. A posting that is made now is on the invoice of
    this month. The month follows the tenant's time zone.
    """
    month = months.month_of(clock.now(), tenant.time_zone)
    last = Invoice.objects.filter(tenant=tenant).aggregate(month=Max("month"))["month"]
    return month if last is None else max(month, months.after(last))


def invoice_draft(tenant: Tenant, month: dt.date | None = None) -> Invoice:
    """Return the invoice of a month, by default of the current month. If the month is open, the invoice is a draft that
    is not saved.
    """
    wanted = month or running_month(tenant)
    closed = Invoice.objects.filter(tenant=tenant, month=wanted).first()
    return closed or _draw_up(tenant, period_of(tenant, wanted))


def invoice_close(*, principal: Principal, tenant: Tenant, month: dt.date) -> Invoice:
    """Close a month that has ended, and return its invoice. Idempotent.

    Raises `Rejected` if `month` is not the first day of a month. Raises `Conflict` if the month has not ended or has no
    charges. Locks: the tenant's accounts, then the revenue account.
    """
    require(principal, Action.PLATFORM_ADMIN)
    if month.day != 1:
        raise invalid("month", f"{month} is not the first day of a month; give a date such as {month:%Y-%m}-01")
    with records.write(principal) as entry:
        ledger.accounts_locked(tenant)
        if (closed := Invoice.objects.filter(tenant=tenant, month=month).first()) is not None:
            return closed
        period = period_of(tenant, month)
        if clock.now() < period.ends_at + CLOSES_AFTER:
            raise Conflict(
                "month-not-over",
                f"the month {month:%Y-%m} of {tenant.name} can be closed from"
                f" {period.ends_at + CLOSES_AFTER:%F %H:%M} UTC on; try again then",
            )
        credits_give(entry, tenant, month, until=period.ends_at)
        first = _month_due(tenant)
        if first is not None and first < month:  # the postings of that month would be on no invoice
            raise Conflict(
                "month-before-open", f"the month {first:%Y-%m} of {tenant.name} is still open; close that month first"
            )
        invoice = _draw_up(tenant, period)
        if not invoice.lines:
            raise Conflict(
                "nothing-to-invoice",
                f"nothing was charged to tenant {tenant.name} in {month:%Y-%m}, so this month has no invoice; choose"
                " another month",
            )
        invoice.number = _next_number()
        invoice.save(force_insert=True)
        entry.append(
            "invoice.closed", tenant=tenant.name, number=invoice.number, month=f"{month:%Y-%m}", total=invoice.total
        )
        notices.notify(
            entry,
            tenant,
            "invoice.ready",
            f"Invoice {invoice.number} of {tenant.name} for {month:%Y-%m}",
            f"Charged {format_credits(invoice.charged)}, refunded {format_credits(invoice.refunded)},"
            f" total {format_credits(invoice.total)} credits.",
            url=f"/billing/invoices/{invoice.number}/",
            number=invoice.number,
            total=invoice.total,
        )
    return invoice


def invoices_close_due(now: dt.datetime | None = None) -> list[Invoice]:
    """Charge the usage until the end of yesterday, then credit broken promises, then close every month that has ended
    and has charges. Idempotent.

    One transaction per tenant and month. If one month cannot be closed, the other months are still closed, and the
    first error is raised at the end. If usage cannot be charged, no month is closed, because that usage would be
    missing.
    """
    with clock.at(now or clock.now()):
        metering.usage_charge()
        closed: list[Invoice] = []
        failures: list[Exception] = _give_credits()
        for tenant in Tenant.objects.filter(pk__in=_with_open_charges()).order_by("id"):
            try:
                while (month := _month_due(tenant)) is not None:
                    closed.append(invoice_close(principal=system("invoices"), tenant=tenant, month=month))
            except Exception as error:
                log.exception("cannot close the invoice of a tenant for a month", tenant=tenant.name)
                failures.append(error)
        if failures:
            raise failures[0]
        return closed


def _give_credits() -> list[Exception]:
    """Credit the broken promises of all months that have ended. Return the errors, at most one per tenant.

    A month with an error is not credited. `invoice_close` tries it again, and fails with the same error.
    """
    due = tenants_due()
    failures: list[Exception] = []
    for tenant in Tenant.objects.filter(pk__in=due).order_by("id"):
        try:
            month = months.month_of(due[tenant.pk], tenant.time_zone)
            last = Invoice.objects.filter(tenant=tenant).aggregate(month=Max("month"))["month"]
            month = month if last is None else max(month, months.after(last))
            while clock.now() >= (period := period_of(tenant, month)).ends_at + CLOSES_AFTER:
                with records.write(system("credits")) as entry:
                    credits_give(entry, tenant, month, until=period.ends_at)
                month = months.after(month)
        except Exception as error:
            log.exception("cannot credit a tenant for broken promises; the next run tries again", tenant=tenant.name)
            failures.append(error)
    return failures


def _draw_up(tenant: Tenant, period: InvoiceMonth) -> Invoice:
    lines = _lines(tenant, period)
    charged = sum(line["amount"] for line in lines if line["amount"] > 0)
    refunded = -sum(line["amount"] for line in lines if line["amount"] < 0)
    return Invoice(
        number=DRAFT,
        tenant=tenant,
        **period._asdict(),
        time_zone=tenant.time_zone,
        lines=lines,
        charged=charged,
        refunded=refunded,
        total=charged - refunded,
        issued_at=clock.now(),
    )


def _lines(tenant: Tenant, period: InvoiceMonth) -> list[dict[str, Any]]:
    """Return the lines of the invoice for JSON.

    There is one line per posting of an order, one line per cell and band for usage, and one line per credit. Makes
    three queries.
    """
    given = [tenant.pk, period.begins_at, period.ends_at]
    with connection.cursor() as cursor:
        cursor.execute(_ORDERS, given)  # type: ignore[arg-type]
        orders = cursor.fetchall()
        cursor.execute(_USAGE, given)  # type: ignore[arg-type]
        usage = cursor.fetchall()
        cursor.execute(_CREDITS, given)  # type: ignore[arg-type]
        credited = cursor.fetchall()
    return [dict(zip(_LINE, map(_written, row), strict=True)) for row in (*orders, *usage, *credited)]


def _written(value: Any) -> Any:
    """Convert a value of an invoice line for JSON. Times become UTC text. Sums from PostgreSQL become integers."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return int(value) if isinstance(value, Decimal) else value


def _with_open_charges() -> Sequence[int]:
    """Return the ids of the tenants that have charges, refunds, credits or usage after their last invoice. Makes one
    query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT p.tenant_id FROM quota_posting p LEFT JOIN (SELECT tenant_id, max(ends_at) AS ends_at"
            " FROM quota_invoice GROUP BY tenant_id) i ON i.tenant_id = p.tenant_id"
            " WHERE p.kind = ANY(%s) AND p.occurred_at >= COALESCE(i.ends_at, '-infinity') GROUP BY p.tenant_id",
            [list(_KINDS)],
        )
        return [row[0] for row in cursor.fetchall()]


def _month_due(tenant: Tenant) -> dt.date | None:
    last = Invoice.objects.filter(tenant=tenant).aggregate(month=Max("month"), end=Max("ends_at"))
    waiting = Posting.objects.filter(tenant=tenant, kind__in=_KINDS)
    if last["end"] is not None:
        waiting = waiting.filter(occurred_at__gte=last["end"])
    first = waiting.aggregate(first=Min("occurred_at"))["first"]
    if first is None:
        return None
    month = months.month_of(first, tenant.time_zone)
    if last["month"] is not None:
        month = max(month, months.after(last["month"]))
    return month if clock.now() >= period_of(tenant, month).ends_at + CLOSES_AFTER else None


def _next_number() -> str:
    """Return the next invoice number. Locks the revenue account, so that each number is used exactly once."""
    Account.objects.select_for_update().get(kind=AccountKind.REVENUE.value)
    last = Invoice.objects.order_by("-number").values_list("number", flat=True).first()
    return f"INV-{int(last.removeprefix('INV-')) + 1 if last else 1:08d}"
