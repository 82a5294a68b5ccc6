"""Machines (§2.2)."""

from __future__ import annotations

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField, VectorField, never_negative
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.models.cells import Cell

REMOVED = "removed"


class Machine(models.Model):
    """A machine and its Borglet. The time of the machine's last report is in Redis, not in a column.

    `session`: the number of the Borglet's newest connection; messages of older connections are ignored.
    `secret_digest`: digest of the secret with which the Borglet connects. `next_digest`: digest of the next secret;
    the old and the next secret are valid until the machine uses the next secret. `authority`: digest of the
    certificates of the TLS authorities that the Borglet trusts. `quarantined`: incarnations that the Borglet runs and
    that this database does not contain. `kept`: the capacity that the folders of ended allocs still use (`KeptAlloc`);
    the scheduler does not use this capacity. `packages`: digests of the installed packages. `granted`: the capacity
    that was accepted before the Borglet reported less; empty if it has not reported less.
    """

    cell = models.ForeignKey(Cell, models.PROTECT, related_name="machines", db_index=False)
    hostname = DnsLabelField(_("hostname"))
    address = models.GenericIPAddressField(_("address"))
    capacity = VectorField(_("capacity"))
    granted = VectorField(_("capacity accepted earlier"), default=list, db_default=[], blank=True)
    kept = VectorField(_("used by files of ended allocs"), default=list, db_default=[], blank=True)
    attributes = models.JSONField(_("attributes"), default=dict, blank=True)
    platform = models.CharField(_("platform"), max_length=63, blank=True)
    rack = models.CharField(_("rack"), max_length=63, blank=True)
    power_domain = models.CharField(_("power domain"), max_length=63, blank=True)
    port_low = models.PositiveIntegerField(default=20000)
    port_high = models.PositiveIntegerField(default=29999)
    state = models.CharField(
        _("state"),
        max_length=16,
        default=MachineStatus.UP.value,
        choices=[(state.value, state.value) for state in MachineStatus] + [(REMOVED, REMOVED)],
    )
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    state_since = models.DateTimeField(_("in this state since"), default=timezone.now)
    secret_digest = models.CharField(max_length=64, blank=True)
    next_digest = models.CharField(max_length=64, blank=True, default="", db_default="")
    secret_at = models.DateTimeField(_("secret issued"), null=True, blank=True)
    rotation_asked = models.BooleanField(_("new secret requested"), default=False, db_default=False)
    authority = models.CharField(
        _("digest of the trusted TLS authorities"), max_length=64, blank=True, default="", db_default=""
    )
    session = models.BigIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True)
    software = models.CharField(_("Borglet version"), max_length=64, blank=True)
    quarantined = models.JSONField(_("unknown tasks in quarantine"), default=list, blank=True)
    packages = ArrayField(models.CharField(max_length=71), default=list, db_default=[], blank=True)
    joined_at = models.DateTimeField(_("joined"), auto_now_add=True)

    class Meta:
        ordering = ["cell", "hostname"]
        # Pages and the master count machines. With this index they do not read the rows, which are wide.
        indexes = [models.Index(fields=["cell", "state", "rack"], name="machine_by_state")]
        constraints = [
            models.UniqueConstraint(fields=["cell", "hostname"], name="one_machine_per_hostname"),
            never_negative("capacity", "capacity_never_negative"),
            models.CheckConstraint(
                condition=Q(port_low__gte=1, port_high__lte=65535, port_low__lte=F("port_high")), name="ports_in_range"
            ),
        ]
        verbose_name = _("machine")
        verbose_name_plural = _("machines")

    def __str__(self) -> str:
        return str(self.hostname)


class Drain(models.Model):
    """The drain of a machine. It ends only when an SRE ends it, not when the machine goes down or joins again.

    `tasks`: the number of tasks on the machine when the drain began. `break_budgets`: after the deadline, tasks are
    evicted in spite of the disruption budgets of their jobs.
    """

    machine = models.OneToOneField(Machine, models.CASCADE, related_name="drain", verbose_name=_("machine"))
    reason = models.CharField(_("reason"), max_length=300, blank=True)
    asked_by = models.CharField(_("requested by"), max_length=200)
    began_at = models.DateTimeField(_("began"))
    deadline = models.DateTimeField(_("deadline"), null=True, blank=True)
    break_budgets = models.BooleanField(_("at the deadline, evict despite disruption budgets"), default=False)
    tasks = models.PositiveIntegerField(_("tasks when the drain began"), default=0)

    class Meta:
        ordering = ["machine"]
        verbose_name = _("drain")
        verbose_name_plural = _("drains")

    def __str__(self) -> str:
        return f"drain of {self.machine}"
