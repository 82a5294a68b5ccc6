"""Saved SQL queries (`scheduling.history.infrastore`)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant


class SavedQuery(models.Model):
    """A query that a person saved. `owner`: the name of the person. `tenant`: the tenant whose members may use the
    query too; None if it is not shared.
    """

    owner = models.CharField(_("owner"), max_length=200)
    tenant = models.ForeignKey(
        Tenant, models.CASCADE, null=True, blank=True, related_name="saved_queries", verbose_name=_("shared with")
    )
    title = models.CharField(_("title"), max_length=100)
    query = models.TextField(_("query"))
    changed_at = models.DateTimeField(_("changed"))

    class Meta:
        ordering = ["title", "id"]
        constraints = [
            models.UniqueConstraint(fields=["owner", "title"], name="one_query_per_title"),
            models.CheckConstraint(condition=~Q(title=""), name="query_has_title"),
        ]
        verbose_name = _("saved query")
        verbose_name_plural = _("saved queries")

    def __str__(self) -> str:
        return str(self.title)
