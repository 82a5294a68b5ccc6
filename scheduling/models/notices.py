"""How many evicted tasks received their full notice period before SIGKILL, and how many did not (§2.3)."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from scheduling.models.cells import Cell


class NoticeCount(models.Model):
    """The number of tasks that left their machines on one day (UTC), by `cause` and by `delivered`. `delivered`: how
    much of their notice period the tasks received: full, short, none or unknown.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="notice_counts")
    day = models.DateField(_("day"))
    cause = models.CharField(_("cause"), max_length=32)
    delivered = models.CharField(_("notice"), max_length=16)
    number = models.PositiveBigIntegerField(_("tasks"), default=0)

    class Meta:
        ordering = ["-day", "cause", "delivered"]
        constraints = [models.UniqueConstraint(fields=["cell", "day", "cause", "delivered"], name="one_notice_count")]
        verbose_name = _("notices given")
        verbose_name_plural = _("notices given")

    def __str__(self) -> str:
        return f"{self.day}: {self.number} × {self.delivered} ({self.cause})"
