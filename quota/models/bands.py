"""Priority bands as rows (§2.5); `quota.vocabulary.bands` holds their meaning."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField
from quota.vocabulary.bands import Band


class PriorityBand(models.Model):
    """A range of priorities, bounds included; ranges never overlap (an exclusion constraint holds it).

    `price_milli`: what the base price is multiplied with, in thousandths. `oversell_milli`: how much of a cell's
    capacity may be sold at it, in thousandths; never above 1,000 for prod.
    """

    name = DnsLabelField(_("name"), unique=True)
    low = models.PositiveIntegerField(_("lowest priority"))
    high = models.PositiveIntegerField(_("highest priority"))
    prod = models.BooleanField(_("prod"), help_text=_("Placed by limits, never in reclaimed resources."))
    preempts_within = models.BooleanField(_("preempts within the band"))

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
