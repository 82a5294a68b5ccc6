"""Amounts of a cell's resources per hour: sold, requested, reserved and used amounts, for capacity planning."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.fields import VectorField
from scheduling.models.cells import Cell


class CapacitySample(models.Model):
    """The mean amounts of resources in one hour, for one priority band of a cell or, if `band` is empty, for the whole
    cell. `samples`: the number of samples.

    The amounts are vectors over `quota.vocabulary.resources.AXIS`. Only the row of the whole cell has `capacity` (of
    machines that are up) and `stranded` (free capacity that would remain if tasks of a typical size filled each
    machine). `sold`: grants of quota within capacity, and orders for which capacity is held. `granted`: all grants of
    quota in force, including grants beyond capacity. `asked`: the limits of live jobs. `limit`, `reserved`, `used`: the
    amounts of running tasks.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="capacity_samples", verbose_name=_("cell"))
    band = models.CharField(_("band"), max_length=63, blank=True)
    hour = models.DateTimeField(_("hour"))
    samples = models.PositiveIntegerField(_("number of samples"), default=1)
    sampled_at = models.DateTimeField(_("time of the last sample"))
    capacity = VectorField(_("capacity"))
    sold = VectorField(_("sold quota"))
    granted = VectorField(_("granted quota"))
    asked = VectorField(_("requested by jobs"))
    limit = VectorField(_("limits of running tasks"))
    reserved = VectorField(_("reservations of running tasks"))
    used = VectorField(_("used by running tasks"))
    stranded = VectorField(_("stranded capacity"))

    class Meta:
        ordering = ["-hour", "cell", "band"]
        constraints = [models.UniqueConstraint(fields=["cell", "band", "hour"], name="one_sample_per_cell_band_hour")]
        indexes = [models.Index(fields=["hour"], name="capacity_sample_by_hour")]
        verbose_name = _("capacity sample")
        verbose_name_plural = _("capacity samples")

    def __str__(self) -> str:
        return f"{self.cell}/{self.band} at {self.hour:%F %H}h"
