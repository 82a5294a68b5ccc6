"""Channels for notices of a tenant, beside the inbox; also for those of the SREs (`tenant` none)."""

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
from quota.notifications.notice_kinds import KINDS, LEVELS
from quota.notifications.notices import needed
from quota.notifications.sending import drop_waiting
from quota.notifications.webhook_client import may_call, receiver
from quota.notifications.webhooks import secret_make
from quota.records import RecordEntry
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require

MOST_CHANNELS = 20
# By default, the old secret signs beside the new one for this long after a rotation.
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
    """A new channel; a webhook with a new secret. Raises `Rejected` naming the field, `Conflict` for one there is."""
    require(principal, **needed(Action.TENANT_ADMIN, tenant))
    if kind not in WAYS:
        raise invalid("kind", _("%(given)r is none of email, webhook") % {"given": kind})
    target = _target(kind, target)
    _choice(kinds, level)
    if NoticeChannel.objects.filter(tenant=tenant).count() >= MOST_CHANNELS:
        raise Rejected("too-many", _("%d channels are enough; remove one first") % MOST_CHANNELS)
    try:
        with records.write(principal) as entry, transaction.atomic():
            channel = NoticeChannel.objects.create(
                tenant=tenant,
                kind=kind,
                target=target,
                kinds=_sorted(kinds),
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
    """Change the given settings of a channel. A new target has no failures yet; disabling gives up waiting
    deliveries.
    """
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    _choice(kinds if kinds is not None else channel.kinds, level if level is not None else channel.level)
    try:
        with records.write(principal) as entry, transaction.atomic():
            row = _locked(channel)
            if target is not None and (wanted := _target(row.kind, target)) != row.target:
                row.target = wanted
                _afresh(row)
            row.kinds = _sorted(kinds) if kinds is not None else row.kinds
            row.level = level if level is not None else row.level
            if enabled is not None and enabled != row.enabled:
                row.enabled = enabled
                _afresh(row)
                if not enabled:
                    drop_waiting(row, _("the channel was switched off"))
            row.save(update_fields=["target", "kinds", "level", "enabled", "failing_since", "error", "paused_at"])
            _note(entry, "channel.changed", row)
    except IntegrityError as error:
        raise _taken(str(target)) from error
    return row


def channel_remove(*, principal: Principal, channel: NoticeChannel) -> None:
    """Remove a channel and its waiting deliveries. The inbox keeps everything."""
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    with records.write(principal) as entry:
        _note(entry, "channel.removed", channel)
        NoticeChannel.objects.filter(pk=channel.pk).delete()


def channel_secret_rotate(
    *, principal: Principal, channel: NoticeChannel, overlap: dt.timedelta = OVERLAP
) -> NoticeChannel:
    """A new secret. The one before signs beside it for `overlap`, so that the receiver can change it in peace."""
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    if channel.kind != "webhook":
        raise Rejected("no-secret", _("mail is not signed; only webhooks have a secret"))
    if not dt.timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise invalid("overlap_hours", _("give 0 to %d hours") % (LONGEST_OVERLAP.days * 24))
    with records.write(principal) as entry:
        row = _locked(channel)
        row.secret, row.secret_before = secret_make(), row.secret
        row.secret_before_until = clock.now() + overlap
        row.save(update_fields=["secret", "secret_before", "secret_before_until"])
        _note(entry, "channel.secret-rotated", row)
    return row


def channel_test(*, principal: Principal, channel: NoticeChannel) -> NoticeDelivery:
    """Send a test notice through this channel alone, within seconds; that ends a pause, too."""
    require(principal, **needed(Action.TENANT_ADMIN, channel.tenant))
    now = clock.now()
    with records.write(principal) as entry:
        row = _locked(channel)
        if not row.enabled:
            raise Conflict("switched-off", _("the channel is switched off; switch it on first"))
        _afresh(row)
        row.save(update_fields=["failing_since", "error", "paused_at"])
        notice = Notice.objects.create(
            tenant=row.tenant,
            kind="notices.test",
            subject=_("A test of this channel"),
            text=_("%(who)s tries out whether notices get to %(target)s. They do.")
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
        raise Conflict("removed", _("the channel was removed meanwhile"))
    return row


def _afresh(row: NoticeChannel) -> None:
    """Reset the failures of a channel, so that waiting deliveries are tried at once."""
    row.failing_since, row.error, row.paused_at = None, "", None
    NoticeDelivery.objects.filter(channel=row, state="waiting").update(next_at=clock.now())


def _target(kind: str, target: str) -> str:
    """Raises `Rejected`. A name is judged again by its addresses whenever it is called
    (`quota.notifications.webhook_client`).
    """
    target = target.strip()
    if kind == "webhook":
        if len(target) > 500:
            raise invalid("target", _("an address has at most 500 characters"))
        to = receiver(target)
        try:
            ipaddress.ip_address(to.host)
        except ValueError:
            return target
        if not may_call(to.host, settings.BORG_WEBHOOK_NETWORKS):
            raise invalid(
                "target",
                _("this portal does not call private addresses; an SRE can allow networks (BORG_WEBHOOK_NETWORKS)"),
            )
        return target
    try:
        validate_email(target)
    except ValidationError as error:
        raise invalid("target", _("%r is not an e-mail address") % target[:100]) from error
    return target


def _choice(kinds: Sequence[str], level: str) -> None:
    if level not in LEVELS:
        raise invalid("level", _("%(given)r is none of %(known)s") % {"given": level, "known": ", ".join(LEVELS)})
    for start in kinds:
        if not any(kind.name == start or kind.name.startswith(f"{start}.") for kind in KINDS):
            raise invalid("kinds", _("no notice is of kind %r; see the list of kinds") % start[:64])


def _sorted(kinds: Sequence[str]) -> list[str]:
    return sorted(set(kinds))


def _note(entry: RecordEntry, kind: str, channel: NoticeChannel) -> None:
    entry.append(
        kind,
        tenant=channel.tenant.name if channel.tenant else "",
        channel=channel.pk,
        way=channel.kind,
        **{name: getattr(channel, name) for name in ("target", "kinds", "level", "enabled")},
    )


def _taken(target: str) -> Conflict:
    detail = _("there is a channel to %s already") % target
    return Conflict("channel-exists", detail, fields={"target": detail})
