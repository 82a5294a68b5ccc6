"""Tables of tenants, members, invitations, service accounts, capabilities (§2.5), and tokens."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.utils.translation import gettext_lazy as _

from quota.models.fields import DnsLabelField
from quota.vocabulary.permissions import CapabilityKind, Role


class Tenant(models.Model):
    """An owner of jobs and quota. Its name is part of the DNS names of its tasks and never changes.

    `parent`: the organisation of a team. Roles in the organisation also apply in all its teams. A team has no teams
    of its own. `max_teams`: the maximum number of teams that owners may create. `task_api`: the maximum rights that
    the tenant's tasks may have in the REST API; each job file requests the rights that it needs. `time_zone`: defines
    days and months in the shop and on invoices.
    """

    name = DnsLabelField(_("name"), unique=True)
    title = models.CharField(_("title"), max_length=200, blank=True)
    contact = models.EmailField(_("contact e-mail"), blank=True)
    max_jobs = models.PositiveIntegerField(_("maximum of live jobs"), default=10_000)
    task_api = models.CharField(
        _("API rights of tasks"),
        max_length=16,
        default="submit",
        db_default="submit",
        choices=[("none", _("no rights")), ("read", _("read only")), ("submit", _("read and submit jobs"))],
    )
    parent = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="teams", verbose_name=_("organisation")
    )
    max_teams = models.PositiveIntegerField(_("maximum of teams"), default=10, db_default=10)
    time_zone = models.CharField(_("time zone"), max_length=64, default="UTC", db_default="UTC")
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=~models.Q(parent=models.F("id")), name="no_tenant_is_its_own_parent")
        ]
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")

    def __str__(self) -> str:
        return str(self.name)


class Membership(models.Model):
    """The role of a user in a tenant."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(_("role"), max_length=16, choices=[(role.value, role.value) for role in Role])

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "user"], name="one_role_per_member")]
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")

    def __str__(self) -> str:
        return f"{self.user} is {self.role} of {self.tenant}"


class Invitation(models.Model):
    """An invitation of a person to a tenant. The link contains a secret, of which only a digest is stored."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="invitations")
    email = models.EmailField(_("e-mail"))
    role = models.CharField(_("role"), max_length=16, choices=[(role.value, role.value) for role in Role])
    key = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    invited_by = models.CharField(_("invited by"), max_length=150)
    created_at = models.DateTimeField(_("created at"))
    expires_at = models.DateTimeField(_("expires at"))
    withdrawn_at = models.DateTimeField(_("withdrawn at"), null=True, blank=True)
    accepted_at = models.DateTimeField(_("accepted at"), null=True, blank=True)
    accepted_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+")

    class Meta:
        ordering = ["-created_at"]
        verbose_name = _("invitation")
        verbose_name_plural = _("invitations")

    def __str__(self) -> str:
        return f"{self.email} as {self.role} of {self.tenant}"


class ServiceAccount(models.Model):
    """A member of a tenant that is used by programs, not by a person. The account has no password, and its tokens are
    limited to the tenant.
    """

    user = models.OneToOneField(settings.AUTH_USER_MODEL, models.CASCADE, related_name="service_account")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="service_accounts")
    description = models.CharField(_("purpose"), max_length=200, blank=True)
    created_by = models.CharField(_("created by"), max_length=150)
    created_at = models.DateTimeField(_("created at"))

    class Meta:
        ordering = ["tenant", "user"]
        verbose_name = _("service account")
        verbose_name_plural = _("service accounts")

    def __str__(self) -> str:
        return str(self.user)

    @property
    def short_name(self) -> str:
        """Return the part of the user name before `@`. The user name has the form `name@tenant`."""
        return self.user.get_username().partition("@")[0]


class Capability(models.Model):
    """A privilege beyond roles, such as killing any job of a cell. `cell`: empty for all cells."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="capabilities")
    kind = models.CharField(_("capability"), max_length=32, choices=[(k.value, k.value) for k in CapabilityKind])
    cell = models.CharField(_("cell"), max_length=63, blank=True)
    reason = models.TextField(_("reason"))
    granted_by = models.CharField(_("granted by"), max_length=150)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)

    class Meta:
        verbose_name = _("capability")
        verbose_name_plural = _("capabilities")

    def __str__(self) -> str:
        return f"{self.user}: {self.kind} in {self.cell or 'every cell'}"


class CapabilityRequest(models.Model):
    """A request for a capability for one of a tenant's users. An SRE grants or rejects the request.

    `until`: the requested end of the capability. `answer`: the text of the SRE. `capability`: the granted capability,
    while it exists.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="capability_requests")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="capability_requests")
    kind = models.CharField(_("capability"), max_length=32, choices=[(k.value, k.value) for k in CapabilityKind])
    cell = models.CharField(_("cell"), max_length=63, blank=True)
    reason = models.CharField(_("reason"), max_length=500)
    until = models.DateTimeField(_("valid until"))
    asked_by = models.CharField(_("requested by"), max_length=150)
    asked_at = models.DateTimeField(_("requested at"))
    state = models.CharField(
        _("state"),
        max_length=8,
        default="open",
        choices=[("open", _("open")), ("granted", _("granted")), ("refused", _("rejected"))],
    )
    answer = models.CharField(_("answer of the SRE"), max_length=500, blank=True)
    answered_by = models.CharField(_("answered by"), max_length=150, blank=True)
    answered_at = models.DateTimeField(_("answered at"), null=True, blank=True)
    capability = models.ForeignKey(Capability, models.SET_NULL, null=True, blank=True, related_name="requests")

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "kind", "cell"], condition=models.Q(state="open"), name="asked_once_at_a_time"
            )
        ]
        verbose_name = _("request for a capability")
        verbose_name_plural = _("requests for capabilities")

    def __str__(self) -> str:
        return f"{self.user} asks for {self.kind} in {self.cell or 'every cell'}"


class Token(models.Model):
    """A token that acts for `user` with `scopes` (read, write, admin), limited to `tenant` if that is set.

    The secret is `borg_<key>_<random>`. `key` identifies the row, and `digest` is the SHA-256 of the whole secret. The
    random part has 256 bits.

    `parent`: the token that issued this token, or None if a session or a password issued it. A token with a parent
    always expires, at the latest with its parent, and is revoked together with its parent. `successor`: the token that
    a rotation issued in place of this token.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="borg_tokens")
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="tokens")
    parent = models.ForeignKey(
        "self", models.CASCADE, null=True, blank=True, related_name="children", verbose_name=_("parent token")
    )
    successor = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("replaced by")
    )
    name = models.CharField(_("name"), max_length=100)
    key = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scopes = ArrayField(models.CharField(max_length=16))
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used at"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked at"), null=True, blank=True)

    class Meta:
        ordering = ["-created_at"]
        verbose_name = _("token")
        verbose_name_plural = _("tokens")

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"
