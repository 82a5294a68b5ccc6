"""Tables of money: a double-entry ledger in micro-credits, budgets, metered usage, and invoices."""

from __future__ import annotations

from enum import StrEnum

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, WideVectorField
from quota.models.quota import PriorityBand
from quota.models.tenants import Tenant


class AccountKind(StrEnum):
    """The kinds of accounts.

    All tenants share two accounts: `treasury` issues credits, so its balance is negative; `revenue` receives charges.
    Each tenant has three accounts: `available`, money that it may spend; `held`, money reserved for orders; `owed`,
    unpaid usage, as a negative balance.
    """

    TREASURY = "treasury"
    REVENUE = "revenue"
    AVAILABLE = "available"
    HELD = "held"
    OWED = "owed"


class Account(models.Model):
    """An account with its balance in micro-credits. Each posting locks the row and updates the balance."""

    kind = models.CharField(
        _("kind of account"), max_length=16, choices=[(kind.value, kind.value) for kind in AccountKind]
    )
    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="accounts")
    balance = models.BigIntegerField(_("balance"), default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "tenant"], nulls_distinct=False, name="one_account_per_kind_and_tenant"
            ),
            models.CheckConstraint(
                condition=Q(kind__in=["treasury", "owed", "available"]) | Q(balance__gte=0),
                name="held_and_revenue_never_negative",
            ),
            models.CheckConstraint(condition=~Q(kind="owed") | Q(balance__lte=0), name="owed_never_positive"),
        ]
        verbose_name = _("ledger account")
        verbose_name_plural = _("ledger accounts")

    def __str__(self) -> str:
        return f"{self.kind} of {self.tenant}" if self.tenant_id else self.kind


class Posting(models.Model):
    """One movement of money.

    Append-only: rows never change. A database trigger checks that the amounts of a posting's entries add up to zero.
    `kind`: budget, hold, unhold, charge, refund, usage, credit, settle or transfer. `occurred_at`: decides the month of
    the invoice.
    """

    kind = models.CharField(_("kind of posting"), max_length=16)
    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="postings")
    order = models.ForeignKey("quota.Order", models.PROTECT, null=True, blank=True, related_name="postings")
    text = models.CharField(_("description"), max_length=300)
    actor = models.CharField(_("actor"), max_length=200)
    request_id = models.CharField(_("request ID"), max_length=64, blank=True)
    occurred_at = models.DateTimeField(_("time"))
    key = models.CharField(max_length=100, blank=True)  # unique for postings that may occur only once

    class Meta:
        ordering = ["-id"]
        indexes = [models.Index(fields=["tenant", "occurred_at"], name="posting_by_tenant")]
        constraints = [models.UniqueConstraint(fields=["key"], condition=~Q(key=""), name="posting_once_per_key")]
        verbose_name = _("ledger posting")
        verbose_name_plural = _("ledger postings")

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class LedgerEntry(models.Model):
    """One side of a posting: it adds `amount` in micro-credits to the balance of one account. Append-only."""

    posting = models.ForeignKey(Posting, models.PROTECT, related_name="entries")
    account = models.ForeignKey(Account, models.PROTECT, related_name="entries")
    amount = models.BigIntegerField(_("amount"))

    class Meta:
        ordering = ["id"]
        constraints = [models.CheckConstraint(condition=~Q(amount=0), name="entry_never_zero")]
        verbose_name = _("ledger entry")
        verbose_name_plural = _("ledger entries")

    def __str__(self) -> str:
        return f"{self.amount} to {self.account}"


class Budget(models.Model):
    """Rules for the spending of a tenant. Amounts are in micro-credits.

    `monthly`: the limit per calendar month; None for all available money. `alerts`: percentages of the limit at which
    notices are sent. `action`: what happens when 100 % is reached: `none`, `stop-buying`, `stop-submitting`, or
    `drop`, which demotes running jobs with charged usage to the free priority. `overdraft`: how far available money
    may go below zero.
    """

    tenant = models.OneToOneField(Tenant, models.CASCADE, related_name="budget")
    monthly = models.BigIntegerField(_("limit per month"), null=True, blank=True)
    alerts = models.JSONField(_("alert thresholds"), default=list)
    action = models.CharField(
        _("action when the budget is used up"),
        max_length=16,
        default="none",
        choices=[
            ("none", _("do nothing")),
            ("stop-buying", _("reject new orders")),
            ("stop-submitting", _("reject new orders and jobs")),
            ("drop", _("demote jobs to the free priority")),
        ],
    )
    overdraft = models.BigIntegerField(_("overdraft limit"), default=0)
    told = models.JSONField(default=dict)  # the highest alert that was sent, by month
    exhausted_at = models.DateTimeField(_("budget used up since"), null=True, blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(overdraft__gte=0), name="overdraft_never_negative")]
        verbose_name = _("budget")
        verbose_name_plural = _("budgets")

    def __str__(self) -> str:
        return f"budget of {self.tenant}"


class MeteredHour(models.Model):
    """Requests, reservations and usage of one job in one hour, as reported by scheduling.

    Vectors are in unit·seconds. A row is kept after its job has ended. `price`: the cost of the usage, or 0 if usage
    has no price. `posting`: the posting that charged the usage.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, db_index=False, related_name="metered")
    cell = DnsLabelField(_("cell"))
    # None: the free priority
    band = models.ForeignKey(PriorityBand, models.PROTECT, null=True, db_index=False, related_name="+")
    job_uid = models.CharField(_("job UID"), max_length=32)
    job = models.CharField(_("job"), max_length=63)
    labels = models.JSONField(_("job labels"), default=dict)
    hour = models.DateTimeField(_("hour"))
    limit = WideVectorField(_("requested resources"))
    reserved = WideVectorField(_("reserved resources"))
    used = WideVectorField(_("used resources"))
    price = models.BigIntegerField(_("price of the usage"), default=0)
    posting = models.ForeignKey(Posting, models.PROTECT, null=True, blank=True, db_index=False, related_name="metered")

    class Meta:
        ordering = ["hour", "id"]
        indexes = [
            models.Index(fields=["tenant", "hour"], name="metered_by_tenant"),
            models.Index(fields=["posting"], condition=Q(posting__isnull=False), name="metered_by_posting"),
            models.Index(
                fields=["tenant", "cell", "hour"], name="metered_to_charge", condition=Q(posting=None, price__gt=0)
            ),
        ]
        constraints = [
            # In the order of time: the archiver finds old hours, and new rows are at the end, so pages stay full.
            models.UniqueConstraint(
                fields=["cell", "hour", "job_uid", "band"], nulls_distinct=False, name="metered_once_per_hour"
            )
        ]
        verbose_name = _("metered hour")
        verbose_name_plural = _("metered hours")

    def __str__(self) -> str:
        return f"{self.job} at {self.hour:%F %H}h"


class Invoice(models.Model):
    """A closed month of a tenant. Its lines are the postings between `begins_at` and `ends_at`.

    `lines`: the lines as JSON, which never change. `charged`, `refunded`, `total`: micro-credits, calculated from these
    postings.
    """

    number = models.CharField(_("invoice number"), max_length=32, unique=True)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="invoices")
    month = models.DateField(_("month"))  # its first day
    time_zone = models.CharField(_("time zone"), max_length=64)
    begins_at = models.DateTimeField(_("period begins at"))
    ends_at = models.DateTimeField(_("period ends at"))
    lines = models.JSONField(_("invoice lines"), default=list)
    charged = models.BigIntegerField(_("credits charged"))
    refunded = models.BigIntegerField(_("credits refunded"))
    total = models.BigIntegerField(_("total credits"))
    issued_at = models.DateTimeField(_("created at"))

    class Meta:
        ordering = ["-month", "tenant"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "month"], name="one_invoice_a_month"),
            models.CheckConstraint(condition=Q(total=F("charged") - F("refunded")), name="invoice_adds_up"),
        ]
        verbose_name = _("invoice")
        verbose_name_plural = _("invoices")

    def __str__(self) -> str:
        return self.number
