"""The public keys with which programs verify the identity tokens of tasks."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class IdentityKey(models.Model):
    """The public key of a host. Shards on the host sign identity tokens with the private key, which never leaves the
    host.
    """

    kid = models.CharField(_("key"), max_length=64, unique=True)
    public = models.TextField(_("public key"))  # PEM
    host = models.CharField(_("host"), max_length=255)
    made_at = models.DateTimeField(_("made"))
    accepted_until = models.DateTimeField(_("accepted until"))

    class Meta:
        ordering = ["-made_at"]
        verbose_name = _("key of task identities")
        verbose_name_plural = _("keys of task identities")

    def __str__(self) -> str:
        return self.kid
