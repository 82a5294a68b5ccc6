"""The public keys with which programs verify the identity tokens of tasks."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class IdentityKey(models.Model):
    """The public key of a host. Shards on the host sign identity tokens with the private key, which never leaves the
    host.
    """

    kid = models.CharField(_("id of the key"), max_length=64, unique=True)
    public = models.TextField(_("public key"))  # PEM
    host = models.CharField(_("host"), max_length=255)
    made_at = models.DateTimeField(_("created"))
    accepted_until = models.DateTimeField(_("valid until"))

    class Meta:
        ordering = ["-made_at"]
        verbose_name = _("key for identity tokens")
        verbose_name_plural = _("keys for identity tokens")

    def __str__(self) -> str:
        return self.kid
