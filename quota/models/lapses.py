"""Quota that is over while jobs still ask for it."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.bands import PriorityBand
from quota.models.fields import DnsLabelField
from quota.models.tenants import Tenant


class Lapse(models.Model):
    """A tenant's live jobs ask for more than it has bought; gone once they don't.

    `over_at`: since when they ask for more than still counts, which ends the grace; none during it.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="lapses")
    cell = DnsLabelField(_("cell"))
    band = models.ForeignKey(PriorityBand, models.CASCADE, related_name="+")
    began_at = models.DateTimeField(_("from"))
    over_at = models.DateTimeField(_("grace over"), null=True, blank=True)

    class Meta:
        ordering = ["began_at", "id"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "cell", "band"], name="one_lapse_per_tenant_cell_band")
        ]
        verbose_name = _("lapse of quota")
        verbose_name_plural = _("lapses of quota")

    def __str__(self) -> str:
        return f"{self.tenant} at {self.band.name} in {self.cell}"
