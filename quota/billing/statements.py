"""Functions that read the ledger, balances, budgets and invoices. They return only data of tenants whose money the
principal may see.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Exists, OuterRef, QuerySet

from quota.billing.budgets import spendings
from quota.billing.spending import Spending
from quota.models import Budget, Invoice, LedgerEntry, Posting, Tenant
from quota.selectors import tenant_named, tenants_visible
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may, require


def billed_tenants(principal: Principal) -> QuerySet[Tenant]:
    """Return the tenants whose money the principal may see. An SRE may see the money of all tenants. Other principals
    may see the money of tenants in which they are buyer or owner.
    """
    rows = tenants_visible(principal)
    if principal.sre:
        return rows
    return rows.filter(name__in=[name for name in principal.roles if may(principal, Action.BILLING_VIEW, tenant=name)])


def billed_tenant(principal: Principal, name: str) -> Tenant:
    """Return a tenant by name.

    Raises `NotFound` if the principal may not see the tenant, and `Forbidden` if it may see the tenant but not its
    money.
    """
    tenant = tenant_named(principal, name)
    require(principal, Action.BILLING_VIEW, tenant=tenant.name)
    return tenant


def postings(principal: Principal, *, tenant: str | None = None) -> QuerySet[Posting]:
    """Return the postings that change an account of a tenant whose money the principal may see.

    `tenant`: return only postings of this tenant. Entries, accounts and orders are loaded too.
    """
    rows = Posting.objects.select_related("tenant").prefetch_related("entries__account__tenant").order_by("-id")
    if tenant is not None:
        return rows.filter(_touches(Tenant.objects.filter(pk=billed_tenant(principal, tenant).pk)))
    if principal.sre and principal.tenant is None and may(principal, Action.BILLING_VIEW):
        return rows
    return rows.filter(_touches(billed_tenants(principal)))


def invoices(principal: Principal, *, tenant: str | None = None) -> QuerySet[Invoice]:
    """Return the invoices of closed months of the tenants whose money the principal may see."""
    rows = Invoice.objects.select_related("tenant").order_by("-id")
    if tenant is not None:
        return rows.filter(tenant=billed_tenant(principal, tenant))
    return rows.filter(tenant__in=billed_tenants(principal))


def invoice_numbered(principal: Principal, number: str) -> Invoice:
    """Return the invoice with this number.

    Raises `NotFound` if the principal is not a member of the tenant, and `Forbidden` if the principal is a member who
    may not see its money.
    """
    invoice = Invoice.objects.select_related("tenant").filter(number=number).first()
    if invoice is None or not may(principal, Action.TENANT_VIEW, tenant=invoice.tenant.name):
        raise NotFound("invoice", number)
    require(principal, Action.BILLING_VIEW, tenant=invoice.tenant.name)
    return invoice


@dataclass(frozen=True, slots=True)
class Statement:
    """A tenant's budget, and its balances and spending in the current month."""

    tenant: Tenant
    budget: Budget
    spending: Spending


def statements(tenants: list[Tenant]) -> list[Statement]:
    """Return the statements of tenants. Makes two queries."""
    budgets = {row.tenant_id: row for row in Budget.objects.filter(tenant__in=tenants)}
    found = spendings(tenants, budgets=budgets.values())
    return [Statement(tenant, budgets.get(tenant.pk) or Budget(tenant=tenant), found[tenant.pk]) for tenant in tenants]


def _touches(tenants: QuerySet[Tenant]) -> Exists:
    return Exists(LedgerEntry.objects.filter(posting=OuterRef("pk"), account__tenant__in=tenants))
