"""Tenants, their members, and special privileges (§2.5)."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField
from quota.permissions import CapabilityKind, Role


class Tenant(models.Model):
    """Who owns jobs and quota. The name is part of every DNS name of its tasks and never changes.

    `task_api`: the most that its tasks may do with the REST API; each job asks for what it needs.
    """

    name = DnsLabelField(_("name"), unique=True)
    title = models.CharField(_("title"), max_length=200, blank=True)
    contact = models.EmailField(_("contact"), blank=True)
    max_jobs = models.PositiveIntegerField(_("live jobs at most"), default=10_000)
    task_api = models.CharField(
        _("tasks may"),
        max_length=16,
        default="submit",
        db_default="submit",
        choices=[("none", _("not call the API")), ("read", _("read")), ("submit", _("submit jobs"))],
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """What a user may do for a tenant."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(_("role"), max_length=16, choices=[(role.value, role.value) for role in Role])

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="one_role_per_member")]
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.tenant}"


class Capability(models.Model):
    """A privilege beyond roles, such as deleting any job of a cell. `cell` empty: in every cell."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="capabilities")
    kind = models.CharField(_("kind"), max_length=32, choices=[(k.value, k.value) for k in CapabilityKind])
    cell = models.CharField(_("cell"), max_length=63, blank=True)
    reason = models.TextField(_("reason"))
    granted_by = models.CharField(_("granted by"), max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)

    class Meta:
        verbose_name = _("capability")
        verbose_name_plural = _("capabilities")

    def __str__(self) -> str:
        return f"{self.user}: {self.kind} in {self.cell or 'every cell'}"
