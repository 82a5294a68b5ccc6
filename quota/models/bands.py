"""Priority bands as rows (§2.5); `quota.bands` holds their meaning."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from quota.bands import Band
from quota.models.fields import DnsLabelField


class PriorityBand(models.Model):
    """A range of priorities, bounds included; ranges never overlap (an exclusion constraint holds it)."""

    name = DnsLabelField(_("name"), unique=True)
    low = models.PositiveIntegerField(_("lowest priority"))
    high = models.PositiveIntegerField(_("highest priority"))
    prod = models.BooleanField(_("prod"), help_text=_("Placed by limits, never in reclaimed resources."))
    preempts_within = models.BooleanField(_("preempts within the band"))

    class Meta:
        ordering = ["-low"]
        constraints = [models.CheckConstraint(condition=Q(low__lte=F("high")), name="band_low_to_high")]
        verbose_name = _("priority band")
        verbose_name_plural = _("priority bands")

    def __str__(self) -> str:
        return f"{self.name} {self.low}-{self.high}"

    def as_band(self) -> Band:
        return Band(self.name, self.low, self.high, self.prod, self.preempts_within)
