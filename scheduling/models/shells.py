"""What tasks and users do with tasks: shells that users opened in them (§2.5), and locks that tasks hold."""

from __future__ import annotations

import uuid

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant
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


class LockSession(models.Model):
    """A holder of locks. The row exists only while the session holds locks, or until others delete it after its end.

    `expires_at`: when its locks become free without a renewal, by the clock of PostgreSQL. A session of a task has the
    machine, and the UID of the job, index, incarnation and run. No foreign key checks them, so that ended tasks can be
    deleted. A session of a user has none, and its owner renews it with `uid`. `key`: the idempotency key with which a
    user began it.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    cell = models.ForeignKey(Cell, models.CASCADE, related_name="lock_sessions", db_index=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="lock_sessions")
    owner = models.CharField(_("owner"), max_length=200)  # a user, or job/index of a task
    lease_s = models.FloatField(_("lease, s"))
    expires_at = models.DateTimeField(_("ends"))
    machine = models.BigIntegerField(null=True, blank=True)
    job = models.UUIDField(null=True, blank=True)
    index = models.PositiveIntegerField(null=True, blank=True)
    incarnation = models.PositiveIntegerField(null=True, blank=True)
    run = models.PositiveIntegerField(null=True, blank=True)
    key = models.CharField(max_length=64, blank=True, default="", db_default="")

    class Meta:
        indexes = [models.Index(fields=["machine"], name="lock_session_by_machine", condition=Q(machine__isnull=False))]
        constraints = [
            models.UniqueConstraint(fields=["job", "index", "incarnation", "run"], name="one_lock_session_per_run"),
            models.UniqueConstraint(
                fields=["cell", "tenant", "owner", "key"], name="one_lock_session_per_key", condition=~Q(key="")
            ),
        ]
        verbose_name = _("session of locks")
        verbose_name_plural = _("sessions of locks")

    def __str__(self) -> str:
        return f"{self.owner} until {self.expires_at:%F %T}"


class LockFile(models.Model):
    """A lock of a tenant in a cell, with a small text that programs watch.

    `sequence`: the number of changes of the content; deletion is one. `token`: the fencing token of the last
    acquisition. `session`: the id of the session that has acquired it. The lock is held while that session exists and
    has not expired. The row of a deleted lock (`deleted_at`) keeps its numbers for some time.
    """

    cell = models.ForeignKey(Cell, models.CASCADE, related_name="locks", db_index=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="locks")
    name = models.CharField(_("name"), max_length=200, db_collation="C")
    content = models.TextField(_("content"), blank=True, default="")
    sequence = models.BigIntegerField(_("sequence number"), default=0)
    changed_by = models.CharField(_("changed by"), max_length=200)
    changed_at = models.DateTimeField(_("changed"))
    token = models.BigIntegerField(_("fencing token"), default=0)
    session = models.BigIntegerField(null=True, blank=True)
    acquired_at = models.DateTimeField(_("acquired"), null=True, blank=True)
    deleted_at = models.DateTimeField(_("deleted"), null=True, blank=True)

    class Meta:
        ordering = ["cell", "tenant", "name"]
        indexes = [models.Index(fields=["session"], name="lock_by_session", condition=Q(session__isnull=False))]
        constraints = [models.UniqueConstraint(fields=["cell", "tenant", "name"], name="one_lock_per_name")]
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return f"{self.cell}/{self.tenant}/{self.name}"
