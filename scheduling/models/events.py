"""The events of the journal (`scheduling.journal.journal`). An event never changes."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Event(models.Model):
    """An event of a cell's journal. The primary key of the table is (cell, revision, seq).

    References to other objects are plain ids, not foreign keys, because events stay when the objects are deleted.
    """

    id = models.BigAutoField(primary_key=True)
    cell_id = models.BigIntegerField()
    revision = models.BigIntegerField(_("revision"))
    seq = models.IntegerField(_("number within the revision"))
    time = models.DateTimeField(_("time"))
    kind = models.CharField(_("kind of event"), max_length=64)
    version = models.SmallIntegerField(default=1)
    job_id = models.BigIntegerField(null=True)
    task_index = models.IntegerField(_("task index"), null=True)
    machine_id = models.BigIntegerField(null=True)
    actor = models.CharField(_("actor"), max_length=200)
    request_id = models.CharField(_("id of the request"), max_length=64, blank=True)
    caused_by_revision = models.BigIntegerField(null=True)
    caused_by_seq = models.IntegerField(null=True)
    data = models.JSONField()

    class Meta:
        ordering = ["cell_id", "revision", "seq"]
        verbose_name = _("event")
        verbose_name_plural = _("events")

    def __str__(self) -> str:
        return f"{self.revision}.{self.seq} {self.kind}"
