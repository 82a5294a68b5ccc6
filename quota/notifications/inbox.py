"""Functions that read notices and channels: a person's inbox, the number of unread notices, and the channels of a
tenant.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from quota import clock
from quota.models import Notice, NoticeChannel, NoticeDelivery, NoticeRead, Tenant
from quota.notifications.notice_kinds import LEVELS
from quota.notifications.notices import needed
from quota.notifications.transports import keys_of
from quota.selectors import tenant_named
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, may

# A larger number of unread notifications is shown as "99+".
UNREAD_SHOWN = 99
# The name of the SREs' own inbox and channels in URLs. No tenant can have it, because it ends with a hyphen.
SRE = "sre-"


class Choice(NamedTuple):
    """The filter of the inbox.

    `tenant`: the name of a tenant, `sre-` for notices to SREs, or empty for all; `kind`: a kind or a prefix of kinds.
    """

    tenant: str = ""
    kind: str = ""
    level: str = ""
    unread: bool = False


def owner_named(principal: Principal, name: str) -> Tenant | None:
    """Return the tenant with this name. The name `sre-` stands for the SREs, for whom the result is None. Raises
    `NotFound` if the principal sees no such tenant.
    """
    if name != SRE:
        return tenant_named(principal, name)
    if not may(principal, Action.PLATFORM_ADMIN):
        raise NotFound("tenant", name)
    return None


def owners(principal: Principal) -> list[Tenant | None]:
    """Return the tenants whose notifications are in the principal's inbox.

    For an SRE, the list also contains None, which stands for the notifications to SREs.
    """
    mine: list[Tenant | None] = list(Tenant.objects.filter(name__in=_member_of(principal)).order_by("name"))
    return [*mine, None] if may(principal, Action.PLATFORM_ADMIN) else mine


def inbox(principal: Principal, choice: Choice = Choice()) -> QuerySet[Notice]:
    """Return the notices of an inbox that match `choice`, newest first.

    Each notice has the attribute `unread`, and its tenant is loaded too. Raises `Rejected` if a value of `choice` is
    not valid.
    """
    whose = [owner_named(principal, choice.tenant)] if choice.tenant else owners(principal)
    of = Q(tenant__in=[tenant for tenant in whose if tenant is not None])
    if None in whose:
        of |= Q(tenant__isnull=True)
    marks = NoticeRead.objects.annotate(whose=Coalesce("tenant_id", 0)).filter(  # type: ignore[misc]
        user_id=principal.user_id, whose=Coalesce(OuterRef("tenant_id"), 0), notice_id__gte=OuterRef("id")
    )
    rows = Notice.objects.filter(of).annotate(unread=~Exists(marks)).select_related("tenant").order_by("-id")
    if choice.kind:
        rows = rows.filter(Q(kind=choice.kind) | Q(kind__startswith=choice.kind.rstrip(".") + "."))
    if choice.level:
        if choice.level not in LEVELS:
            raise invalid("level", f"the level {choice.level[:20]!r} is unknown; give one of {', '.join(LEVELS)}")
        rows = rows.filter(level__in=LEVELS[LEVELS.index(choice.level) :])
    return rows.filter(unread=True) if choice.unread else rows


def unread_count(principal: Principal) -> int:
    """Return the number of unread notices in the principal's inbox, but at most `UNREAD_SHOWN` + 1. Makes one query."""
    if principal.user_id is None:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            _UNREAD,
            {
                "user": principal.user_id,
                "tenants": _member_of(principal),
                "sre": may(principal, Action.PLATFORM_ADMIN),
                "most": UNREAD_SHOWN + 1,
            },
        )
        return int(cursor.fetchone()[0])


def channels_of(principal: Principal, tenant: Tenant | None) -> QuerySet[NoticeChannel]:
    """Return the channels of a tenant that the principal may see. If `tenant` is None, return the channels of the
    SREs.
    """
    if not may(principal, **needed(Action.TENANT_VIEW, tenant)):
        return NoticeChannel.objects.none()
    return NoticeChannel.objects.filter(tenant=tenant).select_related("tenant").order_by("id")


def channels_visible(principal: Principal) -> QuerySet[NoticeChannel]:
    """Return the channels of the principal's tenants, and for an SRE also the channels of the SREs."""
    of = Q(tenant__name__in=_member_of(principal))
    if may(principal, Action.PLATFORM_ADMIN):
        of |= Q(tenant__isnull=True)
    return NoticeChannel.objects.filter(of).select_related("tenant").order_by("id")


def channel_numbered(principal: Principal, number: int) -> NoticeChannel:
    """Return a channel by id. Raises `NotFound` if the channel does not exist, or if the principal may not see its
    tenant.
    """
    channel = NoticeChannel.objects.select_related("tenant").filter(pk=number).first()
    if channel is None or not channels_of(principal, channel.tenant).filter(pk=number).exists():
        raise NotFound("channel", str(number))
    return channel


def may_manage(principal: Principal, tenant: Tenant | None) -> bool:
    """Return whether the principal may change a tenant's channels, and see their secrets and addresses."""
    return may(principal, **needed(Action.TENANT_ADMIN, tenant))


def target_shown(principal: Principal, channel: NoticeChannel) -> str:
    """Return the target of a channel in the form that the principal may see.

    The URL of a webhook may contain a key, so a principal that may not manage the channel gets only the host.
    """
    if channel.kind == "email" or may_manage(principal, channel.tenant):
        return channel.target
    parts = urlsplit(channel.target)
    return f"{parts.scheme}://{parts.hostname}/…"


def secrets_of(channel: NoticeChannel) -> list[str]:
    """Return the current secrets of a channel, newest first. The caller has checked `may_manage`."""
    return keys_of(channel, clock.now()) if channel.kind == "webhook" else []


def deliveries_of(channel: NoticeChannel) -> QuerySet[NoticeDelivery]:
    """Return the deliveries of a channel, newest first, each with its notification."""
    return NoticeDelivery.objects.filter(channel=channel).select_related("notice").order_by("-id")


def _member_of(principal: Principal) -> list[str]:
    return sorted(name for name in principal.roles if may(principal, Action.TENANT_VIEW, tenant=name))


_UNREAD = """
SELECT count(*) FROM (
    (SELECT 1 FROM quota_tenant t
     LEFT JOIN quota_noticeread r ON r.user_id = %(user)s AND r.tenant_id = t.id
     CROSS JOIN LATERAL (
         SELECT 1 FROM quota_notice n WHERE n.tenant_id = t.id AND n.id > coalesce(r.notice_id, 0) LIMIT %(most)s
     ) of_tenants
     WHERE t.name = ANY(%(tenants)s) LIMIT %(most)s)
    UNION ALL
    (SELECT 1 FROM quota_notice n
     WHERE %(sre)s AND n.tenant_id IS NULL AND n.id > coalesce(
         (SELECT notice_id FROM quota_noticeread WHERE user_id = %(user)s AND tenant_id IS NULL), 0)
     LIMIT %(most)s)
    LIMIT %(most)s
) unread
"""
