"""The public keys with which programs verify the identity tokens of tasks, the secrets of tenants, and the templates
that tokens may dispatch.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models import Tenant, Token
from quota.models.fields import DnsLabelField
from scheduling.models.jobs import JobTemplate


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


class Secret(models.Model):
    """A secret of a tenant: a name with versions. `newest_version`: the number of the newest version.

    A deleted secret (`deleted_at`) has no versions and no grants. Its row stays, so that the next version gets a new
    number, and machines notice that the value is another one.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="secrets", db_index=False)
    name = DnsLabelField(_("name"))
    newest_version = models.PositiveIntegerField(_("newest version"), default=0)
    created_by = models.CharField(_("created by"), max_length=200)
    created_at = models.DateTimeField(_("created"))
    deleted_at = models.DateTimeField(_("deleted"), null=True, blank=True)

    class Meta:
        ordering = ["tenant", "name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="one_secret_per_name")]
        verbose_name = _("secret")
        verbose_name_plural = _("secrets")

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"


class SecretVersion(models.Model):
    """A version of a secret. It never changes, except that another key encrypts it.

    `sealed`: a nonce of 12 bytes and the value, encrypted with AES-256-GCM (`scheduling.secrets.sealing`). `key_id`:
    the id of the key. `size_bytes`: the size of the value. `is_text`: whether the value can be an environment variable.
    """

    secret = models.ForeignKey(Secret, models.CASCADE, related_name="versions", db_index=False)
    version = models.PositiveIntegerField(_("version"))
    key_id = models.CharField(_("id of the key"), max_length=16, db_index=True)
    sealed = models.BinaryField()
    fingerprint = models.CharField(_("fingerprint"), max_length=8)
    size_bytes = models.PositiveIntegerField(_("size in bytes"))
    is_text = models.BooleanField(_("text"))
    created_by = models.CharField(_("set by"), max_length=200)
    created_at = models.DateTimeField(_("set"))

    class Meta:
        ordering = ["secret", "-version"]
        constraints = [
            models.UniqueConstraint(fields=["secret", "version"], name="one_value_per_version"),
            models.CheckConstraint(condition=Q(version__gt=0), name="versions_of_secrets_begin_at_one"),
        ]
        verbose_name = _("version of a secret")
        verbose_name_plural = _("versions of secrets")

    def __str__(self) -> str:
        return f"{self.secret_id} v{self.version}"


class SecretGrant(models.Model):
    """A grant of a secret to jobs of its tenant. `jobs`: the name of a job, or the beginning of names and `*`. `cell`:
    the only cell of these jobs; empty for all cells.
    """

    secret = models.ForeignKey(Secret, models.CASCADE, related_name="grants", db_index=False)
    jobs = models.CharField(_("jobs"), max_length=64)
    cell = models.CharField(_("cell"), max_length=63, blank=True)
    created_by = models.CharField(_("granted by"), max_length=200)
    created_at = models.DateTimeField(_("granted"))

    class Meta:
        ordering = ["secret", "jobs", "cell"]
        constraints = [models.UniqueConstraint(fields=["secret", "jobs", "cell"], name="one_grant_per_jobs")]
        verbose_name = _("grant of a secret")
        verbose_name_plural = _("grants of secrets")

    def __str__(self) -> str:
        return f"{self.secret_id} to {self.jobs}"


class TokenTemplate(models.Model):
    """A template that a token with the scope `dispatch` may dispatch. Without such a row, the token may do nothing."""

    token = models.ForeignKey(Token, models.CASCADE, related_name="+", db_index=False)  # the constraint
    template = models.ForeignKey(JobTemplate, models.CASCADE, related_name="+")

    class Meta:
        ordering = ["token", "template"]
        constraints = [models.UniqueConstraint(fields=["token", "template"], name="one_row_per_token_and_template")]
        verbose_name = _("template of a token")
        verbose_name_plural = _("templates of tokens")

    def __str__(self) -> str:
        return f"{self.template_id} by {self.token_id}"
