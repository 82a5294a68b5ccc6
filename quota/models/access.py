"""Tokens: how programs say who they are. Only a hash is kept."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.tenants import Tenant


class Token(models.Model):
    """Acts for `user`, inside `tenant` only when set, and only with `scopes` (read, write, admin).

    The secret is `borg_<key>_<random>`; `key` finds the row, `digest` (SHA-256 of the whole) proves it. The
    random part has 256 bits, so a plain hash is enough.

    `parent`: the token that asked for this one; None when a session or a password did. A child always has an end, which
    is not after its parent's, and it is revoked together with its parent.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="borg_tokens")
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="tokens")
    parent = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="children", verbose_name=_("parent")
    )
    name = models.CharField(_("name"), max_length=100)
    key = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=16))
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        verbose_name = _("token")
        verbose_name_plural = _("tokens")

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"
