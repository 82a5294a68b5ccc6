"""Tables of the market: selling rules of cells, approval rules, and shortfalls (sold quota that exceeds capacity)."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, VectorField
from quota.models.quota import PriorityBand
from quota.models.tenants import Tenant


class Market(models.Model):
    """The selling rules of one cell. Every sale locks this row, so sales in one cell wait for each other.

    `headroom_milli`: the part of the capacity that is never sold to prod, in thousandths. `grace_hours`: how long jobs
    may still use quota after it has ended. `after_grace`: what happens after the grace period if jobs exceed the quota:
    `refuse` only rejects new jobs; `drop` also demotes jobs to the free priority, `drop_after_hours` later.
    `quote_minutes`: how long a quote is valid. `approval_hours`: after this time, an order without a decision is
    cancelled.
    """

    cell = DnsLabelField(_("cell"), unique=True)
    selling = models.BooleanField(_("sells quota"), default=True)
    headroom_milli = models.PositiveIntegerField(_("share never sold to prod"), default=50)
    grace_hours = models.PositiveIntegerField(_("grace period after quota ends, in hours"), default=72)
    after_grace = models.CharField(
        _("action after the grace period"),
        max_length=16,
        default="refuse",
        choices=[("refuse", _("reject new jobs")), ("drop", _("demote jobs to the free priority"))],
    )
    drop_after_hours = models.PositiveIntegerField(_("hours until jobs are demoted"), default=72)
    quote_minutes = models.PositiveIntegerField(_("validity of quotes in minutes"), default=60)
    approval_hours = models.PositiveIntegerField(_("time limit for approvals in hours"), default=168)
    longest_days = models.PositiveIntegerField(_("longest order in days"), default=366)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(headroom_milli__lte=1000), name="headroom_at_most_all")]
        verbose_name = _("market of a cell")
        verbose_name_plural = _("markets of cells")

    def __str__(self) -> str:
        return str(self.cell)


class ApprovalRule(models.Model):
    """A rule that says who approves an order.

    The matching rule with the lowest `rank` applies. If no rule matches, an SRE approves the order. Empty fields
    match all orders. `most_price`: the maximum price of matching orders, in micro-credits.
    """

    rank = models.PositiveIntegerField(_("rank (lowest first)"), unique=True)
    cell = models.CharField(_("cell"), max_length=63, blank=True)
    band = models.ForeignKey(PriorityBand, models.CASCADE, null=True, blank=True, related_name="+")
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="+")
    most_price = models.BigIntegerField(_("maximum price"), null=True, blank=True)
    approver = models.CharField(
        _("approval"),
        max_length=8,
        choices=[
            ("auto", _("approved automatically")),
            ("owner", _("by an owner of the tenant")),
            ("sre", _("by an SRE")),
        ],
    )

    class Meta:
        ordering = ["rank"]
        verbose_name = _("approval rule")
        verbose_name_plural = _("approval rules")

    def __str__(self) -> str:
        return f"{self.rank}: {self.approver}"


class Shortfall(models.Model):
    """A period in which the sold prod quota exceeds the capacity of the cell. The shortfall is open until `closed_at`.

    `short`: the largest missing amount of each resource in the period. `orders`: ids of the affected orders; `tenants`:
    names of the affected tenants.
    """

    cell = DnsLabelField(_("cell"))
    begins_at = models.DateTimeField(_("begins at"))
    ends_at = models.DateTimeField(_("ends at"), null=True, blank=True)
    short = VectorField(_("missing capacity"))
    orders = models.JSONField(_("affected orders"), default=list)
    tenants = models.JSONField(_("affected tenants"), default=list)
    found_at = models.DateTimeField(_("found at"))
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)

    class Meta:
        ordering = ["-found_at", "begins_at"]
        constraints = [
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("begins_at")), name="shortfall_forward"
            )
        ]
        verbose_name = _("capacity shortfall")
        verbose_name_plural = _("capacity shortfalls")

    def __str__(self) -> str:
        return f"{self.cell} from {self.begins_at:%F %T}"
