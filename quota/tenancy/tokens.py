"""Issues and revokes tokens (`authentication` checks them, and reads their rights).

session or password ─► Token ─► child ─► child      Revoking a token also revokes all its descendants.
"""

from __future__ import annotations

import datetime as dt
import secrets

from django.conf import settings
from django.contrib.auth.models import AbstractBaseUser
from django.db import connection
from django.db.models import Q, QuerySet

from quota import clock, records
from quota.models import ServiceAccount, Tenant, Token
from quota.records import RecordEntry
from quota.tenancy.authentication import token_digest
from quota.vocabulary.errors import Forbidden, NotFound, Rejected, invalid
from quota.vocabulary.permissions import GENERAL_SCOPES, Action, Principal, Scope, may

# By default, a token ends after this time, or with its parent if that is earlier.
TOKEN_LASTS = dt.timedelta(days=90)


def token_issue(
    *,
    principal: Principal,
    user: AbstractBaseUser,
    name: str,
    scopes: list[str],
    tenant: Tenant | None = None,
    expires_at: dt.datetime | None = None,
) -> tuple[Token, str]:
    """Return a new token and its secret, which is not stored.

    The caller is a session, or a token with scope admin, which becomes the parent of the new token. Raises `Forbidden`
    for other callers. Raises `Rejected` if `user` is not a person, or if another argument is invalid; then the error
    names the field. Locks: the parent and all its ancestors.
    """
    if user.pk is None:
        raise Rejected(
            "no-person",
            f"{principal.name} is not a person, and only people can create tokens; sign in as a person",
            status=403,
        )
    if Scope.ADMIN not in principal.scopes:
        raise admin_needed(principal, "token.issue", "issue a token")
    dispatches = scopes == [Scope.DISPATCH.value]
    unknown = set(scopes) - {scope.value for scope in GENERAL_SCOPES}
    if (unknown or not scopes) and not dispatches:
        known = ", ".join(scope.value for scope in GENERAL_SCOPES)
        raise invalid("scopes", f"{scopes!r} is not a list of scopes; give some of {known}", "invalid-scopes")
    wanted = [Scope.WRITE.value] if dispatches else scopes  # to dispatch is to submit jobs
    beyond = sorted(set(wanted) - {scope.value for scope in principal.scopes})
    if beyond:
        raise Rejected(
            "scopes-too-wide",
            f"you cannot give scopes that you do not have: {', '.join(beyond)}; omit these scopes",
            fields={"scopes": f"you do not have the scopes {', '.join(beyond)}; omit them"},
            status=403,
        )
    if not name.strip():
        raise invalid("name", "the name is empty; give a name by which you can recognise the token")
    if expires_at is not None and expires_at <= clock.now():
        raise invalid("expires_at", "the expiry time is in the past; give a time in the future")
    if principal.tenant is not None and (tenant is None or tenant.name != principal.tenant):
        raise Rejected(
            "tenant-bound",
            f"your token is bound to tenant {principal.tenant}, so bind the new token to this tenant",
            fields={"tenant": f"your token is bound to tenant {principal.tenant}; give this tenant"},
            status=403,
        )
    chosen = expires_at is not None
    with records.write(principal) as entry:
        parent = line_locked(principal.token) if principal.token else None
        if parent is not None:
            expires_at = _end_of_child(parent, expires_at)
        expires_at = _within_limit(expires_at, chosen=chosen)
        account = ServiceAccount.objects.filter(user_id=user.pk).first()
        if account is not None and (expires_at is None or tenant is None or tenant.pk != account.tenant_id):
            raise Rejected(
                "service-account",
                f"{user.get_username()} is a service account, so its token needs an expiry time and the tenant of the"
                " account; give both",
                fields={"expires_at": "the token is for a service account; give an expiry time"}
                if expires_at is None
                else {"tenant": "the token is for a service account; give the tenant of the account"},
            )
        return token_create(
            entry, user=user, name=name, scopes=scopes, tenant=tenant, expires_at=expires_at, parent=parent
        )


def token_create(
    entry: RecordEntry,
    *,
    user: AbstractBaseUser,
    name: str,
    scopes: list[str],
    tenant: Tenant | None,
    expires_at: dt.datetime | None,
    parent: Token | None,
) -> tuple[Token, str]:
    """Create a token in the caller's transaction, and return it and its secret. The caller has checked the permission
    and the arguments.
    """
    key = secrets.token_hex(6)
    secret = f"borg_{key}_{secrets.token_urlsafe(32)}"
    token = Token.objects.create(  # type: ignore[misc]
        user=user,
        tenant=tenant,
        name=name.strip(),
        key=key,
        digest=token_digest(secret),
        scopes=sorted(set(scopes)),
        expires_at=expires_at,
        parent=parent,
    )
    entry.append(
        "token.issued",
        tenant=tenant.name if tenant else "",
        key=key,
        name=token.name,
        user=user.get_username(),
        **({"parent": parent.key} if parent is not None else {}),
    )
    return token, secret


def token_revoke(*, principal: Principal, key: str) -> Token:
    """Revoke a token and all its descendants immediately. A second call has no effect.

    Users may revoke their own tokens. Owners may also revoke tokens of their tenants' service accounts. SREs may revoke
    all tokens. A token that is limited to a tenant can revoke only tokens of that tenant. Any token may revoke itself,
    except one that may only dispatch. Raises `NotFound` for other tokens, and `Forbidden` if the caller's token has no
    scope admin. Locks: the token.
    """
    own = Q() if principal.sre and Scope.ADMIN in principal.scopes else issued_for(principal)
    if principal.tenant is not None:
        own &= Q(tenant__name=principal.tenant)
    with records.write(principal) as entry:
        token = (
            Token.objects.select_for_update(of=("self",))
            .select_related("tenant", "user", "parent", "successor")
            .filter(own, key=key)
            .first()
        )
        if token is None:
            raise NotFound("token", key)
        if Scope.ADMIN not in principal.scopes and key != principal.token:
            raise admin_needed(principal, "token.revoke", f"revoke token {key}")
        revoke(entry, [token.pk])
        token.refresh_from_db(fields=["revoked_at"])
    return token


def issued_for(principal: Principal) -> Q:
    """Return the condition for the tokens of the principal, and of the service accounts of the tenants that the
    principal owns.
    """
    owned = [name for name in principal.roles if may(principal, Action.TENANT_ADMIN, tenant=name)]
    own = Q(user_id=principal.user_id)
    return own | Q(user__service_account__tenant__name__in=owned) if owned else own


def tokens_revoke(*, principal: Principal, user: AbstractBaseUser) -> int:
    """Revoke all tokens of `user` and their descendants. Returns the number of revoked tokens.

    Raises `Forbidden` unless the caller is a session of `user`. Locks: the tokens, in order of their ids.
    """
    if principal.user_id != user.pk or user.pk is None or principal.token:
        detail = "Only the user's own session may revoke all tokens of a user. Sign in to the portal as this user."
        raise Forbidden("token.revoke", detail)
    with records.write(principal) as entry:
        own = tokens_in_force().filter(user_id=user.pk).select_for_update().order_by("id")
        return revoke(entry, list(own.values_list("pk", flat=True)))


def tokens_in_force() -> QuerySet[Token]:
    """Return the tokens that are neither revoked nor expired."""
    return Token.objects.filter(revoked_at=None).exclude(expires_at__lte=clock.now())


_ABOVE = """
    WITH RECURSIVE above AS (
        SELECT id, parent_id FROM quota_token WHERE key = %s
        UNION ALL SELECT t.id, t.parent_id FROM quota_token AS t JOIN above ON t.id = above.parent_id
    ) SELECT t.* FROM quota_token AS t WHERE t.id IN (SELECT id FROM above) ORDER BY t.id FOR UPDATE OF t"""
_REVOKE = """
    WITH RECURSIVE below AS (
        SELECT id FROM quota_token WHERE id = ANY(%s)
        UNION SELECT t.id FROM quota_token AS t JOIN below ON t.parent_id = below.id
    ) UPDATE quota_token AS t SET revoked_at = %s FROM below, quota_token AS s
        LEFT JOIN quota_tenant AS n ON n.id = s.tenant_id
    WHERE t.id = below.id AND s.id = t.id AND t.revoked_at IS NULL RETURNING t.key, coalesce(n.name, '')"""


def line_locked(key: str) -> Token:
    """Lock the calling token and all its ancestors, so that nobody can revoke them until the transaction ends.

    Returns the calling token. Raises `Forbidden` if one of these tokens was revoked since the request began.
    """
    line = list(Token.objects.raw(_ABOVE, [key]))
    own = next((token for token in line if token.key == key), None)
    if own is None or any(token.revoked_at is not None for token in line):
        raise Forbidden("token.issue", "Cannot issue a token: the token of this request was revoked. Sign in again.")
    return own


def default_end(principal: Principal) -> dt.datetime | None:
    """Return when a new token ends if nobody chose its end. None: `token_issue` derives it from the caller's token."""
    if principal.token:
        return None
    days = settings.BORG_TOKEN_DAYS
    return clock.now() + (min(TOKEN_LASTS, dt.timedelta(days=days)) if days else TOKEN_LASTS)


def _within_limit(wanted: dt.datetime | None, *, chosen: bool) -> dt.datetime | None:
    """Return when a new token ends. `wanted`: its end without the limit of `BORG_TOKEN_DAYS`, or None for no end.

    Raises `Rejected` if the caller has `chosen` an end beyond the limit.
    """
    days = settings.BORG_TOKEN_DAYS
    if not days:
        return wanted
    last = clock.now() + dt.timedelta(days=days)
    if chosen and wanted is not None and wanted > last:
        raise invalid("expires_at", f"the expiry time is too far ahead; in this portal, give a time within {days} days")
    return min(wanted or last, last)


def _end_of_child(parent: Token, wanted: dt.datetime | None) -> dt.datetime:
    """Return the time at which a new child of the token `parent` expires. `wanted`: the requested time, or None.

    Raises `Rejected` if `wanted` is later than the time at which the parent expires.
    """
    if parent.expires_at is None:
        return wanted or clock.now() + TOKEN_LASTS
    if wanted is not None and wanted > parent.expires_at:
        raise Rejected(
            "outlives-its-parent",
            f"Cannot issue a token that is valid until {wanted:%Y-%m-%d %H:%M} UTC: the token of this request ends"
            f" earlier, at {parent.expires_at:%Y-%m-%d %H:%M} UTC. Choose an earlier end, or use a password.",
            fields={"expires_at": "the token of this request ends earlier; choose an earlier end"},
            status=403,
        )
    return wanted or min(clock.now() + TOKEN_LASTS, parent.expires_at)


def revoke(entry: RecordEntry, ids: list[int]) -> int:
    """Revoke tokens and their descendants. Returns the number of tokens that were not revoked before."""
    with connection.cursor() as cursor:
        cursor.execute(_REVOKE, [ids, clock.now()])
        revoked = sorted(cursor.fetchall())
    for key, tenant in revoked:
        entry.append("token.revoked", tenant=tenant, key=key)
    return len(revoked)


def admin_needed(principal: Principal, action: str, wanted: str) -> Forbidden:
    """Return the rejection of a token that has no scope admin. `wanted`: what the caller wants to do, in words."""
    has = ", ".join(sorted(scope.value for scope in principal.scopes)) or "none"
    return Forbidden(
        action,
        f"Cannot {wanted}: the token of this request has scope {has}, and this needs scope admin. Use the pages of"
        " the portal, or sign in with `borgctl login --admin`.",
    )
