"""Tables of the platform's journal: changes that belong to no cell, such as tenants, tokens, bands and quota."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Stream(models.Model):
    """The newest revision of the platform's journal. The table has one row. Each transaction that writes records locks
    this row.
    """

    name = models.CharField(max_length=32, unique=True)
    revision = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name} at {self.revision}"


class Record(models.Model):
    """A record of a change, append-only. Revisions follow the order of commits."""

    revision = models.BigIntegerField(unique=True)
    time = models.DateTimeField(_("time"))
    kind = models.CharField(_("kind of change"), max_length=64)
    version = models.PositiveSmallIntegerField(default=1)
    tenant = models.CharField(_("tenant"), max_length=63, blank=True)
    actor = models.CharField(_("actor"), max_length=200)
    request_id = models.CharField(_("request ID"), max_length=64, blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["revision"]
        indexes = [models.Index(fields=["tenant", "-revision"], name="record_by_tenant")]
        verbose_name = _("journal record")
        verbose_name_plural = _("journal records")

    def __str__(self) -> str:
        return f"{self.revision} {self.kind}"
