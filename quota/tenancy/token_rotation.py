"""Rotation of tokens: a new token takes the place of an old one, and for a time both are valid.

    old token ──────────────────────────┤ ends `overlap` after the rotation, with all tokens that it issued
              rotation ─► new token ───────────────────────────────────────┤ is valid as long as the old one was

A program can replace its own token in this way before the token expires, whatever the scopes of the token are.
"""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.db import connection
from django.db.models import Q

from quota import clock, records
from quota.models import Token
from quota.tenancy.tokens import admin_needed, issued_for, line_locked, revoke, token_create, token_issue
from quota.vocabulary.errors import Conflict, NotFound, invalid
from quota.vocabulary.permissions import Principal, Scope

OVERLAP, LONGEST_OVERLAP = dt.timedelta(hours=24), dt.timedelta(hours=168)


def token_rotate(*, principal: Principal, key: str, overlap: dt.timedelta = OVERLAP) -> tuple[Token, str]:
    """Return a new token in place of the token `key`, and its secret, which is not stored.

    The new token has the name, the user, the scopes and the tenant of the old one. It is valid for as long as the old
    one was, but ends no later than its parent. The old token, and the tokens that it issued, end after `overlap`.

    Any token may rotate itself; the new token then has the same parent. Otherwise, the rules of `token_issue` apply:
    users may rotate their own tokens, owners those of their tenants' service accounts, and SREs those of all service
    accounts. Raises `NotFound` for other tokens. Raises `Conflict` if the token has ended, or if its successor is in
    use. A successor that was never used is revoked, because the answer with its secret may have been lost. Locks: the
    caller's token and its ancestors, then the old token.
    """
    if not dt.timedelta(0) <= overlap <= LONGEST_OVERLAP:
        most = LONGEST_OVERLAP // dt.timedelta(hours=1)
        raise invalid(
            "overlap_hours", f"the time for which both tokens are valid is out of range; give 0 to {most} hours"
        )
    own = issued_for(principal)
    if principal.sre and Scope.ADMIN in principal.scopes:
        own |= Q(user__service_account__isnull=False)
    if principal.tenant is not None:
        own &= Q(tenant__name=principal.tenant)
    with records.write(principal) as entry:
        caller = line_locked(principal.token) if principal.token else None
        rows = Token.objects.select_for_update(of=("self",)).select_related("tenant", "user", "parent", "successor")
        old = rows.filter(own, key=key).first()
        if old is None:
            raise NotFound("token", key)
        itself = old.key == principal.token
        if Scope.ADMIN not in principal.scopes and not itself:
            raise admin_needed(principal, "token.rotate", f"rotate token {key}")
        now = clock.now()
        _check(old, now)
        if old.successor is not None:
            revoke(entry, [old.successor.pk])
        end = _end(old, old.parent if itself else caller, now)
        if itself:
            token, secret = token_create(
                entry,
                user=old.user,
                name=old.name,
                scopes=old.scopes,
                tenant=old.tenant,
                expires_at=end,
                parent=old.parent,
            )
        else:
            token, secret = token_issue(
                principal=principal, user=old.user, name=old.name, scopes=old.scopes, tenant=old.tenant, expires_at=end
            )
        old.successor = token
        old.save(update_fields=["successor"])
        until = now + overlap
        with connection.cursor() as cursor:
            cursor.execute(_SHORTEN, [old.pk, until])
        tenant = old.tenant.name if old.tenant else ""
        entry.append("token.rotated", tenant=tenant, key=old.key, successor=token.key, until=until.isoformat())
    return token, secret


# A token ends no later than its parent.
_SHORTEN = """
    WITH RECURSIVE below AS (
        SELECT id FROM quota_token WHERE id = %s
        UNION SELECT t.id FROM quota_token AS t JOIN below ON t.parent_id = below.id
    ) UPDATE quota_token AS t SET expires_at = least(t.expires_at, %s) FROM below WHERE t.id = below.id"""


def _check(old: Token, now: dt.datetime) -> None:
    """Raise `Conflict` if the token `old` cannot be rotated now."""
    if Scope.DISPATCH.value in old.scopes:
        cure = "issue another one with `borgctl tokens issue NAME --dispatch TEMPLATE`, and then revoke this one"
        raise Conflict("dispatch-token", f"the token {old.key} may only dispatch, and is not rotated; {cure}")
    if old.revoked_at is not None or (old.expires_at is not None and old.expires_at <= now):
        raise Conflict("token-ended", f"the token {old.key} has expired or was revoked; issue a new token instead")
    if not old.user.is_active:
        raise Conflict("disabled", f"the user {old.user.get_username()} is disabled; enable the user first")
    after = old.successor
    if after is not None and after.last_used_at is not None and after.revoked_at is None:
        raise Conflict(
            "rotated-already",
            f"the token {old.key} was already replaced by the token {after.key}, which is in use; rotate {after.key}"
            " instead",
        )


def _end(old: Token, parent: Token | None, now: dt.datetime) -> dt.datetime | None:
    """Return when the new token ends. None means that it does not end.

    The new token has the duration of `old`, but at most that of the setting `BORG_TOKEN_DAYS`. An earlier rotation has
    shortened `old`, so its lost successor then gives the duration.
    """
    whole = old.successor or old
    ends = [parent.expires_at] if parent is not None and parent.expires_at is not None else []
    if whole.expires_at is not None:
        ends.append(now + (whole.expires_at - whole.created_at))
    if settings.BORG_TOKEN_DAYS:
        ends.append(now + dt.timedelta(days=settings.BORG_TOKEN_DAYS))
    return min(ends, default=None)
