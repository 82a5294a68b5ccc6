"""Sending of one notice through one channel, as a mail or as a signed webhook. This module uses no database."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

from django.conf import settings
from django.utils.translation import gettext as _

from quota.models import NoticeChannel, NoticeDelivery
from quota.notifications.mail import absolute, letter
from quota.notifications.mail import send as mail_send
from quota.notifications.webhook_client import post, receiver
from quota.notifications.webhooks import body_of, sign


def send(channel: NoticeChannel, delivery: NoticeDelivery, now: dt.datetime) -> None:
    """Send a delivery through its channel.

    The notice and the tenant of the delivery must be loaded. Raises `DeliveryFailed` if the delivery fails.
    """
    if channel.kind == "webhook":
        _webhook(channel, delivery, now)
    else:
        _mail(channel, delivery)


def message_of(delivery: NoticeDelivery) -> dict[str, Any]:
    """Return the content of a webhook as values for JSON. Each attempt contains the same `id`."""
    notice = delivery.notice
    return {
        "id": f"notice-{notice.pk}",
        "kind": notice.kind,
        "level": notice.level,
        "tenant": notice.tenant.name if notice.tenant else None,
        "subject": notice.subject,
        "text": notice.text,
        "url": absolute(notice.url),
        "created_at": notice.created_at.isoformat(),
        "data": notice.data,
    }


def keys_of(channel: NoticeChannel, now: dt.datetime) -> list[str]:
    """Return the secrets that sign a webhook at `now`, newest first. For some time after a new secret was created, the
    previous secret also signs.
    """
    keys = [channel.secret]
    if channel.secret_before and channel.secret_before_until and now < channel.secret_before_until:
        keys.append(channel.secret_before)
    return keys


def _webhook(channel: NoticeChannel, delivery: NoticeDelivery, now: dt.datetime) -> None:
    body = body_of(message_of(delivery))
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "Borg-Portal",
        "Borg-Notice": f"notice-{delivery.notice_id}",
        "Borg-Signature": sign(keys_of(channel, now), body, at_s=int(time.time())),
    }
    post(receiver(channel.target), body, headers, allowed=settings.BORG_WEBHOOK_NETWORKS)


def _mail(channel: NoticeChannel, delivery: NoticeDelivery) -> None:
    notice = delivery.notice
    foot = _("This notice is for %(owner)s. Its kind is %(kind)s. Change channels at %(url)s") % {
        "owner": notice.tenant.name if notice.tenant else _("the SREs"),
        "kind": notice.kind,
        "url": absolute("/notices/channels/"),
    }
    mail_send(
        letter(
            channel.target,
            notice.subject,
            notice.text,
            path=notice.url,
            foot=foot,
            headers={
                "Borg-Notice": f"notice-{notice.pk}",
                "Message-ID": f"<notice-{notice.pk}.{channel.pk}@borg-portal>",
            },
        )
    )
