"""Writing of notifications. A notification is a row that is written in the transaction of the change that it describes,
and that is sent after the commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection

from quota import clock
from quota.models import Notice, Tenant
from quota.notifications.notice_kinds import BY_NAME, LEVELS
from quota.records import RecordEntry
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require

SUBJECT_CHARACTERS = 200


def notify(
    entry: RecordEntry,
    tenant: Tenant | None,
    kind: str,
    subject: str,
    text: str,
    url: str = "",
    level: str = "info",
    **data: Any,
) -> None:
    """Notify a tenant's members, or the SREs (`tenant` None), in the caller's transaction.

    `kind`: a kind of `quota.notifications.notice_kinds`. `subject`: one line. `url`: a path of the portal. `data`:
    values for JSON, which webhooks contain. The notices are written to the database at the end of the block of `entry`.
    Raises `ValueError` if `kind`, `level` or `url` is not valid.
    """
    if kind not in BY_NAME:
        raise ValueError(
            f"the notice kind {kind!r} is unknown; correct the name in the code that sends the notice, or add the kind"
            " to `KINDS` in quota/notifications/notice_kinds.py"
        )
    if level not in LEVELS:
        raise ValueError(f"the level {level!r} is unknown; give one of {', '.join(LEVELS)}")
    if url and (not url.startswith("/") or url.startswith("//")):
        raise ValueError(f"the URL {url!r} is not a path of the portal; give a path such as /orders/7/")
    entry.add_notice(
        Notice(
            tenant=tenant,
            kind=kind,
            level=level,
            subject=one_line(subject),
            text=text,
            url=url,
            data=data,
            created_at=clock.now(),
        )
    )


def notices_read(*, principal: Principal, up_to: int, tenants: Sequence[Tenant | None]) -> None:
    """Mark the notices of `tenants` up to an id as read by the caller. None in `tenants` stands for the SREs.

    Notices that were read before stay read. Writes no record to the journal. Makes one SQL statement. Raises `Rejected`
    if the caller is not a person, or if no notice has the id `up_to`.
    """
    for tenant in tenants:
        require(principal, **needed(Action.TENANT_VIEW, tenant))
    if principal.user_id is None:
        raise Rejected(
            "no-person",
            f"{principal.name} is not a person, and only people have an inbox; sign in as a person",
            status=403,
        )
    newest = Notice.objects.order_by("-id").values_list("id", flat=True).first() or 0
    if not 0 <= up_to <= newest:
        raise invalid("up_to", f"no notice has the id {up_to}; give an id from 0 to {newest}")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO quota_noticeread (user_id, tenant_id, notice_id)"
            " SELECT %s, tenant, %s FROM unnest(%s::bigint[]) AS t(tenant)"
            " ON CONFLICT (user_id, tenant_id) DO UPDATE"
            " SET notice_id = greatest(quota_noticeread.notice_id, excluded.notice_id)",
            [principal.user_id, up_to, [tenant.pk if tenant else None for tenant in tenants]],
        )


def needed(action: Action, tenant: Tenant | None) -> dict[str, Any]:
    """Return the keyword arguments with which `permissions.may` checks whether a principal may do `action` with the
    notices of a tenant, or of the SREs (`tenant` None).
    """
    return {"action": Action.PLATFORM_ADMIN} if tenant is None else {"action": action, "tenant": tenant.name}


def one_line(subject: str) -> str:
    """Return the subject without line breaks, cut to the length of its database column."""
    line = " ".join(subject.split())
    return line if len(line) <= SUBJECT_CHARACTERS else line[: SUBJECT_CHARACTERS - 1] + "…"
