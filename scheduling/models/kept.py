"""Kept allocs: ended allocs whose folder stays on the machine until the logs in it are saved (§4)."""

from __future__ import annotations

import uuid

from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.fields import VectorField
from scheduling.models.machines import Machine


class KeptAlloc(models.Model):
    """The folder of an ended alloc, which stays on the machine until its logs are saved or a time limit ends. Log
    savers are tasks that run in the folder and save the logs.

    `key`, `name`: key and name of the alloc's incarnation. `hold`: the capacity of the machine that is still in use:
    the disk of the alloc, and the requests of the log savers. `savers`: the log savers; number i of this list runs as
    the task with the key (`uid`, i, 1). `waits`: the incarnations inside the alloc that must end before the log savers
    start. `released`: the folder is no longer needed, but the Borglet has not deleted it yet.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    machine = models.ForeignKey(Machine, models.CASCADE, related_name="kept_allocs")
    job_id = models.BigIntegerField()
    index = models.PositiveIntegerField()
    incarnation = models.PositiveIntegerField()
    key = models.CharField(max_length=80)
    name = models.CharField(_("alloc"), max_length=300)
    limit = VectorField(_("limit of the alloc"))
    hold = VectorField(_("capacity in use"))
    savers = models.JSONField(_("tasks that save the logs"), default=list)
    waits = models.JSONField(default=list)
    since = models.DateTimeField(_("kept since"))
    until = models.DateTimeField(_("kept until"))
    released = models.BooleanField(_("files no longer needed"), default=False)

    class Meta:
        ordering = ["machine", "since"]
        constraints = [models.UniqueConstraint(fields=["machine", "key"], name="one_kept_alloc")]
        verbose_name = _("ended alloc with kept files")
        verbose_name_plural = _("ended allocs with kept files")

    def __str__(self) -> str:
        return f"{self.name} on {self.machine}"
