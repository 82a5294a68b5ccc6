"""Channels, which send notices by mail or webhook. A channel belongs to a tenant, or to the SREs (`tenant` None)."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from quota import clock, records
from quota.models import Notice, NoticeChannel, NoticeDelivery, Tenant
from quota.notifications.delivery_attempts import drop_waiting
from quota.notifications.notice_kinds import KINDS, LEVELS
from quota.notifications.notices import needed
from quota.notifications.webhook_client import may_call, receiver
from quota.notifications.webhooks import secret_make
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require

MOST_CHANNELS = 20
# After a rotation, webhooks are signed with the old and the new secret for this time, by default.
OVERLAP = dt.timedelta(days=1)
LONGEST_OVERLAP = dt.timedelta(days=30)
WAYS = ("email", "webhook")


def channel_add(
    *,
    principal: Principal,
    tenant: Tenant | None,
    kind: str,
    target: str,
    kinds: Sequence[str] = (),
    level: str = "info",
) -> NoticeChannel:
    """Create a channel. A webhook gets a new secret.

    Raises `Rejected` if an argument is not valid; the error names the field. Raises `Conflict` if the tenant already
    has a channel to `target`.
    """
    require(principal, **needed(Action.TENANT_ADMIN, tenant))
    if kind not in WAYS:
        raise invalid("kind", _("the kind %(given)r is unknown; give email or webhook") % {"given": kind})
    target = _target(kind, target)
    _choice(kinds, level)
    if NoticeChannel.objects.filter(tenant=tenant).count() >= MOST_CHANNELS:
        raise Rejected(
            "too-many", _("there are already %d channels, which is the maximum; remove one first") % MOST_CHANNELS
        )
    try:
        with records.write(principal) as entry, transaction.atomic():
            channel = NoticeChannel.objects.create(
                tenant=tenant,
                kind=kind,
                target=target,
                kinds=sorted(set(kinds)),
                level=level,
                secret=secret_make() if kind == "webhook" else "",
                created_by=principal.name,
                created_at=clock.now(),
            )
            _note(entry, "channel.added", channel)
    except IntegrityError as error:
        raise _taken(target) from error
    return channel


def channel_set(
    *,
    principal: Principal,
    channel: NoticeChannel,
    target: str | None = None,
    kinds: Sequence[str] | None = None,
    level: str | None = None,
    enabled: bool | None = None,
) -> NoticeChannel:
    """Change the given settings of a channel. If the channel is disabled, its waiting deliveries fail.

    A change of `target` or `enabled` resets the failures of the channel. Raises `Rejected` if a value is not valid, and
    `Conflict` if another channel has the same target.
    """
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    _choice(kinds if kinds is not None else channel.kinds, level if level is not None else channel.level)
    try:
        with records.write(principal) as entry, transaction.atomic():
            row = _locked(channel)
            if target is not None and (wanted := _target(row.kind, target)) != row.target:
                row.target = wanted
                _reset_failures(row)
            row.kinds = sorted(set(kinds)) if kinds is not None else row.kinds
            row.level = level if level is not None else row.level
            if enabled is not None and enabled != row.enabled:
                row.enabled = enabled
                _reset_failures(row)
                if not enabled:
                    drop_waiting(row, _("not sent, because the channel was disabled"))
            row.save(update_fields=["target", "kinds", "level", "enabled", "failing_since", "error", "paused_at"])
            _note(entry, "channel.changed", row)
    except IntegrityError as error:
        raise _taken(str(target)) from error
    return row


def channel_remove(*, principal: Principal, channel: NoticeChannel) -> None:
    """Remove a channel and its waiting deliveries. The inbox keeps all notices."""
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    with records.write(principal) as entry:
        _note(entry, "channel.removed", channel)
        NoticeChannel.objects.filter(pk=channel.pk).delete()


def channel_secret_rotate(
    *, principal: Principal, channel: NoticeChannel, overlap: dt.timedelta = OVERLAP
) -> NoticeChannel:
    """Create a new secret for a webhook. During `overlap`, webhooks are signed with the new and the previous secret."""
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    if channel.kind != "webhook":
        raise Rejected(
            "no-secret", _("this channel sends mail, which has no secret; choose a channel that is a webhook")
        )
    if not dt.timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise invalid(
            "overlap_hours",
            _("the time for which both secrets are valid is out of range; give 0 to %d hours")
            % (LONGEST_OVERLAP.days * 24),
        )
    with records.write(principal) as entry:
        row = _locked(channel)
        row.secret, row.secret_before = secret_make(), row.secret
        row.secret_before_until = clock.now() + overlap
        row.save(update_fields=["secret", "secret_before", "secret_before_until"])
        _note(entry, "channel.secret-rotated", row)
    return row


def channel_test(*, principal: Principal, channel: NoticeChannel) -> NoticeDelivery:
    """Create a test notice for this channel only, and end a pause of the channel. The notice is sent within seconds."""
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    now = clock.now()
    with records.write(principal) as entry:
        row = _locked(channel)
        if not row.enabled:
            raise Conflict("switched-off", _("the channel is disabled; enable the channel first"))
        _reset_failures(row)
        row.save(update_fields=["failing_since", "error", "paused_at"])
        notice = Notice.objects.create(
            tenant=row.tenant,
            kind="notices.test",
            subject=_("A test of this channel"),
            text=_("%(who)s tests whether notices reach %(target)s. This notice has arrived.")
            % {"who": principal.name, "target": row.target},
            url="/notices/channels/",
            data={"channel": row.pk},
            created_at=now,
            spread_at=now,
        )
        _note(entry, "channel.tested", row)
        return NoticeDelivery.objects.create(notice=notice, channel=row, next_at=now)


def _locked(channel: NoticeChannel) -> NoticeChannel:
    row = NoticeChannel.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=channel.pk).first()
    if row is None:
        raise Conflict("removed", _("this channel no longer exists; create a new channel"))
    return row


def _reset_failures(row: NoticeChannel) -> None:
    """Reset the failures of a channel, so that its waiting deliveries are sent without further delay."""
    row.failing_since, row.error, row.paused_at = None, "", None
    NoticeDelivery.objects.filter(channel=row, state="waiting").update(next_at=clock.now())


def _target(kind: str, target: str) -> str:
    """Return the checked target. Raises `Rejected` if the target is not a valid address or not allowed.

    Host names are not resolved here, but at each delivery.
    """
    target = target.strip()
    if kind == "webhook":
        if len(target) > 500:
            raise invalid("target", _("the address of the webhook is too long; give at most 500 characters"))
        to = receiver(target)
        try:
            ipaddress.ip_address(to.host)
        except ValueError:
            return target
        if not may_call(to.host, settings.BORG_WEBHOOK_NETWORKS):
            raise invalid(
                "target",
                _("the address is in a private network; give a public address, or ask an SRE to allow the network"),
            )
        return target
    try:
        validate_email(target)
    except ValidationError as error:
        raise invalid(
            "target", _("%r is not an e-mail address; give one, such as ann@example.org") % target[:100]
        ) from error
    return target


def _choice(kinds: Sequence[str], level: str) -> None:
    if level not in LEVELS:
        known = {"given": level, "known": ", ".join(LEVELS)}
        raise invalid("level", _("the level %(given)r is unknown; give one of %(known)s") % known)
    for start in kinds:
        if not any(kind.name == start or kind.name.startswith(f"{start}.") for kind in KINDS):
            raise invalid(
                "kinds", _("no kind of notice begins with %r; list the kinds with `borgctl notices kinds`") % start[:64]
            )


def _note(entry: RecordEntry, kind: str, channel: NoticeChannel) -> None:
    entry.append(
        kind,
        tenant=channel.tenant.name if channel.tenant else "",
        channel=channel.pk,
        way=channel.kind,
        **{name: getattr(channel, name) for name in ("target", "kinds", "level", "enabled")},
    )


def _taken(target: str) -> Conflict:
    detail = _("there is already a channel to %s; change that channel") % target
    return Conflict("channel-exists", detail, fields={"target": detail})
