"""Notifications to tenants and SREs, their channels, and their deliveries."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from quota.models.tenants import Tenant


class Notice(models.Model):
    """A notification, written in the transaction of the change that it describes. `tenant`: None for the SREs.

    `kind`: the object, a dot and the change, such as `order.approved`. `level`: info, warning or urgent. `url`: a path
    of the portal.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="notices")
    kind = models.CharField(_("kind of notice"), max_length=64)
    level = models.CharField(_("level"), max_length=8, default="info")
    subject = models.CharField(_("subject"), max_length=200)
    text = models.TextField(_("message"))
    url = models.CharField(max_length=300, blank=True)
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(_("created at"))
    spread_at = models.DateTimeField(null=True, blank=True)  # when its deliveries were created

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="notice_by_tenant"),
            models.Index(fields=["id"], condition=Q(spread_at__isnull=True), name="notice_to_spread"),
        ]
        verbose_name = _("notice")
        verbose_name_plural = _("notices")

    def __str__(self) -> str:
        return self.subject


class NoticeRead(models.Model):
    """The newest notification of a tenant that a person has read. `tenant`: None for notifications to the SREs."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="+")
    notice_id = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], nulls_distinct=False, name="one_mark_per_inbox")
        ]

    def __str__(self) -> str:
        return f"{self.user} has read {self.notice_id}"


class NoticeChannel(models.Model):
    """A mail address or webhook that gets a tenant's notifications.

    `kinds`: the kinds of notifications, or prefixes of kinds, that the channel sends; empty for all. `secret`: signs
    webhooks; owners may see it. `secret_before`: the previous secret. Until `secret_before_until`, it signs webhooks
    too. `failing_since`: the first failure since the last success; after a day the channel is paused until a user tests
    it. `busy_until`: until then, only the process that set this time may send through this channel. So notices stay in
    order.
    """

    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="channels")
    kind = models.CharField(
        _("kind of channel"), max_length=8, choices=[("email", _("e-mail")), ("webhook", _("webhook"))]
    )
    target = models.CharField(_("address"), max_length=500)
    secret = models.CharField(max_length=64, blank=True)
    kinds = ArrayField(models.CharField(max_length=64), verbose_name=_("kinds of notices"), default=list, blank=True)
    level = models.CharField(_("lowest level of notices"), max_length=8, default="info")
    enabled = models.BooleanField(_("enabled"), default=True)
    created_by = models.CharField(_("created by"), max_length=150)
    created_at = models.DateTimeField(_("created at"))
    failing_since = models.DateTimeField(_("failing since"), null=True, blank=True)
    error = models.CharField(_("last error"), max_length=300, blank=True)
    secret_before = models.CharField(max_length=64, blank=True)
    secret_before_until = models.DateTimeField(null=True, blank=True)
    paused_at = models.DateTimeField(_("paused since"), null=True, blank=True)
    busy_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["id"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "kind", "target"], nulls_distinct=False, name="one_channel_per_target"
            )
        ]
        verbose_name = _("notice channel")
        verbose_name_plural = _("notice channels")

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


class NoticeDelivery(models.Model):
    """The delivery of a notification through one channel: waiting, sent, or failed. `begun_at`: the first attempt."""

    notice = models.ForeignKey(Notice, models.CASCADE, related_name="deliveries")
    channel = models.ForeignKey(NoticeChannel, models.CASCADE, related_name="deliveries")
    state = models.CharField(
        _("state"),
        max_length=8,
        default="waiting",
        choices=[("waiting", _("waiting")), ("sent", _("sent")), ("failed", _("failed"))],
    )
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    begun_at = models.DateTimeField(_("first attempt at"), null=True, blank=True)
    next_at = models.DateTimeField(_("next attempt at"))
    error = models.CharField(_("last error"), max_length=300, blank=True)
    sent_at = models.DateTimeField(_("sent at"), null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["next_at"], condition=Q(state="waiting"), name="delivery_waiting"),
            models.Index(fields=["channel", "id"], condition=Q(state="waiting"), name="delivery_in_order"),
        ]
        constraints = [models.UniqueConstraint(fields=["notice", "channel"], name="one_delivery_per_channel")]
        verbose_name = _("delivery of a notice")
        verbose_name_plural = _("deliveries of notices")

    def __str__(self) -> str:
        return f"{self.notice} to {self.channel}"
