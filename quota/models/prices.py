"""Tables of price lists, which never change, and of quotes, which are valid for a limited time."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, VectorField
from quota.models.quota import PriorityBand
from quota.models.tenants import Tenant


class PriceList(models.Model):
    """One version of a cell's prices, in force from `valid_from` until the next version. Append-only.

    `base`: micro-credits per unit and hour by resource name (core, GiB of RAM, GiB of disk, GiB/s of disk bandwidth,
    accelerator); a resource without a price is free. `usage`: prices of metered usage in the same form; the usage of a
    resource without a price is not charged. `curve`: the scarcity factor as a function of the sold share: `[[share in
    thousandths, factor in thousandths], …]` with rising shares. The factor is linear between points.
    """

    cell = DnsLabelField(_("cell"))
    version = models.PositiveIntegerField(_("version"))
    base = models.JSONField(_("prices of quota"), default=dict)
    usage = models.JSONField(_("prices of usage"), default=dict)
    curve = models.JSONField(_("price factors by sold share"), default=list)
    valid_from = models.DateTimeField(_("valid from"))
    note = models.CharField(_("note"), max_length=200, blank=True)
    created_by = models.CharField(_("created by"), max_length=150)
    created_at = models.DateTimeField(_("created at"))

    class Meta:
        ordering = ["cell", "-version"]
        constraints = [models.UniqueConstraint(fields=["cell", "version"], name="one_price_list_per_version")]
        verbose_name = _("price list")
        verbose_name_plural = _("price lists")

    def __str__(self) -> str:
        return f"{self.cell} v{self.version}"


class Quote(models.Model):
    """A price for exactly one order, valid until `valid_until`. `parts`: the price by resource."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="quotes")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.PROTECT, related_name="+")
    amounts = VectorField(_("resource amounts"))
    starts_at = models.DateTimeField(_("starts at"))
    ends_at = models.DateTimeField(_("ends at"))
    price = models.BigIntegerField(_("price"))
    parts = models.JSONField(_("price by resource"), default=list)
    prices = models.ForeignKey(PriceList, models.PROTECT, related_name="quotes", verbose_name=_("price list"))
    made_by = models.CharField(_("requested by"), max_length=200)
    created_at = models.DateTimeField(_("created at"))
    valid_until = models.DateTimeField(_("valid until"))

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="quote_period_forward"),
            models.CheckConstraint(condition=Q(price__gte=0), name="quote_never_negative"),
        ]
        verbose_name = _("quote")
        verbose_name_plural = _("quotes")

    def __str__(self) -> str:
        return f"quote {self.pk} for {self.tenant}"
