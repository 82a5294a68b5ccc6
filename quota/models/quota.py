"""Tables of priority bands and of quota (§2.5).

Quota is the amounts of resources that a tenant's jobs may request at a band in a cell for a period.

The package `quota` identifies a cell by its name. Scheduling reports the capacity of cells to `CellCapacity`.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, VectorField, never_negative
from quota.models.tenants import Tenant
from quota.vocabulary.bands import Band


class PriorityBand(models.Model):
    """A range of priorities, from the lowest to the highest, both included. Two bands never overlap.

    `price_milli`: the factor of the base price, in thousandths. `oversell_milli`: the share of a cell's capacity that
    may be sold at the band, in thousandths; at most 1,000 for prod.
    """

    name = DnsLabelField(_("name"), unique=True)
    low = models.PositiveIntegerField(_("lowest priority"))
    high = models.PositiveIntegerField(_("highest priority"))
    prod = models.BooleanField(
        _("prod band"),
        help_text=_("The scheduler places tasks of this band by their limits, never in reclaimed resources."),
    )
    preempts_within = models.BooleanField(_("preemption within the band"))

    price_milli = models.PositiveIntegerField(_("price factor"), default=1000, db_default=1000)
    oversell_milli = models.PositiveIntegerField(_("over-selling factor"), default=1000, db_default=1000)

    class Meta:
        ordering = ["-low"]
        constraints = [
            models.CheckConstraint(condition=Q(low__lte=F("high")), name="band_low_to_high"),
            models.CheckConstraint(condition=Q(prod=False) | Q(oversell_milli__lte=1000), name="prod_never_oversold"),
        ]
        verbose_name = _("priority band")
        verbose_name_plural = _("priority bands")

    def __str__(self) -> str:
        return f"{self.name} {self.low}-{self.high}"

    def as_band(self) -> Band:
        return Band(self.name, self.low, self.high, self.prod, self.preempts_within)


class Quota(models.Model):
    """A grant of quota to a tenant at a band in a cell.

    The tenant's live jobs in the band and cell may together request the sum of the grants in force. `order`: the order
    of this grant; None if an SRE granted it. `grace_until`: the end of the grace period; until then, jobs may use the
    grant, and it counts as sold. `beyond_capacity`: true if an SRE made the grant for trials; such a grant does not
    count as sold.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="quotas")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.PROTECT, related_name="quotas")
    amounts = VectorField(_("resource amounts"))
    starts_at = models.DateTimeField(_("starts at"))
    ends_at = models.DateTimeField(_("ends at"), null=True, blank=True)
    grace_until = models.DateTimeField(_("grace period ends at"), null=True, blank=True)
    beyond_capacity = models.BooleanField(_("may exceed the cell's capacity"), default=False, db_default=False)
    order = models.ForeignKey(
        "quota.Order", models.PROTECT, null=True, blank=True, related_name="grants", verbose_name=_("order")
    )
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["tenant", "cell", "-starts_at"]
        indexes = [
            models.Index(fields=["tenant", "cell", "band"], name="quota_by_tenant"),
            models.Index(fields=["cell", "grace_until", "starts_at"], name="quota_by_time"),
        ]
        constraints = [
            never_negative("amounts", "quota_never_negative"),
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")), name="quota_period_forward"
            ),
            models.CheckConstraint(
                condition=Q(ends_at__isnull=True, grace_until__isnull=True) | Q(grace_until__gte=F("ends_at")),
                name="quota_grace_after_end",
            ),
        ]
        verbose_name = _("quota")
        verbose_name_plural = _("quota")

    def __str__(self) -> str:
        return f"{self.tenant} at {self.band.name} in {self.cell}"


class QuotaUse(models.Model):
    """The sum of what a tenant's live jobs at a band in a cell request. Each transaction that admits or ends a job
    updates the sum.

    Admission locks this row, so submissions of one tenant at one band in one cell wait for each other.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="uses")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.PROTECT, related_name="uses")
    used = VectorField(_("quota in use"))

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "cell", "band"], name="one_use_per_tenant_cell_band"),
            never_negative("used", "use_never_negative"),
        ]
        verbose_name = _("quota in use")
        verbose_name_plural = _("quota in use")

    def __str__(self) -> str:
        return f"{self.tenant} at {self.band.name} in {self.cell}"


class QuotaExpiry(models.Model):
    """Quota that has ended although the tenant's live jobs still need it. The row is deleted once the jobs fit the
    remaining quota.

    `over_at`: when the grace period ended. Since that time, the jobs request more than the tenant's remaining quota.
    `over_at` is None during the grace period.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="quota_expiries")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.CASCADE, related_name="+")
    began_at = models.DateTimeField(_("expired at"))
    over_at = models.DateTimeField(_("grace period ended at"), null=True, blank=True)

    class Meta:
        db_table = "quota_lapse"
        ordering = ["began_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "cell", "band"], name="one_lapse_per_tenant_cell_band")
        ]
        verbose_name = _("expired quota")
        verbose_name_plural = _("expired quota")

    def __str__(self) -> str:
        return f"{self.tenant} at {self.band.name} in {self.cell}"


class CellCapacity(models.Model):
    """The capacity of a cell, reported by scheduling inside its own transactions.

    `lowered`: true if the capacity has decreased and `quota.market.shortfalls` has not yet compared it with sold quota.
    """

    cell = DnsLabelField(_("cell"), unique=True)
    capacity = VectorField(_("capacity"))
    revision = models.BigIntegerField(_("revision of the cell's journal"))
    lowered = models.BooleanField(_("capacity has decreased"), default=False, db_default=False)

    class Meta:
        verbose_name = _("capacity of a cell")
        verbose_name_plural = _("capacity of cells")

    def __str__(self) -> str:
        return str(self.cell)
