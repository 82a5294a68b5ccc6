"""The shells that users opened in tasks (§2.5): which user, in which task, when, and for how long."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from scheduling.models.cells import Cell
from scheduling.models.jobs import Job
from scheduling.models.machines import Machine


class ShellSession(models.Model):
    """A shell in a task. Its states: asked, granted (signed and sent to the machine), open, closed. It can become
    closed from each other state.

    `seen_at`: when the portal last reported that the client is connected. Input and output are not stored.
    """

    ASKED, GRANTED, OPEN, CLOSED = "asked", "granted", "open", "closed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    cell = models.ForeignKey(Cell, models.PROTECT, related_name="shells")
    job = models.ForeignKey(Job, models.PROTECT, related_name="shells")
    task_index = models.PositiveIntegerField(_("task"))
    incarnation = models.PositiveIntegerField(_("incarnation"))
    machine = models.ForeignKey(Machine, models.PROTECT, related_name="shells")
    actor = models.CharField(_("by"), max_length=200)
    peer = models.CharField(_("address of the client"), max_length=64, blank=True)
    request_id = models.CharField(_("id of the request"), max_length=64, blank=True)
    command = models.JSONField(_("command"), default=list, blank=True)
    rows = models.PositiveSmallIntegerField(default=24)
    cols = models.PositiveSmallIntegerField(default=80)
    plain = models.BooleanField(default=False)
    state = models.CharField(
        _("state"), max_length=16, default=ASKED, choices=[(s, s) for s in (ASKED, GRANTED, OPEN, CLOSED)]
    )
    asked_at = models.DateTimeField(_("requested"))
    seen_at = models.DateTimeField(_("client last seen"))
    closed_at = models.DateTimeField(_("closed"), null=True, blank=True)
    how = models.CharField(_("how the shell ended"), max_length=300, blank=True)
    bytes_typed = models.PositiveBigIntegerField(_("bytes typed"), default=0)
    bytes_printed = models.PositiveBigIntegerField(_("bytes printed"), default=0)

    class Meta:
        ordering = ["-asked_at"]
        indexes = [
            models.Index(fields=["cell", "actor"], name="shell_not_closed", condition=~Q(state="closed")),
            models.Index(fields=["-asked_at"], name="shell_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state="closed", closed_at__isnull=False) | (~Q(state="closed") & Q(closed_at__isnull=True)),
                name="shell_closed_has_its_time",
            )
        ]
        verbose_name = _("shell")
        verbose_name_plural = _("shells")

    def __str__(self) -> str:
        return f"{self.actor} in {self.job}/{self.task_index}"
